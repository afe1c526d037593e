#include "hawser/transport/shm/copy_bytes.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hawser::transport::shm {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kLine = 64;

__attribute__((target("avx512f"))) void copy_lines_avx512(std::byte* to, const std::byte* from,
                                                          std::size_t lines) {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) void copy_lines_avx2(std::byte* to, const std::byte* from,
                                                     std::size_t lines) {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    const auto* source = reinterpret_cast<const __m256i*>(from);
    auto* target = reinterpret_cast<__m256i*>(to);
    _mm256_stream_si256(target, _mm256_loadu_si256(source));
    _mm256_stream_si256(target + 1, _mm256_loadu_si256(source + 1));
  }
  _mm_sfence();
}

using CopyLines = void (*)(std::byte*, const std::byte*, std::size_t);

CopyLines copy_lines_of_this_cpu() {
  if (__builtin_cpu_supports("avx512f")) return &copy_lines_avx512;
  if (__builtin_cpu_supports("avx2")) return &copy_lines_avx2;
  return nullptr;
}

// False when this CPU has no means to.
bool copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  static const CopyLines copy_lines = copy_lines_of_this_cpu();
  if (!copy_lines) return false;
  const std::size_t before = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t lines = (bytes - before) / kLine;
  const std::size_t covered = before + lines * kLine;
  std::memcpy(to, from, before);
  copy_lines(to + before, from + before, lines);
  std::memcpy(to + covered, from + covered, bytes - covered);
  return true;
}

#else

bool copy_past_caches(std::byte*, const std::byte*, std::size_t) { return false; }

#endif

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes >= kCopyPastCachesFrom && copy_past_caches(to, from, bytes)) return;
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace hawser::transport::shm
