#pragma once

#include <cstddef>

namespace hawser::transport::shm {

// memcpy for blocks of any size. Blocks that are larger than what a cache could keep go past the
// caches: the reader is another core, and what is there would only be pushed out.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

// From here on.
inline constexpr std::size_t kCopyPastCachesFrom = std::size_t{32} << 20;

}  // namespace hawser::transport::shm
