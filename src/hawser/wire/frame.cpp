#include "hawser/wire/frame.h"

#include <cstring>
#include <limits>

namespace hawser::wire {
namespace {

// FlatBuffers offsets are 31 bits wide, whatever a node's limits allow.
constexpr std::size_t kLargestBody = std::numeric_limits<std::int32_t>::max();

std::string exceeds(std::string_view what, std::uint64_t claimed, std::uint64_t limit) {
  return std::string(what) + ": " + std::to_string(claimed) + ", the limit is " +
         std::to_string(limit);
}

std::size_t frame_bytes(std::size_t body, const std::vector<Buffer>& segments) {
  std::size_t total = sizeof(FrameHeader) + body;
  for (const Buffer& segment : segments) total += sizeof(std::uint64_t) + segment.size();
  return total;
}

std::optional<std::string> handshake_objection(const FrameHeader& header, const Limits& limits) {
  if (header.segment_count != 0) return "a handshake frame has no segments";
  if (sizeof header + header.body_bytes > limits.max_handshake_bytes) {
    return exceeds("bytes in a handshake frame", sizeof header + header.body_bytes,
                   limits.max_handshake_bytes);
  }
  return std::nullopt;
}

// Reads a whole frame from one piece of memory, front to back.
class FrameParser {
 public:
  explicit FrameParser(std::span<const std::byte> bytes) : rest_(bytes) {}

  void copy(void* to, std::size_t size) {
    if (size > rest_.size()) {
      throw Error(ErrorKind::Invalid,
                  "the frame ends " + std::to_string(size - rest_.size()) + " bytes early");
    }
    if (size > 0) std::memcpy(to, rest_.data(), size);
    rest_ = rest_.subspan(size);
  }
  std::size_t remaining() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

void refuse_if(const std::optional<std::string>& objection) {
  if (objection) throw Error(ErrorKind::Invalid, *objection);
}

InFrame parse(std::span<const std::byte> bytes, const Limits& limits) {
  FrameParser parser(bytes);
  FrameHeader header;
  parser.copy(&header, sizeof header);
  refuse_if(objection(header, limits));
  // What is there bounds what is taken: nothing is allocated for bytes that are only claimed.
  const std::uint64_t expected = std::uint64_t{header.segment_count} * sizeof(std::uint64_t) +
                                 header.body_bytes + header.segment_bytes;
  if (parser.remaining() != expected) {
    throw Error(ErrorKind::Invalid, std::to_string(parser.remaining()) +
                                        " bytes follow the header, it announces " +
                                        std::to_string(expected));
  }
  std::vector<std::uint64_t> sizes(header.segment_count);
  parser.copy(sizes.data(), sizes.size() * sizeof(std::uint64_t));
  refuse_if(objection(header, sizes, limits));

  InFrame frame{header.kind, BodyBytes(header.body_bytes), {}};
  parser.copy(frame.body.data(), header.body_bytes);
  frame.segments.reserve(sizes.size());
  for (const std::uint64_t size : sizes) {
    std::shared_ptr<std::byte[]> copy(new std::byte[size]);
    parser.copy(copy.get(), size);
    frame.segments.emplace_back(copy.get(), size, copy);
  }
  return frame;
}

}  // namespace

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::None:
      return "None";
    case Kind::Hello:
      return "Hello";
    case Kind::Challenge:
      return "Challenge";
    case Kind::Proof:
      return "Proof";
    case Kind::Welcome:
      return "Welcome";
    case Kind::Refusal:
      return "Refusal";
    case Kind::Call:
      return "Call";
    case Kind::Reply:
      return "Reply";
    case Kind::Failure:
      return "Failure";
    case Kind::Cancel:
      return "Cancel";
    case Kind::Heartbeat:
      return "Heartbeat";
    case Kind::HeartbeatEcho:
      return "HeartbeatEcho";
    case Kind::Goodbye:
      return "Goodbye";
    case Kind::Arrival:
      return "Arrival";
    case Kind::Census:
      return "Census";
    case Kind::CensusReport:
      return "CensusReport";
    case Kind::Dismissal:
      return "Dismissal";
    case Kind::References:
      return "References";
  }
  return "unknown";
}

