#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "hawser/transport/tcp/byte_stream.h"

namespace hawser::transport::tcp {

// Both ends show a certificate and verify the other's. All files are PEM.
struct TlsOptions {
  std::string ca_file;           // who may vouch for nodes
  std::string certificate_file;  // ours, with the chain up to the CA
  std::string key_file;
  // The name that a peer's certificate must carry (DNS alternative name, else common name).
  // "{node}" stands for the name the peer goes by; a "*" matches any run of characters.
  std::string peer_name = "{node}";
};

// One per transport; makes the streams. Any thread.
class TlsContext {
 public:
  // Throws Error(Invalid) naming the file that cannot be used.
  explicit TlsContext(const TlsOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;

  // The context outlives neither: streams keep what they need of it.
  std::unique_ptr<ByteStream> initiate(int fd) const;
  std::unique_ptr<ByteStream> accept(int fd) const;

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

// Whether `name` fits `pattern`, where "*" matches any run of characters.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace hawser::transport::tcp
