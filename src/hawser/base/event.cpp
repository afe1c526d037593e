#include "hawser/base/event.h"

#include <climits>
#include <utility>

#include "hawser/base/futex.h"

namespace hawser {
namespace {

thread_local Wakes* collecting = nullptr;

}  // namespace

void Event::set() {
  if (state_.exchange(kHappened, std::memory_order_acq_rel) != kSomebodySleeps) return;
  if (collecting) {
    collecting->add(&state_);
  } else {
    futex_wake(&state_, INT_MAX);
  }
}

Wakes::Collecting::Collecting(Wakes& wakes) : before_(std::exchange(collecting, &wakes)) {}

Wakes::Collecting::~Collecting() { collecting = before_; }

void Wakes::add(Word word) {
  if (count_ == kMost) wake_all();
  words_[count_++] = word;
}

void Wakes::wake_all() {
  for (std::size_t i = 0; i < count_; ++i) futex_wake(words_[i], INT_MAX);
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
