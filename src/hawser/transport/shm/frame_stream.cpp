#include "hawser/transport/shm/frame_stream.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "hawser/base/error.h"

namespace hawser::transport::shm {
namespace {

// The other end can work on one piece while the next is copied.
constexpr std::size_t kPieceBytes = std::size_t{32} << 10;

constexpr std::size_t padding_of(std::size_t bytes) { return (8 - bytes % 8) % 8; }

std::byte* append(std::byte* at, std::span<const std::byte> bytes) {
  if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
  return at + bytes.size();
}

std::byte* append_opening(std::byte* at, const wire::OutFrame& frame,
                          std::span<const SegmentEntry> entries) {
  const wire::FrameHeader header = frame.header();
  at = append(at, std::as_bytes(std::span(&header, 1)));
  at = append(at, std::as_bytes(entries));
  return append(at, frame.body);
}

std::size_t opening_bytes(const wire::OutFrame& frame) {
  return sizeof(wire::FrameHeader) + frame.segments.size() * sizeof(SegmentEntry) +
         frame.body.size();
}

std::size_t lent_bytes(std::span<const SegmentEntry> entries) {
  std::size_t bytes = 0;
  for (const SegmentEntry& entry : entries) {
    if (entry.place == SegmentPlace::InArena) bytes += entry.size;
  }
  return bytes;
}

}  // namespace

// ---------------------------------------------------------------------------------- writer

bool FrameWriter::write(const wire::OutFrame& frame, std::span<const SegmentEntry> entries) {
  if (!queue_.empty()) return false;
  std::size_t bytes = opening_bytes(frame);
  for (const SegmentEntry& entry : entries) {
    if (entry.place == SegmentPlace::InRing) bytes += entry.size;
  }
  const std::size_t padding = padding_of(bytes);
  bytes += padding;
  if (ring_.room(bytes) < bytes) return false;

  std::byte* at = append_opening(ring_.at(), frame, entries);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].place == SegmentPlace::InRing) at = append(at, frame.segments[i].bytes());
  }
  std::memset(at, 0, padding);
  ring_.publish(bytes);
  if (const std::size_t lent = lent_bytes(entries); lent > 0) {
    look_at_reader();
    bytes_lent_ += lent;
    unread_.push_back({ring_.bytes_published(), lent});
  }
  return true;
}

// A reader that lies here deceives nobody but itself: it could as well have taken the bytes.
void FrameWriter::look_at_reader() {
  const std::uint64_t taken = ring_.memory()->bytes_taken();
  for (; !unread_.empty() && unread_.front().end <= taken; unread_.pop_front()) {
    bytes_lent_ -= unread_.front().lent;
  }
}

void FrameWriter::enqueue(wire::OutFrame&& frame, std::span<const SegmentEntry> entries) {
  Queued queued;
  queued.opening.resize(opening_bytes(frame));
  append_opening(queued.opening.data(), frame, entries);
  std::size_t bytes = queued.opening.size();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].place != SegmentPlace::InRing || entries[i].size == 0) continue;
    bytes += entries[i].size;
    queued.segments.push_back(std::move(frame.segments[i]));
  }
  queued.padding = padding_of(bytes);
  queued.lent = lent_bytes(entries);
  bytes_queued_ += bytes + queued.padding;
  bytes_lent_ += queued.lent;
  queue_.push_back(std::move(queued));
}

std::span<const std::byte> FrameWriter::rest_of_part(const Queued& frame) {
  static constexpr std::byte kZeroes[8]{};
  std::span<const std::byte> part(kZeroes, frame.padding);
  if (frame.part == 0) {
    part = frame.opening;
  } else if (frame.part <= frame.segments.size()) {
    part = frame.segments[frame.part - 1].bytes();
  }
  return part.subspan(frame.written);
}

// True when the frame is written completely.
bool FrameWriter::copy_pieces(Queued& frame, std::vector<Buffer>& done, bool& published) {
  while (frame.part <= frame.segments.size() + 1) {
    const auto rest = rest_of_part(frame);
    const std::size_t piece = std::min({rest.size(), kPieceBytes, ring_.room(kPieceBytes)});
    if (piece == 0 && !rest.empty()) return false;
    if (piece > 0) {
      std::memcpy(ring_.at(), rest.data(), piece);
      ring_.publish(piece);
      published = true;
      bytes_queued_ -= piece;
      frame.written += piece;
    }
    if (piece < rest.size()) continue;
    const bool was_segment = frame.part > 0 && frame.part <= frame.segments.size();
    if (was_segment) done.push_back(std::move(frame.segments[frame.part - 1]));
    ++frame.part;
    frame.written = 0;
  }
  return true;
}

