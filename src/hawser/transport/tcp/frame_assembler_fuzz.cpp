// Whatever bytes arrive and however they are cut, the assembler makes frames of them or says
// Invalid, and its frames do not depend on the cutting. The first byte of the input chooses the
// piece size.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "hawser/base/error.h"
#include "hawser/transport/tcp/frame_assembler.h"

namespace {

using namespace hawser;
using transport::tcp::FrameAssembler;

Limits small_limits() {
  Limits limits;
  limits.max_body_bytes = 100'000;
  limits.max_segments = 100;
  limits.max_segment_bytes = 200'000;
  limits.max_frame_bytes = 300'000;
  return limits;
}

// The sizes of all frames, and whether the bytes ended in an error.
std::vector<std::size_t> assemble(std::span<const std::byte> input, std::size_t piece) {
  BufferPool pool(0);
  FrameAssembler assembler(pool, small_limits());
  std::vector<std::size_t> seen;
  try {
    for (wire::InFrame frame;;) {
      while (assembler.next(frame)) seen.push_back(frame.total_bytes());
      if (input.empty()) return seen;
      const auto landing = assembler.landing();
      const std::size_t take = std::min({landing.size(), piece, input.size()});
      if (take == 0) std::abort();
      std::memcpy(landing.data(), input.data(), take);
      assembler.landed(take);
      input = input.subspan(take);
      if (pool.usage().bytes_lent > 1'000'000) std::abort();
    }
  } catch (const Error& malformed) {
    if (malformed.kind() != ErrorKind::Invalid) std::abort();
    seen.push_back(0);
    return seen;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  if (assemble(input, 1 + data[0] * 17u) != assemble(input, input.size())) std::abort();
  return 0;
}
