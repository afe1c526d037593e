#include "hawser/transport/tcp/frame_assembler.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "hawser/base/error.h"

namespace hawser::transport::tcp {
namespace {

constexpr std::size_t kReadBufferBytes = 64 * 1024;
// From here on a read of its own is cheaper than a copy.
constexpr std::size_t kDirectBytes = 16 * 1024;
// One read; keeps a large transfer from holding its thread for long.
constexpr std::size_t kMaxReadBytes = std::size_t{1} << 20;

void insist(const std::optional<std::string>& objection) {
  if (objection) throw Error(ErrorKind::Invalid, *objection);
}

}  // namespace

FrameAssembler::FrameAssembler(BufferPool& pool, const Limits& limits)
    : pool_(pool), limits_(limits), landed_(new std::byte[kReadBufferBytes]) {
  expect(Part::Header, std::as_writable_bytes(std::span(&header_, 1)));
}

std::span<std::byte> FrameAssembler::landing() {
  if (!has_bytes() && missing() >= kDirectBytes) {
    return target_.subspan(filled_, std::min(missing(), kMaxReadBytes));
  }
  return {landed_.get() + to_, kReadBufferBytes - to_};
}

void FrameAssembler::landed(std::size_t bytes) {
  if (!has_bytes() && missing() >= kDirectBytes) {
    filled_ += bytes;
  } else {
    to_ += bytes;
  }
}

bool FrameAssembler::next(wire::InFrame& frame) {
  for (;;) {
    copy_landed();
    if (missing() > 0) return false;
    if (!part_done()) continue;
    frame = std::exchange(frame_, {});
    expect(Part::Header, std::as_writable_bytes(std::span(&header_, 1)));
    return true;
  }
}

void FrameAssembler::abandon() {
  from_ = to_ = 0;
  sizes_ = {};
  frame_ = {};
  expect(Part::Header, std::as_writable_bytes(std::span(&header_, 1)));
}

void FrameAssembler::expect(Part part, std::span<std::byte> target) {
  part_ = part;
  target_ = target;
  filled_ = 0;
}

// The read buffer is empty afterwards or the current part is complete, so it never fills up.
void FrameAssembler::copy_landed() {
  const std::size_t take = std::min(missing(), to_ - from_);
  if (take > 0) std::memcpy(target_.data() + filled_, landed_.get() + from_, take);
  filled_ += take;
  from_ += take;
  if (from_ == to_) from_ = to_ = 0;
}

bool FrameAssembler::part_done() {
  switch (part_) {
    case Part::Header:
      insist(wire::objection(header_, limits_));
      if (wire::is_handshake(header_.kind)) {
        throw Error(ErrorKind::Invalid, "a handshake frame after the handshake");
      }
      frame_.kind = header_.kind;
      sizes_.resize(header_.segment_count);
      expect(Part::Sizes, std::as_writable_bytes(std::span(sizes_)));
      return false;
    case Part::Sizes:
      insist(wire::objection(header_, sizes_, limits_));
      return begin_body();
    case Part::Body:
      frame_.segments.reserve(sizes_.size());
      return begin_next_segment();
    case Part::Segment:
      return begin_next_segment();
  }
  return false;
}

bool FrameAssembler::begin_body() {
  try {
    frame_.body = wire::BodyBytes(header_.body_bytes);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::Overloaded,
                "no memory for a message of " + std::to_string(header_.body_bytes) + " bytes");
  }
  expect(Part::Body, {frame_.body.data(), header_.body_bytes});
  return false;
}

bool FrameAssembler::begin_next_segment() {
  while (frame_.segments.size() < sizes_.size()) {
    const std::size_t size = sizes_[frame_.segments.size()];
    if (size == 0) {
      frame_.segments.emplace_back();
      continue;
    }
    frame_.segments.push_back(pool_.take(size));
    expect(Part::Segment, frame_.segments.back().bytes().first(size));
    return false;
  }
  return true;
}

}  // namespace hawser::transport::tcp