bool FrameWriter::write_on(std::vector<Buffer>& done) {
  bool published = false;
  while (!queue_.empty()) {
    if (copy_pieces(queue_.front(), done, published)) {
      const std::size_t lent = queue_.front().lent;
      if (lent > 0) unread_.push_back({ring_.bytes_published(), lent});
      queue_.pop_front();
    } else if (!ring_.await_space()) {
      break;
    }
  }
  return published;
}

void FrameWriter::clear(std::vector<Buffer>& done) {
  for (Queued& frame : queue_) {
    for (Buffer& segment : frame.segments) done.push_back(std::move(segment));
  }
  queue_.clear();
  unread_.clear();
  bytes_queued_ = bytes_lent_ = 0;
}

// ---------------------------------------------------------------------------------- reader

bool FrameReader::read(wire::InFrame& frame, SegmentSource& source) {
  std::size_t available = ring_.available();
  if (!in_the_middle() && read_small_frame(frame, available)) return true;
  bool complete = false;
  while (!complete && fill_part(available)) complete = next_part(source);
  if (std::exchange(unpublished_, 0) > 0) ring_.publish();
  if (!complete) return false;
  frame = std::exchange(frame_, {});
  return true;
}

// What nearly all calls are: a frame that is all there, without segments.
bool FrameReader::read_small_frame(wire::InFrame& frame, std::size_t available) {
  if (available < sizeof header_) return false;
  wire::FrameHeader header;
  std::memcpy(&header, ring_.at(), sizeof header);
  const std::size_t bytes = sizeof header + header.body_bytes;
  const std::size_t padded = bytes + padding_of(bytes);
  if (header.segment_count != 0 || available < padded) return false;
  header_ = header;
  check_header();
  frame.kind = header.kind;
  frame.segments.clear();
  frame.body = wire::BodyBytes(header.body_bytes);
  if (header.body_bytes > 0) {
    std::memcpy(frame.body.data(), ring_.at() + sizeof header, header.body_bytes);
  }
  ring_.take(padded);
  ring_.publish();
  return true;
}

// Copies from the ring into the current part; true when that is complete.
bool FrameReader::fill_part(std::size_t& available) {
  while (filled_ < target_.size()) {
    const std::size_t piece = std::min({available, target_.size() - filled_, kPieceBytes});
    if (piece == 0) return false;
    std::memcpy(target_.data() + filled_, ring_.at(), piece);
    filled_ += piece;
    frame_bytes_ += piece;
    available -= piece;
    ring_.take(piece);
    unpublished_ += piece;
    if (unpublished_ >= kPieceBytes) {
      unpublished_ = 0;
      ring_.publish();
    }
  }
  return true;
}

void FrameReader::start_part(Part part, std::span<std::byte> target) {
  part_ = part;
  target_ = target;
  filled_ = 0;
}

bool FrameReader::next_part(SegmentSource& source) {
  switch (part_) {
    case Part::Header:
      check_header();
      frame_.kind = header_.kind;
      entries_.resize(header_.segment_count);
      start_part(Part::Entries, std::as_writable_bytes(std::span(entries_)));
      return false;
    case Part::Entries:
      check_entries();
      frame_.segments.reserve(entries_.size());
      frame_.body = wire::BodyBytes(header_.body_bytes);
      start_part(Part::Body, {frame_.body.data(), frame_.body.size()});
      return false;
    case Part::Body:
    case Part::Segment:
      next_segment(source);
      return false;
    case Part::Padding:
      start_part(Part::Header, std::as_writable_bytes(std::span(&header_, 1)));
      frame_bytes_ = 0;
      return true;
  }
  return false;
}

void FrameReader::next_segment(SegmentSource& source) {
  while (frame_.segments.size() < entries_.size()) {
    const SegmentEntry& entry = entries_[frame_.segments.size()];
    frame_.segments.push_back(source.locate(entry));
    if (entry.place == SegmentPlace::InRing && entry.size > 0) {
      start_part(Part::Segment, frame_.segments.back().bytes());
      return;
    }
  }
  start_part(Part::Padding, std::span(padding_).first(padding_of(frame_bytes_)));
}

void FrameReader::check_header() {
  auto why = wire::objection(header_, limits_);
  if (!why && header_.flags != 0) why = "a frame with unknown flags";
  if (why) throw Error(ErrorKind::Invalid, *why);
}

void FrameReader::check_entries() {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(entries_.size());
  for (const SegmentEntry& entry : entries_) {
    if (entry.place > SegmentPlace::HandedBack || entry.reserved != 0) {
      throw Error(ErrorKind::Invalid, "a segment in an unknown place");
    }
    sizes.push_back(entry.size);
  }
  if (const auto why = wire::objection(header_, sizes, limits_)) {
    throw Error(ErrorKind::Invalid, *why);
  }
}

}  // namespace hawser::transport::shm
