#include "hawser/base/event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <utility>

namespace hawser {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void futex_wake_all(std::atomic<std::uint32_t>* word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT32_MAX,
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

thread_local Wakes* collecting = nullptr;

}  // namespace

void Event::set() {
  if (state_.exchange(kHappened, std::memory_order_acq_rel) != kSomebodySleeps) return;
  if (collecting) {
    collecting->add(&state_);
  } else {
    futex_wake_all(&state_);
  }
}

Wakes::Collecting::Collecting(Wakes& wakes) : before_(std::exchange(collecting, &wakes)) {}

Wakes::Collecting::~Collecting() { collecting = before_; }

void Wakes::add(Word word) {
  if (count_ == kMost) wake_all();
  words_[count_++] = word;
}

void Wakes::wake_all() {
  for (std::size_t i = 0; i < count_; ++i) futex_wake_all(words_[i]);
  count_ = 0;
}

bool Event::sleep_until(Deadline deadline) {
  for (;;) {
    std::uint32_t seen = state_.load(std::memory_order_acquire);
    if (seen == kHappened) return true;
    if (!deadline.is_never() && deadline.passed(std::chrono::steady_clock::now())) return false;
    if (seen == kNotYet &&
        !state_.compare_exchange_strong(seen, kSomebodySleeps, std::memory_order_acq_rel)) {
      continue;
    }
    futex_wait(state_, kSomebodySleeps, deadline);
  }
}

}  // namespace hawser
