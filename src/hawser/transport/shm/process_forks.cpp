#include "hawser/transport/shm/process_forks.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace hawser::transport::shm {
namespace {

std::atomic<std::uint64_t> fork_count{0};

// Before the fork, so that both processes see the new number from their first instruction on.
void count_fork() { fork_count.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::uint64_t process_forks() {
  static const int registered = ::pthread_atfork(&count_fork, nullptr, nullptr);
  static_cast<void>(registered);
  return fork_count.load(std::memory_order_relaxed);
}

bool is_this_process(int pid) { return ::getpid() == pid; }

}  // namespace hawser::transport::shm
