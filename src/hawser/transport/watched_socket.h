#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <utility>

#include "hawser/transport/descriptor.h"

namespace hawser::transport {

// A socket that Asio watches and does not own: it stays a Descriptor, with all that those promise,
// and leaves the watch unharmed. Control thread only.
class WatchedSocket {
 public:
  explicit WatchedSocket(asio::io_context& context) : watch_(context) {}
  WatchedSocket(asio::io_context& context, Descriptor socket) : WatchedSocket(context) {
    assign(std::move(socket));
  }
  ~WatchedSocket() { take(); }

  void assign(Descriptor socket) {
    socket_ = std::move(socket);
    watch_.assign(socket_.get());
  }
  int fd() const { return socket_.get(); }
  bool is_open() const { return static_cast<bool>(socket_); }

  // Handler: void(asio::error_code), with an error when the watch ended first.
  template <class Handler>
  void when_readable(Handler handler) {
    watch_.async_wait(asio::posix::descriptor_base::wait_read, std::move(handler));
  }
  template <class Handler>
  void when_writable(Handler handler) {
    watch_.async_wait(asio::posix::descriptor_base::wait_write, std::move(handler));
  }

  // Ends the watch.
  Descriptor take() {
    if (watch_.is_open()) watch_.release();
    return std::move(socket_);
  }
  void close() { take(); }

 private:
  Descriptor socket_;
  asio::posix::stream_descriptor watch_;
};

}  // namespace hawser::transport
