#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hawser::transport::tcp {

// What a non-blocking read or write came to.
struct Moved {
  enum class State {
    Some,    // `bytes` > 0 went through
    Later,   // the socket has nothing, or takes nothing, now
    Ended,   // reading: the peer has finished properly
    Failed,  // the connection is dead; `why` says how
  };
  State state = State::Later;
  std::size_t bytes = 0;
  std::string why;
  bool dry = false;  // reading: that was all there was
};

// Bytes over a connected socket, plain or encrypted. Never blocks. Does not own the descriptor.
//
// One thread writes and one reads at a time; a stream that cannot bear both at once has a lock of
// its own inside.
class ByteStream {
 public:
  enum class Opening { Done, AwaitReadable, AwaitWritable, Failed };

  virtual ~ByteStream() = default;
  virtual std::string_view name() const = 0;  // "tcp", "tls"

  // Whatever must be exchanged before the first byte. Called until Done or Failed.
  virtual Opening open() = 0;
  virtual std::string failure() const = 0;  // after open() Failed
  // Why the other end may not call itself `node`; asked once open.
  virtual std::optional<std::string> objection_to(std::string_view node) const = 0;

  virtual Moved write(std::span<const iovec> parts) = 0;
  virtual Moved read(std::span<std::byte> into) = 0;

  // Bytes were taken by write() that wait for the socket; write({}) moves them on.
  virtual bool holds_output() const = 0;
  // Bytes can be read although the descriptor does not say so.
  virtual bool holds_input() const = 0;
  // Tells the other end that nothing follows, if there is a way and room to.
  virtual void finish() = 0;
};

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(int fd) : fd_(fd) {}

  std::string_view name() const override { return "tcp"; }
  Opening open() override { return Opening::Done; }
  std::string failure() const override { return {}; }
  std::optional<std::string> objection_to(std::string_view) const override { return std::nullopt; }
  Moved write(std::span<const iovec> parts) override;
  Moved read(std::span<std::byte> into) override;
  bool holds_output() const override { return false; }
  bool holds_input() const override { return false; }
  void finish() override {}

 private:
  const int fd_;
};

}  // namespace hawser::transport::tcp