bool is_handshake(Kind kind) { return kind >= Kind::Hello && kind <= Kind::Refusal; }

bool carries_payload(Kind kind) {
  return kind == Kind::Call || kind == Kind::Reply || kind == Kind::Failure;
}

std::optional<std::string> objection(const FrameHeader& header, const Limits& limits) {
  if (header.magic != FrameHeader::kMagic) return "this is not a hawser frame";
  if (header.kind == Kind::None || to_string(header.kind) == "unknown") {
    return "frames of kind " + std::to_string(static_cast<unsigned>(header.kind)) + " do not exist";
  }
  if (header.reserved != 0) return "reserved bits of the frame header are set";
  if (header.body_bytes == 0) return "the frame has no body";
  if (header.segment_count == 0 && header.segment_bytes != 0) {
    return "the frame header announces bytes of segments that it does not have";
  }
  if (is_handshake(header.kind)) return handshake_objection(header, limits);
  if (header.segment_count != 0 && !carries_payload(header.kind)) {
    return std::string(to_string(header.kind)) + " frames have no segments";
  }
  const std::size_t largest_body = std::min(limits.max_body_bytes, kLargestBody);
  if (header.body_bytes > largest_body) {
    return exceeds("body bytes", header.body_bytes, largest_body);
  }
  if (header.segment_count > limits.max_segments) {
    return exceeds("segments", header.segment_count, limits.max_segments);
  }
  const std::uint64_t overhead =
      sizeof header + header.body_bytes + header.segment_count * sizeof(std::uint64_t);
  if (overhead > limits.max_frame_bytes ||
      header.segment_bytes > limits.max_frame_bytes - overhead) {
    return exceeds("segment bytes", header.segment_bytes, limits.max_frame_bytes);
  }
  return std::nullopt;
}

std::optional<std::string> objection(const FrameHeader& header,
                                     std::span<const std::uint64_t> segment_sizes,
                                     const Limits& limits) {
  if (segment_sizes.size() != header.segment_count) {
    return std::to_string(segment_sizes.size()) + " segment sizes for " +
           std::to_string(header.segment_count) + " segments";
  }
  std::uint64_t left = header.segment_bytes;
  for (const std::uint64_t size : segment_sizes) {
    if (size > limits.max_segment_bytes) {
      return exceeds("bytes in one segment", size, limits.max_segment_bytes);
    }
    if (size > left) return "the segments are larger than the frame header announces";
    left -= size;
  }
  if (left != 0) return "the segments are smaller than the frame header announces";
  return std::nullopt;
}

FrameHeader OutFrame::header() const {
  FrameHeader header;
  header.kind = kind;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  header.segment_count = static_cast<std::uint32_t>(segments.size());
  for (const Buffer& segment : segments) header.segment_bytes += segment.size();
  return header;
}

std::size_t OutFrame::total_bytes() const { return frame_bytes(body.size(), segments); }

std::size_t InFrame::total_bytes() const { return frame_bytes(body.size(), segments); }

std::vector<std::byte> to_bytes(const OutFrame& frame) {
  std::vector<std::byte> bytes;
  bytes.reserve(frame.total_bytes());
  const auto append = [&bytes](const void* from, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), first, first + size);
  };
  const FrameHeader header = frame.header();
  append(&header, sizeof header);
  for (const Buffer& segment : frame.segments) {
    const std::uint64_t size = segment.size();
    append(&size, sizeof size);
  }
  append(frame.body.data(), frame.body.size());
  for (const Buffer& segment : frame.segments) append(segment.data(), segment.size());
  return bytes;
}

Result<InFrame> from_bytes(std::span<const std::byte> bytes, const Limits& limits) {
  try {
    return parse(bytes, limits);
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace hawser::wire
