#include "hawser/base/process_forks.h"

#include <pthread.h>

#include <atomic>

namespace hawser {
namespace {

std::atomic<std::uint64_t> forks{0};
std::atomic<std::uint64_t> depth{0};

void count_forks() {
  // The first before the fork, so that both processes see the new number from their first
  // instruction on.
  static const int registered =
      ::pthread_atfork([] { forks.fetch_add(1, std::memory_order_relaxed); }, nullptr,
                       [] { depth.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

}  // namespace

std::uint64_t process_forks() {
  count_forks();
  return forks.load(std::memory_order_relaxed);
}

std::uint64_t fork_depth() {
  count_forks();
  return depth.load(std::memory_order_relaxed);
}

}  // namespace hawser
