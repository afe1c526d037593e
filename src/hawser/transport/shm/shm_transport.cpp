#include "hawser/transport/shm/shm_transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <asio/local/stream_protocol.hpp>
#include <asio/steady_timer.hpp>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hawser/base/log.h"
#include "hawser/transport/descriptor.h"
#include "hawser/transport/shm/conversation.h"
#include "hawser/transport/watched_socket.h"

namespace hawser::transport::shm {
namespace {

using Protocol = asio::local::stream_protocol;

constexpr std::string_view kScheme = "shm:";
// When the process has no descriptor for a new connection.
constexpr auto kAcceptAgainAfter = std::chrono::milliseconds(100);

// Two processes can reach each other's sockets if these are equal: the same running kernel, and the
// same network namespace, in which the names of abstract sockets live. Empty if unknown.
std::string host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::erase(boot, '-');
  std::array<char, 64> target{};
  const ssize_t length = ::readlink("/proc/self/ns/net", target.data(), target.size());
  std::string network;
  for (ssize_t i = 0; i < length; ++i) {
    if (std::isdigit(static_cast<unsigned char>(target[i]))) network += target[i];
  }
  if (boot.empty() || network.empty()) return "";
  return boot + "-" + network;
}

std::string random_socket_name(Random& random) {
  std::array<std::byte, 16> bytes;
  random.fill(bytes);
  std::string name = "hawser-";
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    name += kDigits[std::to_integer<unsigned>(byte) >> 4];
    name += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return name;
}

// A leading zero byte puts the name into the abstract namespace: no file, gone with the socket.
Protocol::endpoint abstract_endpoint(std::string_view name) {
  return Protocol::endpoint(std::string(1, '\0') + std::string(name));
}

struct ParsedEndpoint {
  std::string_view host;
  std::string_view socket;
};

std::optional<ParsedEndpoint> parse(std::string_view endpoint) {
  if (!endpoint.starts_with(kScheme)) return std::nullopt;
  endpoint.remove_prefix(kScheme.size());
  const std::size_t colon = endpoint.find(':');
  constexpr std::size_t kLongestName = 100;
  if (colon == std::string_view::npos || endpoint.size() - colon - 1 > kLongestName) {
    return std::nullopt;
  }
  return ParsedEndpoint{endpoint.substr(0, colon), endpoint.substr(colon + 1)};
}

class ShmTransport final : public Transport {
 public:
  ShmTransport(ControlLoop& control, Host& host, Random& random, BufferPool& pool, Doorbell& bell,
               const Limits& limits, const ShmOptions& options)
      : around_{control, host, random, pool, bell, limits, options},
        host_id_(host_id()),
        door_(control.context()),
        accept_again_(control.context()),
        trim_timer_(control.context()) {}
  ~ShmTransport() override { close(); }

  std::string_view name() const override { return "shm"; }
  std::string listen() override;
  std::optional<std::string> objection(std::string_view endpoint) const override;
  void connect(std::string_view endpoint, std::string_view peer_name, Deadline deadline,
               UniqueFunction<void(ConnectOutcome)> done) override;
  void close() override;

 private:
  // All of this on the control thread, or while it does not run.
  void open_door(const std::string& name);
  void await_stranger();
  void accept_waiting();
  void welcome(Descriptor socket);
  void start_connecting(const std::string& endpoint, std::string peer_name, Deadline deadline,
                        UniqueFunction<void(ConnectOutcome)> done);
  void start(std::shared_ptr<Conversation> conversation);
  void turn_away(const ConnectFailure& failure);
  void remember(const std::shared_ptr<ShmLink>& link);
  std::size_t living_links();
  void trim_later();

