#include "hawser/transport/tcp/tcp_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <utility>

#include "hawser/base/log.h"
#include "hawser/base/step.h"

namespace hawser::transport::tcp {
namespace {

// One write, and what a receiving thread reads or writes in one turn: long enough to be cheap per
// byte, short enough not to keep other links waiting.
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxParts = 64;
// A frame of more segments than this is queued first, where its small ones are copied together.
constexpr std::size_t kDirectSegments = 16;
// So much is held back at most.
constexpr std::size_t kHeldBackBytes = std::size_t{32} << 10;
constexpr std::size_t kHeldCalls = 16;

}  // namespace

TcpLink::TcpLink(Descriptor socket, std::unique_ptr<ByteStream> stream, PeerIdentity peer,
                 Host& host, BufferPool& pool, const Limits& limits)
    : socket_(std::move(socket)),
      stream_(std::move(stream)),
      peer_(std::move(peer)),
      host_(host),
      assembler_(pool, limits) {}

TcpLink::~TcpLink() { TcpLink::close(); }

// ---------------------------------------------------------------------------------- sending

bool TcpLink::send(wire::OutFrame frame) {
  Aftermath aftermath;
  Lock lock(mutex_);
  if (sending_.ended) return false;
  ++sending_.frames;
  const bool behind_others = !sending_.outbox.empty();
  const bool held_back = sending_.held_back == std::this_thread::get_id();
  if (sending_.writing || (behind_others && wants_write()) ||
      (held_back && has_room_for_held(frame))) {
    const bool queued = queue(frame, aftermath);
    lock.unlock();
    settle(aftermath);
    return queued;
  }
  sending_.writing = true;
  Moved moved;
  if (!behind_others && frame.segments.size() <= kDirectSegments) {
    lock.unlock();
    moved = write_directly(frame);
    lock.lock();
  }
  const std::size_t total = frame.total_bytes();
  bool alive = account(moved, aftermath);
  if (behind_others) {
    alive = queue(frame, aftermath);
  } else if (alive && moved.bytes < total) {
    alive = queue_rest(frame, moved.bytes, aftermath);
  }
  // The socket is full if it took less than it was offered; more than a turn it was not offered.
  const bool full = moved.state == Moved::State::Some && moved.bytes < std::min(total, kTurnBytes);
  if (alive && !full) alive = write_on(lock, total + kTurnBytes, aftermath);
  stop_writing(aftermath);
  lock.unlock();
  settle(aftermath);
  return alive;
}

bool TcpLink::send_with_more(wire::OutFrame frame) {
  Aftermath aftermath;
  Lock lock(mutex_);
  const bool holds = !sending_.ended && !sending_.writing && !wants_write() &&
                     sending_.held_calls < kHeldCalls && has_room_for_held(frame);
  if (!holds) {
    lock.unlock();
    return send(std::move(frame));
  }
  ++sending_.frames;
  const bool first = sending_.held_calls++ == 0;
  if (first) sending_.held_since = std::chrono::steady_clock::now();
  const bool queued = queue(frame, aftermath);
  lock.unlock();
  settle(aftermath);
  HAWSER_STEP();
  if (first && queued && !host_.held_back(shared_from_this())) flush();
  return queued;
}

Duration TcpLink::flush() {
  Aftermath aftermath;
  Lock lock(mutex_);
  if (sending_.held_calls == 0 || sending_.writing || sending_.ended) return {};
  const Duration waited = std::chrono::steady_clock::now() - sending_.held_since;
  sending_.writing = true;
  write_on(lock, kTurnBytes, aftermath);
  stop_writing(aftermath);
  lock.unlock();
  settle(aftermath);
  return waited;
}

// LINK-7: something is queued, so somebody writes, or is about to. Who stops writing asks for the
// socket to be watched, although it may be all written by then.
bool TcpLink::backlogged(std::size_t limit) {
  const Lock lock(mutex_);
  const bool more = !sending_.ended && sending_.outbox.bytes() > limit;
  if (more) sending_.awaited = true;
  return more;
}

bool TcpLink::queue(wire::OutFrame& frame, Aftermath& aftermath) {
  try {
    sending_.outbox.push(frame);
    return true;
  } catch (const std::bad_alloc&) {  // part of the frame may be queued: the stream is spoilt
    end("no memory to queue a frame", aftermath);
    return false;
  }
}

// Before what others have queued while the first bytes were being written.
bool TcpLink::queue_rest(wire::OutFrame& frame, std::size_t written, Aftermath& aftermath) {
  try {
    Outbox rest;
    rest.push(frame);
    rest.consume(written, aftermath.finished);
    sending_.outbox.prepend(std::move(rest));
    return true;
  } catch (const std::bad_alloc&) {
    end("no memory to queue a frame", aftermath);
    return false;
  }
}

bool TcpLink::has_room_for_held(const wire::OutFrame& frame) const {
  return frame.segments.empty() && sending_.outbox.bytes() + frame.body.size() <= kHeldBackBytes;
}

// Nobody: what has been held back is written.
void TcpLink::hold_back(std::thread::id sender) {
  if (held_back_ == sender) return;
  held_back_ = sender;
  Aftermath aftermath;
  Lock lock(mutex_);
  sending_.held_back = sender;
  const bool idle = !sending_.writing && !sending_.ended && !wants_write();
  if (sender == std::thread::id() && idle && !sending_.outbox.empty()) {
    sending_.writing = true;
    write_on(lock, kTurnBytes, aftermath);
    stop_writing(aftermath);
  }
  lock.unlock();
  settle(aftermath);
}

Moved TcpLink::write_directly(const wire::OutFrame& frame) {
  const wire::FrameHeader header = frame.header();
  std::array<std::uint64_t, kDirectSegments> sizes;
  std::array<iovec, 3 + kDirectSegments> parts;
  std::size_t count = 0;
  std::size_t room = kTurnBytes;
  const auto add = [&](const void* data, std::size_t size) {
    const std::size_t take = std::min(size, room);
    if (take == 0) return;
    parts[count++] = iovec{const_cast<void*>(data), take};
    room -= take;
  };
  add(&header, sizeof header);
  for (std::size_t i = 0; i < frame.segments.size(); ++i) sizes[i] = frame.segments[i].size();
  add(sizes.data(), frame.segments.size() * sizeof sizes[0]);
  add(frame.body.data(), frame.body.size());
  for (const Buffer& segment : frame.segments) add(segment.data(), segment.size());
  return stream_->write({parts.data(), count});
}

bool TcpLink::write_on(Lock& lock, std::size_t max_bytes, Aftermath& aftermath) {
  while (!sending_.ended && (!sending_.outbox.empty() || stream_->holds_output())) {
    std::array<iovec, kMaxParts> parts;
    const std::size_t count = sending_.outbox.gather(parts, std::min(max_bytes, kTurnBytes));
    std::size_t offered = 0;
    for (std::size_t i = 0; i < count; ++i) offered += parts[i].iov_len;
    lock.unlock();
    const Moved moved = stream_->write({parts.data(), count});
    lock.lock();
    if (!account(moved, aftermath)) return false;
    sending_.outbox.consume(moved.bytes, aftermath.finished);
    max_bytes -= moved.bytes;
    if (moved.bytes < offered || moved.bytes == 0 || max_bytes == 0) break;
  }
  return !sending_.ended;
}

bool TcpLink::account(const Moved& moved, Aftermath& aftermath) {
  sending_.bytes += moved.bytes;
  if (moved.state != Moved::State::Failed) return true;
  end(moved.why, aftermath);
  return false;
}

void TcpLink::stop_writing(Aftermath& aftermath) {
  sending_.writing = false;
  sending_.held_calls = 0;  // what is left is for the poller
  if (sending_.ended) aftermath.dropped.prepend(std::exchange(sending_.outbox, {}));
  const bool wants =
      !sending_.ended && (!sending_.outbox.empty() || stream_->holds_output() || sending_.awaited);
  aftermath.watch = !wants_write_.exchange(wants) && wants;
}

// The first end counts: a connection that breaks because we closed it was closed without a reason.
void TcpLink::end(std::optional<std::string> reason, Aftermath& aftermath) {
  if (std::exchange(sending_.ended, true)) return;
  sending_.reason = std::move(reason);
  aftermath.shut = true;
  wants_write_.store(false);
  // A writer still reads from the outbox; it drops the rest itself when it is done.
  if (!sending_.writing) aftermath.dropped.prepend(std::exchange(sending_.outbox, {}));
}

void TcpLink::settle(Aftermath& aftermath) {
  if (aftermath.shut) {
    stream_->finish();
    ::shutdown(socket_.get(), SHUT_RDWR);
  }
  if (aftermath.watch) host_.watch_writable(*this);
}

void TcpLink::close() {
  Aftermath aftermath;
  Lock lock(mutex_);
  end(std::nullopt, aftermath);
  lock.unlock();
  settle(aftermath);
}

// ---------------------------------------------------------------------------------- receiving

Link::Received TcpLink::receive(wire::InFrame& frame) {
  if (finished_) return Received::Closed;
  pending_ = false;
  const bool can_write_on = wants_write() && write_queued();
  try {
    const Received received = read_frame(frame);
    hold_back(received == Received::Frame && pending_ ? std::this_thread::get_id()
                                                      : std::thread::id());
    if (can_write_on && received == Received::Nothing) pending_ = true;
    return received;
  } catch (const std::exception& refused) {  // Error, or no memory for a part of the frame
    log::Line(log::Level::Warning, "transport")
        << "closed the " << transport() << " link to " << peer_.name << ": " << refused.what();
    return ended(refused.what());
  }
}

Link::Received TcpLink::read_frame(wire::InFrame& frame) {
  for (std::size_t read = 0;;) {
    if (assembler_.next(frame)) {
      frames_received_.fetch_add(1, std::memory_order_relaxed);
      pending_ = assembler_.has_bytes() || stream_->holds_input();
      return Received::Frame;
    }
    if (read >= kTurnBytes) {
      pending_ = true;
      return Received::Nothing;
    }
    // Within a frame more is on its way, and worth another look.
    if (std::exchange(ran_dry_, false) && assembler_.between_frames()) return Received::Nothing;
    Moved moved = stream_->read(assembler_.landing());
    switch (moved.state) {
      case Moved::State::Some:
        assembler_.landed(moved.bytes);
        bytes_received_.fetch_add(moved.bytes, std::memory_order_relaxed);
        read += moved.bytes;
        ran_dry_ = moved.dry;
        break;
      case Moved::State::Later:
        return Received::Nothing;
      case Moved::State::Ended:
        if (assembler_.between_frames()) return ended(std::nullopt);
        return ended("the peer closed the connection in the middle of a frame");
      case Moved::State::Failed:
        return ended(std::move(moved.why));
    }
  }
}

// True: the socket would take more, only this turn is over.
bool TcpLink::write_queued() {
  Aftermath aftermath;
  Lock lock(mutex_);
  if (sending_.writing || sending_.ended) return false;
  sending_.writing = true;
  sending_.awaited = false;
  const std::uint64_t before = sending_.bytes;
  write_on(lock, kTurnBytes, aftermath);
  stop_writing(aftermath);
  const bool turn_over = wants_write() && sending_.bytes - before >= kTurnBytes;
  lock.unlock();
  settle(aftermath);
  return turn_over;
}

Link::Received TcpLink::ended(std::optional<std::string> reason) {
  finished_ = true;
  assembler_.abandon();
  Aftermath aftermath;
  Lock lock(mutex_);
  end(std::move(reason), aftermath);
  lock.unlock();
  settle(aftermath);
  return Received::Closed;
}

// ---------------------------------------------------------------------------------- asked

std::optional<std::string> TcpLink::close_reason() const {
  const Lock lock(mutex_);
  return sending_.reason;
}

LinkStats TcpLink::stats() const {
  LinkStats stats;
  {
    const Lock lock(mutex_);
    stats.frames_sent = sending_.frames;
    stats.bytes_sent = sending_.bytes;
    stats.bytes_queued = sending_.outbox.bytes();
  }
  stats.frames_received = frames_received_.load(std::memory_order_relaxed);
  stats.bytes_received = bytes_received_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace hawser::transport::tcp
