#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "hawser/transport/tcp/tls.h"

namespace hawser::testing {

// A certificate authority that lives for one test, in a temporary folder that it removes.
class TestAuthority {
 public:
  TestAuthority();
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;

  // Issues a certificate for the node of that name (DNS alternative name) and says where it is.
  transport::tcp::TlsOptions issue(const std::string& node);

 private:
  struct Keys;
  std::filesystem::path folder_;
  std::unique_ptr<Keys> keys_;
  long serial_ = 1;
};

}  // namespace hawser::testing
