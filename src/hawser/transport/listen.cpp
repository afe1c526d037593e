#include "hawser/transport/listen.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "hawser/base/error.h"
#include "hawser/base/log.h"

namespace hawser::transport {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

constexpr Duration kFirstPause = std::chrono::milliseconds(1);
constexpr Duration kLongestPause = std::chrono::milliseconds(50);
constexpr Duration kOneAttempt = std::chrono::seconds(2);

std::string where(const std::string& host, std::uint16_t port) {
  return host + ":" + std::to_string(port);
}

Addresses resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    throw Error(ErrorKind::Invalid,
                "cannot resolve " + where(host, port) + ": " + ::gai_strerror(error));
  }
  return Addresses(found, &::freeaddrinfo);
}

// A host's own name often means loopback to itself, and another address to all others.
void warn_of_loopback(const std::string& host, const addrinfo& address) {
  if (host.find("localhost") != host.npos || host.find("loopback") != host.npos) return;
  std::array<char, NI_MAXHOST> numeric{};
  if (::getnameinfo(address.ai_addr, address.ai_addrlen, numeric.data(), numeric.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return;
  }
  const std::string_view found(numeric.data());
  if (found == host || !(found.starts_with("127.") || found == "::1")) return;
  log::Line(log::Level::Warning, "transport")
      << "'" << host << "' is " << found << " on this host: others cannot reach it there";
}

bool accepts_connections(const addrinfo& address, Duration patience) {
  const Descriptor socket(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return false;
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd connecting{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(patience);
  if (::poll(&connecting, 1, static_cast<int>(limit.count())) <= 0) return false;
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

}  // namespace

void wait_for_listener(const std::string& host, std::uint16_t port, Deadline deadline) {
  const auto left = [&] { return deadline.remaining(std::chrono::steady_clock::now()); };
  for (Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    try {
      const Addresses addresses = resolve(host, port);
      for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
        if (accepts_connections(*at, std::min(left(), kOneAttempt))) return;
      }
    } catch (const Error&) {
      if (left() <= Duration::zero()) throw;
    }
    if (left() <= Duration::zero()) {
      throw Error(ErrorKind::Timeout, "nobody listens at " + where(host, port));
    }
    std::this_thread::sleep_for(std::min(left(), pause));  // nobody tells when one begins to listen
  }
}

Descriptor listen_on(const std::string& host, std::uint16_t port) {
  const Addresses addresses = resolve(host, port);
  std::string why = "no address";
  for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
    Descriptor socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (socket && ::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      warn_of_loopback(host, *at);
      return socket;
    }
    why = std::strerror(errno);
  }
  throw Error(ErrorKind::Invalid, "cannot listen on " + where(host, port) + ": " + why);
}

}  // namespace hawser::transport
