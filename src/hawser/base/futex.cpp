#include "hawser/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace hawser {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void futex_wake(std::atomic<std::uint32_t>* word, int how_many) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), FUTEX_WAKE_PRIVATE, how_many,
            nullptr, nullptr, 0);
}

// Against an absolute time of CLOCK_MONOTONIC, which is what std::chrono::steady_clock reads.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline deadline) {
  timespec at{};
  if (!deadline.is_never()) {
    const auto since_epoch = deadline.at().time_since_epoch().count();
    at.tv_sec = static_cast<time_t>(since_epoch / 1'000'000'000);
    at.tv_nsec = static_cast<long>(since_epoch % 1'000'000'000);
  }
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_BITSET_PRIVATE, expected,
            deadline.is_never() ? nullptr : &at, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace hawser