  Surroundings around_;
  const std::string host_id_;
  // Set by close(). Handlers that the loop still holds then share it, and nothing else of ours.
  const std::shared_ptr<bool> closed_ = std::make_shared<bool>(false);
  WatchedSocket door_;
  asio::steady_timer accept_again_;
  asio::steady_timer trim_timer_;
  bool trimming_ = false;
  std::size_t strangers_ = 0;  // accepted conversations that are not finished
  std::map<Conversation*, std::shared_ptr<Conversation>> conversations_;
  std::vector<std::weak_ptr<ShmLink>> links_;
};

// ---------------------------------------------------------------------------------- listening

std::string ShmTransport::listen() {
  const std::string name = random_socket_name(around_.random);
  std::exception_ptr trouble;
  around_.control.run_alone([&] {
    try {
      open_door(name);
    } catch (...) {
      trouble = std::current_exception();
    }
  });
  if (trouble) std::rethrow_exception(trouble);
  return std::string(kScheme) + host_id_ + ":" + name;
}

void ShmTransport::open_door(const std::string& name) {
  if (*closed_) throw Error(ErrorKind::Invalid, "the transport is closed");
  const Protocol::endpoint endpoint = abstract_endpoint(name);
  Descriptor socket = make_socket();
  if (!socket || ::bind(socket.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) ||
      ::listen(socket.get(), SOMAXCONN)) {
    throw Error(ErrorKind::Invalid,
                std::string("cannot listen for local peers: ") + std::strerror(errno));
  }
  door_.assign(std::move(socket));
  await_stranger();
}

void ShmTransport::await_stranger() {
  door_.when_readable([this, closed = closed_](asio::error_code cancelled) {
    if (!cancelled && !*closed) accept_waiting();
  });
}

void ShmTransport::accept_waiting() {
  Descriptor socket(::accept4(door_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const int error = errno;
  if (socket) {
    welcome(std::move(socket));
  } else if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
    turn_away({std::nullopt, std::string("cannot accept a connection: ") + std::strerror(error)});
    accept_again_.expires_after(kAcceptAgainAfter);
    accept_again_.async_wait([this, closed = closed_](asio::error_code) {
      if (!*closed) await_stranger();
    });
    return;
  }
  // Anything else concerns the connection that was to be accepted, not the door.
  if (!*closed_) await_stranger();
}

void ShmTransport::welcome(Descriptor socket) {
  if (strangers_ >= around_.limits.max_handshakes) {
    turn_away({std::nullopt, "too many handshakes at once"});
    return;
  }
  const ShmOptions& options = around_.options;
  const bool crowded = living_links() > options.crowded_above_links;
  ++strangers_;
  start(make_acceptor(around_, std::move(socket),
                      crowded ? options.crowded_ring_bytes : options.ring_bytes,
                      [this](Conversation& conversation, Conversation::Outcome outcome) {
                        const auto finished = conversations_.extract(&conversation);
                        --strangers_;
                        if (auto* link = std::get_if<std::shared_ptr<ShmLink>>(&outcome)) {
                          remember(*link);
                          around_.host.accepted(std::move(*link));
                        } else {
                          turn_away(std::get<ConnectFailure>(outcome));
                        }
                      }));
}

void ShmTransport::start(std::shared_ptr<Conversation> conversation) {
  conversations_.emplace(conversation.get(), conversation);
  conversation->start();
}

void ShmTransport::turn_away(const ConnectFailure& failure) {
  const bool ordinary = is_ordinary(failure);
  log::Line(ordinary ? log::Level::Debug : log::Level::Warning, "transport")
      << "shm: turned a connection away: " << failure.why;
  if (!ordinary) around_.host.turned_away(failure.why);
}

// ---------------------------------------------------------------------------------- connecting

std::optional<std::string> ShmTransport::objection(std::string_view endpoint) const {
  const auto parsed = parse(endpoint);
  if (!parsed) return "not an endpoint of shared memory: " + std::string(endpoint);
  if (host_id_.empty() || parsed->host.empty() || parsed->host == host_id_) return std::nullopt;
  return "shared memory does not reach another machine, or another network namespace";
}

void ShmTransport::connect(std::string_view endpoint, std::string_view peer_name, Deadline deadline,
                           UniqueFunction<void(ConnectOutcome)> done) {
  around_.control.post([this, closed = closed_, endpoint = std::string(endpoint),
                        peer_name = std::string(peer_name), deadline,
                        done = std::move(done)]() mutable {
    if (*closed) {
      done(ConnectFailure{std::nullopt, "the transport is closed"});
      return;
    }
    start_connecting(endpoint, std::move(peer_name), deadline, std::move(done));
  });
}

void ShmTransport::start_connecting(const std::string& endpoint, std::string peer_name,
                                    Deadline deadline, UniqueFunction<void(ConnectOutcome)> done) {
  if (const auto why = objection(endpoint)) {
    done(ConnectFailure{std::nullopt, *why});
    return;
  }
  start(make_initiator(around_, abstract_endpoint(parse(endpoint)->socket), std::move(peer_name),
                       deadline,
                       [this, done = std::move(done)](Conversation& conversation,
                                                      Conversation::Outcome outcome) mutable {
                         const auto finished = conversations_.extract(&conversation);
                         if (auto* link = std::get_if<std::shared_ptr<ShmLink>>(&outcome)) {
                           remember(*link);
                           done(std::shared_ptr<Link>(std::move(*link)));
                         } else {
                           done(std::get<ConnectFailure>(std::move(outcome)));
                         }
                       }));
}

// ---------------------------------------------------------------------------------- links

void ShmTransport::remember(const std::shared_ptr<ShmLink>& link) {
  links_.push_back(link);
  if (!std::exchange(trimming_, true)) trim_later();
}

std::size_t ShmTransport::living_links() {
  std::erase_if(links_, [](const auto& link) { return link.expired(); });
  return links_.size();
}

// The timer runs only while there are links.
void ShmTransport::trim_later() {
  trim_timer_.expires_after(around_.options.trim_interval);
  trim_timer_.async_wait([this, closed = closed_](asio::error_code) {
    if (*closed) return;
    for (const auto& known : links_) {
      if (const auto link = known.lock()) link->trim_if_idle();
    }
    trimming_ = living_links() > 0;
    if (trimming_) trim_later();
  });
}

void ShmTransport::close() {
  around_.control.run_alone([this] {
    if (std::exchange(*closed_, true)) return;
    door_.close();
    accept_again_.cancel();
    trim_timer_.cancel();
    while (!conversations_.empty()) {
      const auto conversation = conversations_.begin()->second;
      conversation->fail("the transport was closed");
    }
  });
}

}  // namespace

std::unique_ptr<Transport> create_shm(ControlLoop& control, Host& host, Random& random,
                                      BufferPool& pool, Doorbell& bell, const Limits& limits,
                                      const ShmOptions& options) {
  return std::make_unique<ShmTransport>(control, host, random, pool, bell, limits, options);
}

}  // namespace hawser::transport::shm
