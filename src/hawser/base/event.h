#pragma once

#include <atomic>
#include <cstdint>

#include "hawser/base/clock.h"

namespace hawser {

// Happens once. A thread that finds it has not happened yet can sleep until it does.
class Event {
 public:
  bool happened() const { return state_.load(std::memory_order_acquire) == kHappened; }

  // What was written before set() is visible to whoever saw it happen. Does not touch the event
  // after waking its sleepers, so a waiter may destroy what contains it.
  void set();

  // False when the deadline passed first.
  bool sleep_until(Deadline deadline);

 private:
  static constexpr std::uint32_t kNotYet = 0;
  static constexpr std::uint32_t kHappened = 1;
  static constexpr std::uint32_t kSomebodySleeps = 2;
  std::atomic<std::uint32_t> state_{kNotYet};
};

}  // namespace hawser
