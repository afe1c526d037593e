#include "hawser/transport/tcp/opening.h"

#include <array>
#include <utility>

namespace hawser::transport::tcp {

std::shared_ptr<Opening> Opening::initiate(asio::io_context& context, Descriptor socket,
                                           std::unique_ptr<ByteStream> stream, const Limits& limits,
                                           InitiatorHandshake handshake, std::string peer_name) {
  return std::shared_ptr<Opening>(new Opening(context, std::move(socket), std::move(stream), limits,
                                              std::move(handshake), std::move(peer_name)));
}

std::shared_ptr<Opening> Opening::accept(asio::io_context& context, Descriptor socket,
                                         std::unique_ptr<ByteStream> stream, const Limits& limits,
                                         AcceptorHandshake handshake) {
  return std::shared_ptr<Opening>(
      new Opening(context, std::move(socket), std::move(stream), limits, std::move(handshake), {}));
}

Opening::Opening(asio::io_context& context, Descriptor socket, std::unique_ptr<ByteStream> stream,
                 const Limits& limits, Role role, std::string peer_name)
    : socket_(context, std::move(socket)),
      timer_(context),
      stream_(std::move(stream)),
      reader_(limits.max_handshake_bytes),
      role_(std::move(role)),
      peer_name_(std::move(peer_name)) {}

auto Opening::resume() {
  return [self = shared_from_this()](asio::error_code cancelled) {
    if (!cancelled) self->go_on();
  };
}

void Opening::start(TimePoint deadline, Done done) {
  done_ = std::move(done);
  timer_.expires_at(deadline);
  timer_.async_wait([self = shared_from_this()](asio::error_code cancelled) {
    if (!cancelled) self->abandon("the handshake was not finished in time");
  });
  socket_.when_writable(resume());  // true at once: never calls back from here
}

void Opening::abandon(std::string why) {
  if (done_) conclude(ConnectFailure{std::nullopt, std::move(why)});
}

void Opening::go_on() {
  while (done_) {
    switch (step()) {
      case Next::GoOn:
        break;
      case Next::AwaitReadable:
        return socket_.when_readable(resume());
      case Next::AwaitWritable:
        return socket_.when_writable(resume());
      case Next::Over:
        return;
    }
  }
}

Opening::Next Opening::step() {
  if (!stream_open_) return open_stream();
  if (answered_ < answer_.size() || stream_->holds_output()) return write_answer();
  if (verdict_.index() != 0) return finish();
  return read_question();
}

Opening::Next Opening::open_stream() {
  switch (stream_->open()) {
    case ByteStream::Opening::AwaitReadable:
      return Next::AwaitReadable;
    case ByteStream::Opening::AwaitWritable:
      return Next::AwaitWritable;
    case ByteStream::Opening::Failed:
      return fail(stream_->failure());
    case ByteStream::Opening::Done:
      break;
  }
  stream_open_ = true;
  if (auto* initiator = std::get_if<InitiatorHandshake>(&role_)) {
    if (auto why = stream_->objection_to(peer_name_)) return fail(*why);
    answer_ = initiator->start();
  }
  return Next::GoOn;
}

Opening::Next Opening::write_answer() {
  const iovec rest{answer_.data() + answered_, answer_.size() - answered_};
  Moved moved = stream_->write({&rest, rest.iov_len > 0 ? 1u : 0u});
  if (moved.state == Moved::State::Failed) return fail(std::move(moved.why));
  answered_ += moved.bytes;
  const bool done = answered_ == answer_.size() && !stream_->holds_output();
  return done ? Next::GoOn : Next::AwaitWritable;
}

Opening::Next Opening::read_question() {
  std::array<std::byte, 4096> bytes;
  const std::size_t wanted = std::min(reader_.wanted(), bytes.size());
  Moved moved = stream_->read(std::span(bytes).first(wanted));
  switch (moved.state) {
    case Moved::State::Later:
      return Next::AwaitReadable;
    case Moved::State::Ended:
      return fail("the other end closed the connection during the handshake");
    case Moved::State::Failed:
      return fail(std::move(moved.why));
    case Moved::State::Some:
      break;
  }
  try {
    const auto frame = reader_.feed(std::span(bytes).first(moved.bytes));
    if (!frame) return Next::GoOn;
    return act_on(std::visit([&](auto& handshake) { return handshake.receive(*frame); }, role_));
  } catch (const Error& malformed) {
    return fail(malformed.message());
  }
}

Opening::Next Opening::act_on(HandshakeStep step) {
  answered_ = 0;
  if (auto* send = std::get_if<SendThis>(&step)) {
    answer_ = std::move(send->bytes);
    return Next::GoOn;
  }
  if (auto* failed = std::get_if<Failed>(&step)) {
    answer_ = std::move(failed->last_words);
    verdict_ = ConnectFailure{failed->refusal, std::move(failed->why)};
    return Next::GoOn;
  }
  auto& succeeded = std::get<Succeeded>(step);
  if (auto why = stream_->objection_to(succeeded.peer.name)) {
    answer_ = refusal_frame(wire::RefusalReason::Secret, *why);
    verdict_ = ConnectFailure{wire::RefusalReason::Secret, succeeded.peer.name + ": " + *why};
    return Next::GoOn;
  }
  answer_ = std::move(succeeded.last_words);
  verdict_ = std::move(succeeded.peer);
  return Next::GoOn;
}

Opening::Next Opening::fail(std::string why) {
  // When the verdict is known, the reason is not that its last words could not be delivered.
  if (auto* failure = std::get_if<ConnectFailure>(&verdict_)) {
    conclude(std::move(*failure));
  } else {
    conclude(ConnectFailure{std::nullopt, std::move(why)});
  }
  return Next::Over;
}

Opening::Next Opening::finish() {
  if (auto* failure = std::get_if<ConnectFailure>(&verdict_)) {
    conclude(std::move(*failure));
    return Next::Over;
  }
  Opened opened{socket_.take(), std::move(stream_), std::get<PeerIdentity>(std::move(verdict_))};
  conclude(std::move(opened));
  return Next::Over;
}

void Opening::conclude(Outcome outcome) {
  timer_.cancel();
  if (socket_.is_open()) {
    if (stream_) stream_->finish();
    socket_.close();
  }
  std::exchange(done_, nullptr)(std::move(outcome));
}

}  // namespace hawser::transport::tcp
