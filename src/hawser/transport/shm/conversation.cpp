#include "hawser/transport/shm/conversation.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/buffer.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "hawser/base/error.h"
#include "hawser/base/step.h"
#include "hawser/transport/handshake.h"
#include "hawser/transport/shm/fitting.h"

namespace hawser::transport::shm {
namespace {

using Socket = asio::local::stream_protocol::socket;

template <class... Ts>
struct Cases : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Cases(Ts...) -> Cases<Ts...>;

void check_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    throw Error(ErrorKind::Refused, "the system does not say who the peer is");
  }
  if (peer.uid != ::geteuid()) {
    throw Error(ErrorKind::Refused, "the peer belongs to user " + std::to_string(peer.uid) +
                                        ", this process to user " + std::to_string(::geteuid()));
  }
}

// What both ends have in common.
class EndOfConversation : public Conversation,
                          public std::enable_shared_from_this<EndOfConversation> {
 public:
  void fail(std::string why, std::optional<wire::RefusalReason> refusal = {}) override {
    finish(ConnectFailure{refusal, std::move(why)});
  }

 protected:
  EndOfConversation(Surroundings& around, Finished finished)
      : around_(around),
        socket_(around.control.context()),
        timer_(around.control.context()),
        finished_(std::move(finished)),
        reader_(around.limits.max_handshake_bytes) {}

  virtual void on_frame(std::span<const std::byte> frame) = 0;

  void use(Descriptor socket) {
    asio::error_code error;
    socket_.assign(asio::local::stream_protocol(), socket.get(), error);
    if (error) throw Error(ErrorKind::Overloaded, "cannot watch a socket: " + error.message());
    socket.hand_over();
  }

  // Runs a step of the conversation; what it throws ends it.
  template <class Step>
  void attempt(Step step) {
    if (!finished_) return;
    HAWSER_STEP();
    try {
      step();
    } catch (const Error& error) {
      fail(error.message());
    }
  }

  // A handler for Asio that keeps this alive.
  template <class Step>
  auto handler(Step step) {
    return [self = shared_from_this(), step](asio::error_code error, auto... rest) {
      self->attempt([&] {
        if (error) throw Error(ErrorKind::PeerLost, "the connection failed: " + error.message());
        step(rest...);
      });
    };
  }

  void start_timer(Deadline deadline) {
    if (deadline.is_never()) return;
    timer_.expires_at(deadline.at());
    timer_.async_wait([this, self = shared_from_this()](asio::error_code cancelled) {
      if (!cancelled && finished_) fail("no link was made before the deadline");
    });
  }

  void read_frame() {
    const auto piece = asio::buffer(incoming_, std::min(reader_.wanted(), incoming_.size()));
    socket_.async_read_some(piece, handler([this](std::size_t bytes) {
                              const auto frame = reader_.feed(std::span(incoming_).first(bytes));
                              if (frame) {
                                on_frame(*frame);
                              } else {
                                read_frame();
                              }
                            }));
  }

  template <class Next>
  void write(std::vector<std::byte> bytes, Next next) {
    outgoing_ = std::move(bytes);
    asio::async_write(socket_, asio::buffer(outgoing_), handler([next](std::size_t) { next(); }));
  }

  // Asks `come` whenever there is something to read, until it is true.
  template <class Come, class Next>
  void read_until(Come come, Next next) {
    socket_.async_wait(Socket::wait_read, handler([this, come, next]() {
                         if (come()) {
                           next();
                         } else {
                           read_until(come, next);
                         }
                       }));
  }

  // To somebody whom we then leave. A socket that takes no few bytes has nobody to read them.
  void say(std::span<const std::byte> last_words) {
    if (last_words.empty()) return;
    static_cast<void>(::send(socket_.native_handle(), last_words.data(), last_words.size(),
                             MSG_DONTWAIT | MSG_NOSIGNAL));
  }

  void make_fitting(std::size_t ring_bytes) {
    fitting_.emplace(ring_bytes, around_.limits.max_arena_bytes_per_peer, around_.bell);
  }

  void finish_with_link(PeerIdentity peer) {
    const LinkSettings settings{around_.limits, around_.options.inline_limit,
                                around_.options.arena_step, around_.options.adopt_share};
    Descriptor socket(socket_.release());
    finish(std::make_shared<ShmLink>(fitting_->parts(std::move(peer), std::move(socket)), settings,
                                     around_.pool));
  }

  void finish(Outcome outcome) {
    if (!finished_) return;
    Finished finished = std::exchange(finished_, nullptr);
    const auto self = shared_from_this();
    timer_.cancel();
    if (socket_.is_open()) keep_in_children(socket_.native_handle());
    asio::error_code ignored;
    socket_.close(ignored);
    fitting_.reset();
    finished(*this, std::move(outcome));
  }

  Surroundings& around_;
  Socket socket_;
  std::optional<Fitting> fitting_;

 private:
  asio::steady_timer timer_;
  Finished finished_;  // empty once it was called
  HandshakeReader reader_;
  std::array<std::byte, 512> incoming_;
  std::vector<std::byte> outgoing_;
};

