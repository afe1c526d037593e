#include "hawser/transport/descriptor.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace hawser::transport {
namespace {

// One bit per descriptor number. Lock-free, because at fork() any lock may be held by a thread that
// does not exist in the child. Numbers beyond the table are left to the kernel's own limits.
constexpr int kTableSize = 1 << 17;
std::array<std::atomic<std::uint64_t>, kTableSize / 64> table;

void close_registered() {
  for (std::size_t word = 0; word < table.size(); ++word) {
    for (std::uint64_t bits = table[word].exchange(0); bits != 0; bits &= bits - 1) {
      ::close(static_cast<int>(word * 64) + std::countr_zero(bits));
    }
  }
}

}  // namespace

void close_in_children(int fd) {
  // Registered with the first descriptor: loading the library does nothing.
  static const int registered = ::pthread_atfork(nullptr, nullptr, &close_registered);
  static_cast<void>(registered);
  if (fd < kTableSize) table[static_cast<std::size_t>(fd) / 64] |= std::uint64_t{1} << (fd % 64);
}

bool keep_in_children(int fd) {
  if (fd >= kTableSize) return true;
  const std::uint64_t bit = std::uint64_t{1} << (fd % 64);
  return (table[static_cast<std::size_t>(fd) / 64].fetch_and(~bit) & bit) != 0;
}

}  // namespace hawser::transport
