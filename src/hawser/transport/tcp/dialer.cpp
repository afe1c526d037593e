#include "hawser/transport/tcp/dialer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hawser::transport::tcp {
namespace {

// "No deadline" still ends some day: a peer that never answers must not be held for ever.
constexpr auto kLongestAttempt = std::chrono::minutes(10);

TimePoint end_of(Deadline deadline) {
  return std::min<TimePoint>(deadline.at(), std::chrono::steady_clock::now() + kLongestAttempt);
}

std::string text_of(const asio::ip::tcp::endpoint& endpoint) {
  return write_endpoint("tcp", endpoint.address(), endpoint.port());
}

}  // namespace

Descriptor make_socket(int family) {
  return Descriptor(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
}

void set_no_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Dialer::Dialer(const Means& means, Endpoint endpoint, std::string peer_name, Deadline deadline,
               Opening::Done done)
    : means_(means),
      endpoint_(std::move(endpoint)),
      peer_name_(std::move(peer_name)),
      deadline_(end_of(deadline)),
      done_(std::move(done)),
      resolver_(means.context),
      socket_(means.context),
      timer_(means.context) {}

void Dialer::start() {
  last_failure_.why = "no address of '" + endpoint_.host + "' can be used from here";
  asio::post(means_.context, [self = shared_from_this()] {
    if (self->done_) self->resolve();
  });
}

void Dialer::abandon(std::string why) {
  if (done_) conclude(ConnectFailure{std::nullopt, std::move(why)});
}

void Dialer::resolve() {
  for (const auto& candidate : numeric_candidates(endpoint_)) candidates_.push_back(candidate);
  if (!candidates_.empty()) return try_next();
  timer_.expires_at(deadline_);
  timer_.async_wait([self = shared_from_this()](asio::error_code cancelled) {
    if (!cancelled) self->abandon("'" + self->endpoint_.host + "' was not resolved in time");
  });
  resolver_.async_resolve(
      endpoint_.host, std::to_string(endpoint_.port),
      [self = shared_from_this()](asio::error_code failed,
                                  const asio::ip::tcp::resolver::results_type& found) {
        if (!self->done_) return;
        if (failed) {
          self->last_failure_.why =
              "cannot resolve '" + self->endpoint_.host + "': " + failed.message();
        }
        for (const auto& entry : found) self->candidates_.push_back(entry.endpoint());
        self->try_next();
      });
}

void Dialer::try_next() {
  if (candidates_.empty()) return conclude(std::move(last_failure_));
  const auto candidate = candidates_.front();
  trying_ = text_of(candidate);
  timer_.expires_at(attempt_deadline());
  candidates_.pop_front();
  timer_.async_wait([self = shared_from_this()](asio::error_code cancelled) {
    if (!cancelled && self->done_ && !self->opening_) {
      self->attempt_failed({std::nullopt, "no answer in time"});
    }
  });
  connect_to(candidate);
}

TimePoint Dialer::attempt_deadline() const {
  const TimePoint now = std::chrono::steady_clock::now();
  if (deadline_ <= now) return now;
  return now + (deadline_ - now) / static_cast<int>(candidates_.size());
}

void Dialer::connect_to(const asio::ip::tcp::endpoint& candidate) {
  Descriptor socket = make_socket(candidate.protocol().family());
  if (!socket) return attempt_failed({std::nullopt, std::strerror(errno)});
  set_no_delay(socket.get());
  const int outcome =
      ::connect(socket.get(), candidate.data(), static_cast<socklen_t>(candidate.size()));
  if (outcome != 0 && errno != EINPROGRESS) {
    return attempt_failed({std::nullopt, std::strerror(errno)});
  }
  socket_.assign(std::move(socket));
  socket_.when_writable([self = shared_from_this()](asio::error_code cancelled) {
    if (!cancelled && self->done_) self->connected();
  });
}

void Dialer::connected() {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    error = errno;
  }
  if (error != 0) return attempt_failed({std::nullopt, std::strerror(error)});
  shake_hands();
}

void Dialer::shake_hands() {
  Descriptor socket = socket_.take();
  const int fd = socket.get();
  std::unique_ptr<ByteStream> stream;
  try {
    if (means_.tls) {
      stream = means_.tls->initiate(fd);
    } else {
      stream = std::make_unique<PlainStream>(fd);
    }
  } catch (const Error& refused) {
    return attempt_failed({std::nullopt, refused.message()});
  }
  const TimePoint until = timer_.expiry();
  opening_ = Opening::initiate(
      means_.context, std::move(socket), std::move(stream), means_.limits,
      InitiatorHandshake(means_.host.identity(), peer_name_, means_.random), peer_name_);
  opening_->start(until, [self = shared_from_this()](Opening::Outcome outcome) {
    self->opening_.reset();
    if (!self->done_) return;
    if (auto* failure = std::get_if<ConnectFailure>(&outcome); failure && !failure->refusal) {
      return self->attempt_failed(std::move(*failure));
    }
    self->conclude(std::move(outcome));
  });
}

void Dialer::attempt_failed(ConnectFailure failure) {
  socket_.close();
  last_failure_ = {failure.refusal, trying_ + ": " + failure.why};
  try_next();
}

void Dialer::conclude(Opening::Outcome outcome) {
  timer_.cancel();
  resolver_.cancel();
  socket_.close();
  auto done = std::exchange(done_, nullptr);
  if (opening_) opening_->abandon("given up");
  done(std::move(outcome));
}

}  // namespace hawser::transport::tcp
