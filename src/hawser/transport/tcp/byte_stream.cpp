#include "hawser/transport/tcp/byte_stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace hawser::transport::tcp {
namespace {

Moved failed_call() {
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
  return {Moved::State::Failed, 0, std::strerror(errno)};
}

}  // namespace

Moved PlainStream::write(std::span<const iovec> parts) {
  if (parts.empty()) return {};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  for (;;) {
    const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return {Moved::State::Some, static_cast<std::size_t>(sent), {}};
    if (errno != EINTR) return failed_call();
  }
}

Moved PlainStream::read(std::span<std::byte> into) {
  for (;;) {
    const ssize_t got = ::recv(fd_, into.data(), into.size(), MSG_DONTWAIT);
    if (got > 0) {
      const auto bytes = static_cast<std::size_t>(got);
      return {Moved::State::Some, bytes, {}, /*dry=*/bytes < into.size()};
    }
    if (got == 0) return {Moved::State::Ended, 0, {}};
    if (errno != EINTR) return failed_call();
  }
}

}  // namespace hawser::transport::tcp
