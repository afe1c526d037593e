#pragma once

#include <cstdint>

#include "hawser/base/clock.h"

namespace hawser::agent {

// How long the poller looks on before it goes to sleep. Waking a sleeping thread costs 3 to 70 us,
// looking on costs a core; so it looks on for a while after each frame, and stops doing so where
// that does harm. Belongs to the holder of the poll seat.
//
// The loop calls sched_yield: a peer that the kernel put on the same core gets to run at once.
// Beside compute-bound threads a yield gives away a whole time slice; the first one that takes long
// ends the spinning for a while, twice as long each time it happens again.
class Spinner {
 public:
  explicit Spinner(Duration limit) : limit_(limit) {}

  // A frame came, or the poller has just sat down.
  void restart() { round_ = 0; }
  // Nothing came. False: go to sleep.
  bool look_on();

 private:
  Duration limit_;
  std::uint32_t round_ = 0;
  TimePoint since_{};
  TimePoint banned_until_{};
  Duration next_ban_ = kFirstBan;

  static constexpr Duration kFirstBan = std::chrono::milliseconds(10);
  static constexpr Duration kLongestBan = std::chrono::seconds(2);
  static constexpr Duration kLongYield = std::chrono::microseconds(50);
  static constexpr Duration kForgiveAfter = std::chrono::seconds(5);
};

}  // namespace hawser::agent
