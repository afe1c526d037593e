#include "hawser/transport/tcp/tcp_transport.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "hawser/base/log.h"
#include "hawser/transport/tcp/address.h"
#include "hawser/transport/tcp/dialer.h"
#include "hawser/transport/tcp/opening.h"
#include "hawser/transport/tcp/tcp_link.h"
#include "hawser/transport/watched_socket.h"

namespace hawser::transport::tcp {
namespace {

constexpr int kBacklog = 1024;
constexpr int kMaxAcceptsPerTurn = 64;
// When the process has no descriptor left, accepting is tried again after this.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

Error cannot(const std::string& what, const std::string& where) {
  return Error(ErrorKind::Invalid, "cannot " + what + " " + where + ": " + std::strerror(errno));
}

Descriptor open_listener(const asio::ip::tcp::endpoint& at) {
  const std::string where = write_endpoint("tcp", at.address(), at.port());
  Descriptor socket = make_socket(at.protocol().family());
  if (!socket) throw cannot("open a socket for", where);
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // "::" is asked for by those who want IPv6; who wants both asks for both.
  if (at.address().is_v6()) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  if (::bind(socket.get(), at.data(), static_cast<socklen_t>(at.size())) != 0) {
    throw cannot("listen on", where);
  }
  if (::listen(socket.get(), kBacklog) != 0) throw cannot("listen on", where);
  return socket;
}

std::uint16_t port_of(int fd) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&own);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&own);
  return ntohs(own.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

std::string text_of(const sockaddr_storage& address, socklen_t size) {
  asio::ip::tcp::endpoint endpoint;
  if (size > endpoint.capacity()) return "?";
  std::memcpy(endpoint.data(), &address, size);
  return write_endpoint("tcp", endpoint.address(), endpoint.port());
}

// Lives on the control thread: everything below `listen` and `connect` runs there. Callbacks that
// are still queued in Asio hold it alive and find `closed_`.
class Station : public std::enable_shared_from_this<Station> {
 public:
  Station(ControlLoop& control, Host& host, Random& random, BufferPool& pool, const Limits& limits,
          TcpOptions options)
      : context_(control.context()),
        host_(host),
        random_(random),
        pool_(pool),
        limits_(limits),
        options_(std::move(options)),
        listener_(context_),
        accept_pause_(context_) {
    if (options_.tls) tls_.emplace(*options_.tls);
  }

  std::string_view scheme() const { return tls_ ? "tls" : "tcp"; }
  const TcpOptions& options() const { return options_; }
  Host& host() { return host_; }

  void accept_from(Descriptor listener) {
    if (closed_) return;
    listener_.assign(std::move(listener));
    await_stranger();
  }

  void dial(Endpoint endpoint, std::string peer_name, Deadline deadline,
            UniqueFunction<void(ConnectOutcome)> done) {
    if (closed_) return done(ConnectFailure{std::nullopt, "this node is closing"});
    const Dialer::Means means{context_, host_, random_, limits_, tls_ ? &*tls_ : nullptr};
    auto self = shared_from_this();
    auto slot = std::make_shared<std::weak_ptr<Dialer>>();
    auto dialer = std::make_shared<Dialer>(
        means, std::move(endpoint), std::move(peer_name), deadline,
        [self, slot, done = std::move(done)](Opening::Outcome outcome) mutable {
          self->dialers_.erase(slot->lock());
          done(self->link_from(std::move(outcome)));
        });
    *slot = dialer;
    dialers_.insert(dialer);
    dialer->start();
  }

  void close() {
    closed_ = true;
    listener_.close();
    accept_pause_.cancel();
    // Each takes itself out of its set when it is abandoned.
    for (const auto& dialer : std::unordered_set(dialers_)) dialer->abandon("this node is closing");
    for (const auto& opening : std::unordered_set(openings_)) {
      opening->abandon("this node is closing");
    }
  }

 private:
  void await_stranger() {
    listener_.when_readable([self = shared_from_this()](asio::error_code cancelled) {
      if (!cancelled && !self->closed_) self->accept_waiting();
    });
  }

  void accept_waiting() {
    for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
      sockaddr_storage from{};
      socklen_t size = sizeof from;
      Descriptor socket(::accept4(listener_.fd(), reinterpret_cast<sockaddr*>(&from), &size,
                                  SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket) {
        greet(std::move(socket), text_of(from, size));
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return pause_accepting(std::strerror(errno));
      }
      // Anything else concerns the connection that was to be accepted, not the listener.
    }
    await_stranger();
  }

  void pause_accepting(const char* why) {
    log::Line(log::Level::Error, "transport") << "cannot accept connections: " << why;
    accept_pause_.expires_after(kAcceptPause);
    accept_pause_.async_wait([self = shared_from_this()](asio::error_code cancelled) {
      if (!cancelled && !self->closed_) self->await_stranger();
    });
  }

  void greet(Descriptor socket, const std::string& from) {
    if (openings_.size() >= limits_.max_handshakes) {
      return turn_away(from, {std::nullopt, "too many handshakes at once"});
    }
    set_no_delay(socket.get());
    std::unique_ptr<ByteStream> stream;
    try {
      if (tls_) {
        stream = tls_->accept(socket.get());
      } else {
        stream = std::make_unique<PlainStream>(socket.get());
      }
    } catch (const Error& refused) {
      return turn_away(from, {std::nullopt, refused.message()});
    }
    auto opening = Opening::accept(context_, std::move(socket), std::move(stream), limits_,
                                   AcceptorHandshake(host_, random_, wire::Welcome{}));
    openings_.insert(opening);
    opening->start(std::chrono::steady_clock::now() + options_.handshake_timeout,
                   [self = shared_from_this(), opening = opening.get(),
                    from](Opening::Outcome outcome) mutable {
                     self->openings_.erase(opening->shared_from_this());
                     self->welcome_or_not(from, std::move(outcome));
                   });
  }

  void welcome_or_not(const std::string& from, Opening::Outcome outcome) {
    if (const auto* failure = std::get_if<ConnectFailure>(&outcome)) {
      if (!closed_) turn_away(from, *failure);
      return;
    }
    host_.accepted(std::get<0>(link_from(std::move(outcome))));
  }

  void turn_away(const std::string& from, const ConnectFailure& failure) {
    const bool ordinary = is_ordinary(failure);
    log::Line(ordinary ? log::Level::Debug : log::Level::Warning, "transport")
        << "turned away a " << scheme() << " connection from " << from << ": " << failure.why;
    if (!ordinary) host_.turned_away(failure.why);
  }

  ConnectOutcome link_from(Opening::Outcome outcome) {
    if (auto* failure = std::get_if<ConnectFailure>(&outcome)) return std::move(*failure);
    auto& opened = std::get<Opening::Opened>(outcome);
    return std::make_shared<TcpLink>(std::move(opened.socket), std::move(opened.stream),
                                     std::move(opened.peer), host_, pool_, limits_);
  }

  asio::io_context& context_;
  Host& host_;
  Random& random_;
  BufferPool& pool_;
  const Limits limits_;
  const TcpOptions options_;
  std::optional<TlsContext> tls_;

  bool closed_ = false;
  WatchedSocket listener_;
  asio::steady_timer accept_pause_;
  std::unordered_set<std::shared_ptr<Opening>> openings_;  // of strangers
  std::unordered_set<std::shared_ptr<Dialer>> dialers_;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(ControlLoop& control, std::shared_ptr<Station> station)
      : control_(control), station_(std::move(station)) {}
  ~TcpTransport() override { TcpTransport::close(); }

  std::string_view name() const override { return station_->scheme(); }

  std::string listen() override {
    const TcpOptions& options = station_->options();
    if (!options.tls && station_->host().identity().secret.empty()) {
      throw Error(ErrorKind::Invalid, "tcp without TLS needs a secret that the nodes share");
    }
    const auto address = choose_address({options.address, options.interfaces, options.towards});
    Descriptor listener = open_listener({address, options.port});
    const std::string endpoint = advertised(address, port_of(listener.get()));
    control_.run_alone([this, listener = std::move(listener)]() mutable {
      station_->accept_from(std::move(listener));
    });
    return endpoint;
  }

  std::optional<std::string> objection(std::string_view endpoint) const override {
    if (read_endpoint(name(), endpoint)) return std::nullopt;
    const bool tls_here = name() == "tls";
    if (read_endpoint(tls_here ? "tcp" : "tls", endpoint)) {
      return tls_here ? "it does not use TLS, this node does" : "it uses TLS, this node does not";
    }
    return "'" + std::string(endpoint) + "' is not a " + std::string(name()) + " endpoint";
  }

  void connect(std::string_view endpoint, std::string_view peer_name, Deadline deadline,
               UniqueFunction<void(ConnectOutcome)> done) override {
    auto target = read_endpoint(name(), endpoint);
    std::string why = target ? "" : *objection(endpoint);
    control_.post([station = station_, target = std::move(target), why = std::move(why),
                   peer = std::string(peer_name), deadline, done = std::move(done)]() mutable {
      if (!target) return done(ConnectFailure{std::nullopt, std::move(why)});
      station->dial(std::move(*target), std::move(peer), deadline, std::move(done));
    });
  }

  void close() override {
    control_.run_alone([this] { station_->close(); });
  }

 private:
  std::string advertised(const asio::ip::address& listening, std::uint16_t port) const {
    const TcpOptions& options = station_->options();
    if (!options.advertised_host.empty()) {
      asio::error_code is_name;
      const auto numeric = asio::ip::make_address(options.advertised_host, is_name);
      if (!is_name) return write_endpoint(name(), numeric, port);
      return std::string(name()) + ":" + options.advertised_host + ":" + std::to_string(port);
    }
    if (!listening.is_unspecified()) return write_endpoint(name(), listening, port);
    if (!options.towards.empty()) {
      if (const auto found = address_towards(options.towards)) {
        return write_endpoint(name(), *found, port);
      }
    }
    throw Error(ErrorKind::Invalid, "listening on " + listening.to_string() +
                                        " needs an advertised host that the others can reach");
  }

  ControlLoop& control_;
  const std::shared_ptr<Station> station_;
};

}  // namespace

std::unique_ptr<Transport> create_tcp(ControlLoop& control, Host& host, Random& random,
                                      BufferPool& pool, const Limits& limits, TcpOptions options) {
  return std::make_unique<TcpTransport>(
      control, std::make_shared<Station>(control, host, random, pool, limits, std::move(options)));
}

}  // namespace hawser::transport::tcp
