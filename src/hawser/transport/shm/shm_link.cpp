#include "hawser/transport/shm/shm_link.h"

#include <sys/socket.h>

#include <array>
#include <new>
#include <utility>

#include "hawser/base/error.h"
#include "hawser/base/log.h"
#include "hawser/base/process_forks.h"
#include "hawser/base/step.h"
#include "hawser/transport/shm/descriptor_passing.h"

namespace hawser::transport::shm {
namespace {

// A pair that says less than this between two looks is idle.
constexpr std::uint64_t kIdleBytes = std::uint64_t{64} << 10;

OutboundArena::Announce announce_on(int socket) {
  return [socket](const ChunkNote& note, const Descriptor& memory) {
    const std::array<int, 1> descriptors{memory.get()};
    return send_note(socket, std::as_bytes(std::span(&note, 1)), descriptors);
  };
}

}  // namespace

ShmLink::ShmLink(LinkParts parts, const LinkSettings& settings, BufferPool& pool)
    : peer_(std::move(parts.peer)),
      settings_(settings),
      pool_(pool),
      fork_depth_(fork_depth()),
      socket_(std::move(parts.socket)),
      bell_(std::move(parts.bell)),
      ring_(parts.outbox.memory()),
      outbound_(std::make_shared<OutboundArena>(parts.arena_limit, settings.arena_step,
                                                announce_on(socket_.get()))),
      inbound_(parts.arena_limit, static_cast<std::size_t>(static_cast<double>(parts.arena_limit) *
                                                           settings.adopt_share)),
      reader_(std::move(parts.inbox), settings.limits),
      outbox_(Outbox{FrameWriter(std::move(parts.outbox))}) {}

ShmLink::~ShmLink() { close(); }

void ShmLink::Counters::count(std::size_t frame_bytes) {
  // Written by one thread at a time: no need for a locked addition.
  frames.store(frames.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  bytes.store(bytes.load(std::memory_order_relaxed) + frame_bytes, std::memory_order_relaxed);
}

// ---------------------------------------------------------------------------------- sending

bool ShmLink::send(wire::OutFrame frame, Hurry hurry) {
  if (closed_.load(std::memory_order_relaxed)) return false;
  try {
    std::vector<SegmentEntry> entries;
    entries.reserve(frame.segments.size());
    for (const Buffer& segment : frame.segments) entries.push_back(place(segment));
    return write(frame, entries, hurry);
  } catch (const Error& broken) {
    end(broken.message());
    return false;
  }
}

SegmentEntry ShmLink::place(const Buffer& segment) {
  SegmentEntry entry;
  entry.size = segment.size();
  if (segment.size() <= settings_.inline_limit) return entry;
  auto block = inbound_.hand_back(segment);
  entry.place = SegmentPlace::HandedBack;
  if (!block) {
    block = outbound_->place(segment.bytes());
    entry.place = SegmentPlace::InArena;
  }
  if (block) {
    entry.chunk = block->chunk;
    entry.block = block->unit;
  } else {
    entry.place = SegmentPlace::InRing;  // the arena is full: slower, but it gets there
  }
  return entry;
}

// Lets go of the frame's segments after the lock is released.
bool ShmLink::write(wire::OutFrame& frame, const std::vector<SegmentEntry>& entries, Hurry hurry) {
  std::vector<Buffer> done;
  bool published = false;
  bool overdue = false;  // a peer that lets its ring run full has slept too long
  {
    auto outbox = outbox_.lock();
    if (outbox->closed) return false;
    const std::size_t bytes = frame.total_bytes();
    published = outbox->frames.write(frame, entries);
    if (!published) {
      overdue = hurry == Hurry::No;
      outbox->frames.enqueue(std::move(frame), entries);
      // Before it is announced that we wait for room: who is rung for that looks here.
      queued_.store(true, std::memory_order_seq_cst);
      published = outbox->frames.write_on(done);
      HAWSER_STEP();
      note_queue(*outbox);
    } else if (!entries.empty()) {
      note_queue(*outbox);
    }
    sent_.count(bytes);
  }
  if (overdue || (published && hurry == Hurry::Yes)) bell_->ring_if_asleep();
  return true;
}

// There may be room for what is queued.
void ShmLink::write_queue() {
  std::vector<Buffer> done;
  bool published = false;
  {
    auto outbox = outbox_.lock();
    if (outbox->closed) return;
    published = outbox->frames.write_on(done);
    note_queue(*outbox);
  }
  if (published) bell_->ring_if_asleep();
}

void ShmLink::note_queue(Outbox& outbox) {
  queued_.store(!outbox.frames.queue_empty(), std::memory_order_seq_cst);
  bytes_queued_.store(outbox.frames.bytes_waiting(), std::memory_order_relaxed);
}

// LINK-7: the peer rings when it takes something, and pending() sees that it did, until receive()
// has found no frame. Somebody who is waiting already keeps the older count to compare with: what
// has happened since may concern him.
bool ShmLink::backlogged(std::size_t limit) {
  if (bytes_queued_.load(std::memory_order_relaxed) <= limit) return false;
  std::vector<Buffer> done;
  bool published = false;
  bool more = false;
  try {
    auto outbox = outbox_.lock();
    if (outbox->closed) return false;
    FrameWriter& frames = outbox->frames;
    frames.look_at_reader();
    if (frames.bytes_waiting() > limit) {
      std::uint64_t nobody = kNobodyWaits;
      taken_before_.compare_exchange_strong(nobody, ring_->bytes_taken(),
                                            std::memory_order_seq_cst);
      frames.ring().await_reader();
      // Room that was made before is used up now: pending() does not see it any more.
      published = frames.write_on(done);
      frames.look_at_reader();
    }
    more = frames.bytes_waiting() > limit;
    note_queue(*outbox);
  } catch (const Error& broken) {
    end(broken.message());
    return false;
  }
  if (published) bell_->ring_if_asleep();
  return more;
}

// ---------------------------------------------------------------------------------- receiving

Link::Received ShmLink::receive(wire::InFrame& frame) {
  if (finished_) return Received::Closed;
  try {
    if (queued_.load(std::memory_order_seq_cst)) write_queue();
    if (take_frame(frame)) return Received::Frame;
    if (!closed_.load(std::memory_order_seq_cst)) {
      if (reader_.ring().has_bytes() || read_socket()) {
        taken_before_.store(kNobodyWaits, std::memory_order_seq_cst);
        return Received::Nothing;
      }
      peer_ended_ = true;
      end(std::nullopt);
      // What the peer had published before it went is all there now.
      if (take_frame(frame)) return Received::Frame;
    }
    if (reader_.ring().has_bytes()) return Received::Nothing;
    if (peer_ended_ && reader_.in_the_middle()) explain("the peer ended in the middle of a frame");
  } catch (const Error& broken) {
    fail(broken.message());
  } catch (const std::bad_alloc&) {
    fail("no memory for a frame");
  }
  finished_ = true;
  return Received::Closed;
}

// Something is wrong with what the peer sent, perhaps just before it ended.
void ShmLink::fail(const std::string& reason) {
  if (peer_ended_) {
    explain(reason);
  } else {
    end(reason);
  }
}

bool ShmLink::take_frame(wire::InFrame& frame) {
  // Frames that the peer publishes after the end are not wanted.
  if (closed_.load(std::memory_order_seq_cst)) reader_.ring().freeze();
  if (!reader_.read(frame, *this)) return false;
  received_.count(frame.total_bytes());
  return true;
}

Buffer ShmLink::locate(const SegmentEntry& entry) {
  const BlockName name{entry.chunk, entry.block};
  switch (entry.place) {
    case SegmentPlace::InRing:
      return entry.size == 0 ? Buffer() : pool_.take(entry.size);
    case SegmentPlace::InArena:
      // The chunk was sent before the frame, so it is there.
      if (!inbound_.has_chunk(name.chunk)) read_socket();
      return inbound_.take(name, entry.size, pool_);
    case SegmentPlace::HandedBack:
      return outbound_->reclaim(name, entry.size);
  }
  return Buffer();
}

bool ShmLink::read_socket() {
  for (;;) {
    ChunkNote note;
    std::vector<Descriptor> descriptors;
    switch (receive_note(socket_.get(), std::as_writable_bytes(std::span(&note, 1)), descriptors)) {
      case NoteReceived::Nothing:
        return true;
      case NoteReceived::End:
        return false;
      case NoteReceived::Note:
        break;
    }
    if (descriptors.size() != 1) {
      throw Error(ErrorKind::Invalid, "a malformed announcement of shared memory");
    }
    inbound_.add_chunk(note, descriptors.front());
  }
}

bool ShmLink::pending() const {
  if (finished_) return false;
  if (reader_.ring().has_bytes()) return true;
  if (queued_.load(std::memory_order_seq_cst) && !ring_->writer_waits()) return true;
  const std::uint64_t before = taken_before_.load(std::memory_order_seq_cst);
  if (before == kNobodyWaits) return false;
  // The announcement may also be gone because an earlier one was answered late: it is to be made
  // again then.
  return before != ring_->bytes_taken() || !ring_->writer_waits();
}

// ---------------------------------------------------------------------------------- ending

void ShmLink::close() { end(std::nullopt); }

void ShmLink::end(std::optional<std::string> reason) {
  // A process that inherited this link through fork() has no say in it, and the lock may have been
  // inherited in the hands of a thread that does not exist here.
  if (fork_depth() != fork_depth_) return;
  std::vector<Buffer> dropped;
  {
    auto outbox = outbox_.lock();
    if (std::exchange(outbox->closed, true)) return;
    if (reason) *close_reason_.lock() = *reason;
    closed_.store(true, std::memory_order_seq_cst);
    outbox->frames.clear(dropped);
    queued_.store(false, std::memory_order_seq_cst);
    bytes_queued_.store(0, std::memory_order_relaxed);
  }
  outbound_->close();
  // The descriptor stays open for whoever watches it, and reads as ended at both ends.
  ::shutdown(socket_.get(), SHUT_RDWR);
  if (reason) log_end(*reason);
}

// The peer has ended, and now we know that this was not as it should be.
void ShmLink::explain(const std::string& reason) {
  *close_reason_.lock() = reason;
  log_end(reason);
}

void ShmLink::log_end(const std::string& reason) const {
  log::Line(log::Level::Warning, "transport") << "shm link to " << peer_.name << ": " << reason;
}

std::optional<std::string> ShmLink::close_reason() const { return *close_reason_.lock(); }

LinkTraffic ShmLink::traffic() const {
  return {.frames_sent = sent_.frames.load(std::memory_order_relaxed),
          .frames_received = received_.frames.load(std::memory_order_relaxed),
          .bytes_sent = sent_.bytes.load(std::memory_order_relaxed),
          .bytes_received = received_.bytes.load(std::memory_order_relaxed)};
}

LinkStats ShmLink::stats() const {
  LinkStats stats{traffic()};
  {
    auto outbox = outbox_.lock();
    outbox->frames.look_at_reader();
    stats.bytes_queued = outbox->frames.bytes_waiting();
  }
  stats.bytes_shared =
      2 * (kPageBytes + ring_->size()) + outbound_->usage().bytes_mapped + inbound_.bytes_mapped();
  stats.bytes_adopted = inbound_.bytes_adopted();
  return stats;
}

void ShmLink::trim_if_idle() {
  const std::uint64_t placed = outbound_->usage().placed;
  bool trim_arena = false;
  try {
    auto outbox = outbox_.lock();
    if (outbox->closed) return;
    trim_ring(*outbox);
    const bool idle = std::exchange(outbox->placed_then, placed) == placed;
    trim_arena = idle && placed != outbox->placed_at_trim;
    if (trim_arena) outbox->placed_at_trim = placed;
  } catch (const Error& broken) {
    end(broken.message());
    return;
  }
  if (!trim_arena) return;
  try {
    outbound_->trim();
  } catch (const Error& broken) {
    end(broken.message());
  }
}

void ShmLink::trim_ring(Outbox& outbox) {
  RingWriter& ring = outbox.frames.ring();
  const std::uint64_t bytes = ring.bytes_published();
  const bool idle = bytes - std::exchange(outbox.bytes_then, bytes) < kIdleBytes;
  if (!idle || bytes - outbox.bytes_at_trim < kIdleBytes) return;
  if (ring.give_back_memory()) outbox.bytes_at_trim = bytes;
}

}  // namespace hawser::transport::shm