class Initiator final : public EndOfConversation {
 public:
  Initiator(Surroundings& around, asio::local::stream_protocol::endpoint to, std::string peer_name,
            Deadline deadline, Finished finished)
      : EndOfConversation(around, std::move(finished)),
        to_(std::move(to)),
        deadline_(deadline),
        handshake_(around.host.identity(), std::move(peer_name), around.random) {}

  void start() override {
    start_timer(deadline_);
    attempt([this] { connect(); });
  }

 private:
  void connect() {
    Descriptor socket = make_socket();
    if (!socket) {
      throw Error(ErrorKind::Overloaded,
                  std::string("cannot open a socket: ") + std::strerror(errno));
    }
    use(std::move(socket));
    socket_.async_connect(to_, handler([this]() {
                            check_user(socket_.native_handle());
                            write(handshake_.start(), [this] { read_frame(); });
                          }));
  }

  void on_frame(std::span<const std::byte> frame) override {
    HandshakeStep step = handshake_.receive(frame);
    std::visit(
        Cases{[this](SendThis& step) { write(std::move(step.bytes), [this] { read_frame(); }); },
              [this](Succeeded& step) {
                peer_ = std::move(step.peer);
                write(std::move(step.last_words), [this] { expect_outfit(); });
              },
              [this](Failed& step) {
                say(step.last_words);
                fail(std::move(step.why), step.refusal);
              }},
        step);
  }

  void expect_outfit() {
    make_fitting(handshake_.welcome().ring_bytes);
    read_until([this] { return fitting_->receive_outfit(socket_.native_handle()); },
               [this] { answer_outfit(); });
  }

  void answer_outfit() {
    Probe probe;
    around_.random.fill(probe);
    fitting_->choose_probe(probe);
    fitting_->put_probe();
    fitting_->send_outfit(socket_.native_handle());
    read_until([this] { return fitting_->receive_ready(socket_.native_handle()); },
               [this] {
                 fitting_->find_probe();
                 finish_with_link(std::move(peer_));
               });
  }

  const asio::local::stream_protocol::endpoint to_;
  const Deadline deadline_;
  InitiatorHandshake handshake_;
  PeerIdentity peer_;
};

class Acceptor final : public EndOfConversation {
 public:
  Acceptor(Surroundings& around, Descriptor socket, std::size_t ring_bytes, Finished finished)
      : EndOfConversation(around, std::move(finished)),
        accepted_(std::move(socket)),
        ring_bytes_(ring_bytes),
        handshake_(around.host, around.random,
                   wire::Welcome{static_cast<std::uint32_t>(ring_bytes)}) {}

  void start() override {
    start_timer(Deadline::after(SteadyClock(), around_.options.handshake_timeout));
    attempt([this] {
      use(std::move(accepted_));
      or_refuse([this] { check_user(socket_.native_handle()); });
    });
    attempt([this] { read_frame(); });
  }

 private:
  void on_frame(std::span<const std::byte> frame) override {
    HandshakeStep step = handshake_.receive(frame);
    std::visit(
        Cases{[this](SendThis& step) { write(std::move(step.bytes), [this] { read_frame(); }); },
              [this](Succeeded& step) {
                peer_ = std::move(step.peer);
                or_refuse([this] { make_fitting(ring_bytes_); });
                write(std::move(step.last_words), [this] { send_outfit(); });
              },
              [this](Failed& step) {
                say(step.last_words);
                fail(std::move(step.why), step.refusal);
              }},
        step);
  }

  // The peer is told why it cannot have shared memory, so that it tries another way.
  template <class Step>
  void or_refuse(Step step) {
    try {
      step();
    } catch (const Error& error) {
      say(refusal_frame(wire::RefusalReason::Transport, error.message()));
      throw;
    }
  }

  void send_outfit() {
    fitting_->send_outfit(socket_.native_handle());
    read_until([this] { return fitting_->receive_outfit(socket_.native_handle()); },
               [this] {
                 fitting_->find_probe();
                 fitting_->put_probe();
                 fitting_->send_ready(socket_.native_handle());
                 finish_with_link(std::move(peer_));
               });
  }

  Descriptor accepted_;  // until start()
  const std::size_t ring_bytes_;
  AcceptorHandshake handshake_;
  PeerIdentity peer_;
};

}  // namespace

std::shared_ptr<Conversation> make_initiator(Surroundings& around,
                                             asio::local::stream_protocol::endpoint to,
                                             std::string peer_name, Deadline deadline,
                                             Conversation::Finished finished) {
  return std::make_shared<Initiator>(around, std::move(to), std::move(peer_name), deadline,
                                     std::move(finished));
}

std::shared_ptr<Conversation> make_acceptor(Surroundings& around, Descriptor socket,
                                            std::size_t ring_bytes,
                                            Conversation::Finished finished) {
  return std::make_shared<Acceptor>(around, std::move(socket), ring_bytes, std::move(finished));
}

Descriptor make_socket() {
  return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

}  // namespace hawser::transport::shm
