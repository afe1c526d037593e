// Whatever a peer writes into the ring, and however it comes, the reader makes frames of it or says
// Invalid; its frames do not depend on the cutting, and no segment lies outside of what is shared.
// There is one chunk of the peer's arena, and one block of our own is lent to it. The first byte of
// the input chooses the piece size.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "hawser/base/buffer_pool.h"
#include "hawser/base/error.h"
#include "hawser/transport/shm/adoption.h"
#include "hawser/transport/shm/frame_stream.h"

namespace {

using namespace hawser;
using namespace hawser::transport::shm;

constexpr std::uint32_t kUnits = 2;
constexpr std::size_t kArenaLimit = std::size_t{1} << 20;

Limits small_limits() {
  Limits limits;
  limits.max_body_bytes = 100'000;
  limits.max_segments = 100;
  limits.max_segment_bytes = 200'000;
  limits.max_frame_bytes = 300'000;
  return limits;
}

// As a link does.
class Segments final : public SegmentSource {
 public:
  Segments()
      : inbound_(kArenaLimit, kUnitBytes),
        outbound_(std::make_shared<OutboundArena>(
            kArenaLimit, kUnits * kUnitBytes,
            [](const ChunkNote&, const transport::Descriptor&) { return true; })) {
    const auto memory = create_sealed_memory("fuzz", Chunk::total_bytes(kUnits));
    ChunkNote note;
    note.units = kUnits;
    inbound_.add_chunk(note, memory);
    const std::array<std::byte, 100> lent{};
    if (!outbound_->place(lent)) std::abort();
  }

  Buffer locate(const SegmentEntry& entry) override {
    const BlockName name{entry.chunk, entry.block};
    switch (entry.place) {
      case SegmentPlace::InRing:
        return entry.size == 0 ? Buffer() : pool_.take(entry.size);
      case SegmentPlace::InArena:
        return inbound_.take(name, entry.size, pool_);
      case SegmentPlace::HandedBack:
        return outbound_->reclaim(name, entry.size);
    }
    std::abort();  // the reader lets no other place through
  }
  std::size_t bytes_taken() const { return pool_.usage().bytes_lent + inbound_.bytes_adopted(); }

 private:
  BufferPool pool_{0};
  InboundArena inbound_;
  std::shared_ptr<OutboundArena> outbound_;
};

// The sizes of all segments and frames, and whether the bytes ended in an error.
std::vector<std::size_t> read_all(std::span<const std::byte> input, std::size_t piece) {
  transport::Descriptor descriptor;
  const auto memory = RingMemory::create(RingMemory::kSmallest, descriptor);
  RingWriter writer(memory);
  FrameReader reader(RingReader(memory, nullptr), small_limits());
  Segments segments;
  std::vector<std::size_t> seen;
  unsigned sum = 0;
  try {
    for (wire::InFrame frame;;) {
      while (reader.read(frame, segments)) {
        for (const Buffer& segment : frame.segments) {
          seen.push_back(segment.size());
          for (const std::byte each : segment.bytes()) sum += static_cast<unsigned>(each);
        }
        seen.push_back(frame.total_bytes());
        frame = {};
      }
      if (segments.bytes_taken() > 1'000'000) std::abort();
      if (input.empty()) break;
      const std::size_t take = std::min({writer.room(piece), piece, input.size()});
      if (take == 0) std::abort();  // a reader that waits for more has taken what there was
      std::memcpy(writer.at(), input.data(), take);
      writer.publish(take);
      input = input.subspan(take);
    }
  } catch (const Error& malformed) {
    if (malformed.kind() != ErrorKind::Invalid) std::abort();
    seen.push_back(0);
  }
  seen.push_back(sum);
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  const std::size_t piece = 1 + data[0] * 15u;
  if (read_all(input, piece) != read_all(input, RingMemory::kSmallest)) std::abort();
  return 0;
}
