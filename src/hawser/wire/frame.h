#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "hawser/base/buffer.h"
#include "hawser/base/limits.h"
#include "hawser/base/result.h"

namespace hawser::wire {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

// Values of fb::Kind in protocol.fbs; the codec asserts that they agree.
enum class Kind : std::uint8_t {
  None = 0,
  Hello = 1,
  Challenge = 2,
  Proof = 3,
  Welcome = 4,
  Refusal = 5,
  Call = 16,
  Reply = 17,
  Failure = 18,
  Cancel = 19,
  Heartbeat = 32,
  HeartbeatEcho = 33,
  Goodbye = 34,
  Arrival = 48,
  Census = 49,
  CensusReport = 50,
  Dismissal = 51,
  References = 64,
};

std::string_view to_string(Kind kind);
bool is_handshake(Kind kind);
// Whether such a frame may have segments.
bool carries_payload(Kind kind);

// Opens every frame. See protocol.fbs for what follows it.
struct FrameHeader {
  static constexpr std::uint32_t kMagic = 0x52535748;  // "HWSR"

  std::uint32_t magic = kMagic;
  Kind kind = Kind::None;
  std::uint8_t flags = 0;      // of the transport
  std::uint16_t reserved = 0;  // zero
  std::uint32_t body_bytes = 0;
  std::uint32_t segment_count = 0;
  std::uint64_t segment_bytes = 0;  // sum of the segment sizes
};
static_assert(sizeof(FrameHeader) == 24);
static_assert(offsetof(FrameHeader, kind) == 4);
static_assert(offsetof(FrameHeader, body_bytes) == 8);
static_assert(offsetof(FrameHeader, segment_count) == 12);
static_assert(offsetof(FrameHeader, segment_bytes) == 16);
static_assert(std::is_trivially_copyable_v<FrameHeader>);

// Why a header cannot be believed, or nothing. Checked before any memory is taken for the frame.
std::optional<std::string> objection(const FrameHeader& header, const Limits& limits);
// The same for the segment sizes that follow it.
std::optional<std::string> objection(const FrameHeader& header,
                                     std::span<const std::uint64_t> segment_sizes,
                                     const Limits& limits);

// A frame to be sent. The body need only live until send() returns (it is written or copied by
// then); the segments are kept alive by their owners until the last byte is on its way.
struct OutFrame {
  Kind kind = Kind::None;
  std::span<const std::byte> body;
  std::vector<Buffer> segments;

  FrameHeader header() const;
  std::size_t total_bytes() const;
};

// Bytes of a received body, owned by the frame.
class BodyBytes {
 public:
  BodyBytes() = default;
  explicit BodyBytes(std::size_t size)
      : bytes_(size ? new std::byte[size] : nullptr), size_(size) {}
  std::byte* data() { return bytes_.get(); }
  std::span<const std::byte> view() const { return {bytes_.get(), size_}; }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> bytes_;  // new[] aligns to 16, enough for FlatBuffers
  std::size_t size_ = 0;
};

// A frame as received: complete, within the limits, its body not yet verified.
struct InFrame {
  Kind kind = Kind::None;
  BodyBytes body;
  std::vector<Buffer> segments;

  std::size_t total_bytes() const;
};

// A whole frame in one piece of memory, and back. Copies everything: for the handshake, not for
// the data path. from_bytes() takes exactly one frame and says Error(Invalid) to anything else.
std::vector<std::byte> to_bytes(const OutFrame& frame);
Result<InFrame> from_bytes(std::span<const std::byte> bytes, const Limits& limits);

}  // namespace hawser::wire
