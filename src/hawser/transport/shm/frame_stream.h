#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <type_traits>
#include <vector>

#include "hawser/base/limits.h"
#include "hawser/transport/shm/ring.h"
#include "hawser/wire/frame.h"

// Frames in the stream of bytes that a ring is.
//
//     FrameHeader      24 bytes; flags and reserved are zero
//     SegmentEntry     16 bytes each, one for each segment: its size and where it is
//     body             as long as the header says
//     segments         those whose entry says InRing, in order
//     padding          zeroes, up to a multiple of 8
//
// A frame that fits into the room there is gets written and published in one go; the rest is queued
// and goes in pieces as the reader makes room, so a frame may be larger than the ring.
namespace hawser::transport::shm {

enum class SegmentPlace : std::uint8_t {
  InRing = 0,      // follows the body
  InArena = 1,     // a block of the sender's arena, lent to the receiver
  HandedBack = 2,  // a block of the receiver's own arena, no longer used by the sender
};

struct SegmentEntry {
  std::uint64_t size = 0;
  std::uint32_t block = 0;  // first unit of the block in its chunk
  std::uint16_t chunk = 0;
  SegmentPlace place = SegmentPlace::InRing;
  std::uint8_t reserved = 0;
};
static_assert(sizeof(SegmentEntry) == 16);
static_assert(offsetof(SegmentEntry, place) == 14);
static_assert(std::is_trivially_copyable_v<SegmentEntry>);

// The sending end. Used under the link's send lock.
class FrameWriter {
 public:
  explicit FrameWriter(RingWriter ring) : ring_(std::move(ring)) {}

  // Writes the whole frame now; false if something is queued or there is not enough room. `entries`
  // has one entry for each segment.
  bool write(const wire::OutFrame& frame, std::span<const SegmentEntry> entries);
  // Copies the body, keeps the segments that go through the ring. Call write_on() next.
  void enqueue(wire::OutFrame&& frame, std::span<const SegmentEntry> entries);
  // Writes as much of the queue as there is room for; true when it published something. Segments
  // that are written completely are moved to `done`, to be let go of outside the lock. When the
  // queue is not empty afterwards, the ring's reader will ring as soon as there is room.
  bool write_on(std::vector<Buffer>& done);
  // Drops the queue.
  void clear(std::vector<Buffer>& done);

  bool queue_empty() const { return queue_.empty(); }
  // Bytes in the queue, and in blocks of the arena whose frames the reader has not taken. What it
  // has taken since the last look_at_reader() or write() is still among them.
  std::size_t bytes_waiting() const { return bytes_queued_ + bytes_lent_; }
  void look_at_reader();
  RingWriter& ring() { return ring_; }
  const RingWriter& ring() const { return ring_; }

 private:
  struct Queued {
    std::vector<std::byte> opening;  // header, entries, body
    std::vector<Buffer> segments;    // that go through the ring
    std::size_t padding = 0;
    std::size_t lent = 0;     // bytes in the arena
    std::size_t part = 0;     // 0: opening, i: segments[i - 1], then padding
    std::size_t written = 0;  // of that part
  };
  // A frame in the ring that names blocks of the arena.
  struct Unread {
    std::uint64_t end = 0;  // bytes_published() with it
    std::size_t lent = 0;
  };
  static std::span<const std::byte> rest_of_part(const Queued& frame);
  bool copy_pieces(Queued& frame, std::vector<Buffer>& done, bool& published);

  RingWriter ring_;
  std::deque<Queued> queue_;
  std::size_t bytes_queued_ = 0;  // that are to go through the ring
  std::deque<Unread> unread_;
  std::size_t bytes_lent_ = 0;  // by frames in the queue and unread ones
};

// Where a received segment is, or is to be put. Throws Error to refuse it, which closes the link.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // For InRing: memory of this size to copy it to. Otherwise: the segment itself.
  virtual Buffer locate(const SegmentEntry& entry) = 0;
};

// The receiving end. Used by the holder of the poll seat. Everything is copied out of the ring
// before it is looked at, and nothing is read twice: the peer can still write there.
class FrameReader {
 public:
  FrameReader(RingReader ring, const Limits& limits) : ring_(std::move(ring)), limits_(limits) {}
  FrameReader(const FrameReader&) = delete;

  // True when `frame` was filled; false when there is no complete frame yet. Takes at most what is
  // in the ring at the start. Throws Error(Invalid) for what is malformed, and what `source`
  // throws; the reader must not be used after that.
  bool read(wire::InFrame& frame, SegmentSource& source);

  bool in_the_middle() const { return part_ != Part::Header || filled_ != 0; }
  RingReader& ring() { return ring_; }
  const RingReader& ring() const { return ring_; }

 private:
  enum class Part { Header, Entries, Body, Segment, Padding };

  bool read_small_frame(wire::InFrame& frame, std::size_t available);
  bool fill_part(std::size_t& available);
  // The current part is complete: what comes next. True when the frame is complete.
  bool next_part(SegmentSource& source);
  void check_header();
  void check_entries();
  // Goes to the next segment that comes through the ring, or to the padding.
  void next_segment(SegmentSource& source);
  void start_part(Part part, std::span<std::byte> target);

  RingReader ring_;
  const Limits limits_;

  Part part_ = Part::Header;
  wire::FrameHeader header_;
  std::span<std::byte> target_ = std::as_writable_bytes(std::span(&header_, 1));
  std::size_t filled_ = 0;  // of target_
  std::size_t unpublished_ = 0;
  std::size_t frame_bytes_ = 0;  // that went through the ring
  std::vector<SegmentEntry> entries_;
  std::byte padding_[8];
  wire::InFrame frame_;
};

}  // namespace hawser::transport::shm
