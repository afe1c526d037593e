#pragma once

#include <algorithm>
#include <atomic>

#include "hawser/base/clock.h"
#include "hawser/base/scheduler.h"

namespace hawser {

// Whether something that is run again and again returns within microseconds, learnt from its runs.
// What it waits for does not count: meanwhile its thread looks after the node's links itself.
// Thread-safe.
class Briefness {
 public:
  // What counts as brief. Frames wait meanwhile, which would cost others a thread to be woken.
  explicit Briefness(Duration brief = std::chrono::microseconds(50)) : brief_(brief) {}

  bool is_brief() const { return slowness_.load(std::memory_order_relaxed) <= kStillBrief; }

  template <class F>
  void run(F work) {
    if (!is_to_be_timed()) return work();
    const Duration waited_before = time_waited();
    const TimePoint started = std::chrono::steady_clock::now();
    work();
    const Duration waited = time_waited() - waited_before;
    learn(std::chrono::steady_clock::now() - started - waited);
  }

 private:
  // A slow run adds kSlowRun, a quick one takes one away. One slow run in many is a thread that
  // lost its core for a moment; two close together are a slow function.
  static constexpr int kSlowRun = 8;
  static constexpr int kStillBrief = 8;
  static constexpr int kSlowest = 24;
  // Looking at the clock costs as much as a brief function: every so many runs of one are timed.
  static constexpr unsigned kRunsPerTiming = 8;

  bool is_to_be_timed() {
    const unsigned run = runs_.load(std::memory_order_relaxed);
    runs_.store(run + 1, std::memory_order_relaxed);
    return !is_brief() || run % kRunsPerTiming == 0;
  }
  void learn(Duration took) {
    const int before = slowness_.load(std::memory_order_relaxed);
    const int after =
        took > brief_ ? std::min(before + kSlowRun, kSlowest) : std::max(before - 1, 0);
    if (after != before) slowness_.store(after, std::memory_order_relaxed);
  }

  const Duration brief_;
  std::atomic<int> slowness_{kStillBrief + 8};  // what is unknown counts as slow
  std::atomic<unsigned> runs_{0};               // roughly: runs at the same time may count as one
};

}  // namespace hawser
