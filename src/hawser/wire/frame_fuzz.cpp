// Any bytes as a whole frame: it is refused, or it is written back to the same bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "hawser/wire/frame.h"

namespace hawser::wire {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void run(std::span<const std::byte> input) {
  Limits limits;
  limits.max_body_bytes = 4096;
  limits.max_segments = 64;
  limits.max_segment_bytes = 4096;
  limits.max_frame_bytes = 16'384;
  const Result<InFrame> frame = from_bytes(input, limits);
  if (!frame.ok()) return require(frame.error().kind() == ErrorKind::Invalid);
  require(frame.value().total_bytes() == input.size());
  require(input.size() <= limits.max_frame_bytes);

  const InFrame& in = frame.value();
  std::vector<std::byte> again = to_bytes(OutFrame{in.kind, in.body.view(), in.segments});
  again[offsetof(FrameHeader, flags)] = input[offsetof(FrameHeader, flags)];  // of the transport
  require(std::equal(again.begin(), again.end(), input.begin(), input.end()));
}

}  // namespace
}  // namespace hawser::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hawser::wire::run(std::as_bytes(std::span(data, size)));
  return 0;
}
