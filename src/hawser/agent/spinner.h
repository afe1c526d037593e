#pragma once

#include <cstdint>

#include "hawser/base/clock.h"

namespace hawser::agent {

// What a yield of the core was like.
enum class Yielded {
  Empty,      // nobody wanted the core
  Shared,     // somebody ran
  Long,       // for a while
  TimeSlice,  // and did not give it back by himself: there is compute on this core
};
Yielded yield_core();

// For a few cycles, without giving the core away.
void pause_briefly();

// How long the poller looks on before it goes to sleep. Waking a sleeping thread costs 3 to 70 us,
// looking on costs a core; so it looks on for a while after each frame, and stops doing so where
// that does harm. Belongs to the holder of the poll seat.
//
// The loop calls sched_yield: a peer that the kernel put on the same core gets to run at once. It
// does so often where somebody else was found to want the core, and seldom where nobody did.
// Beside compute-bound threads a yield gives away a whole time slice. A yield that took a slice, or
// took long and brought nothing, therefore ends the spinning for a while: for twice as long when it
// happens again soon after. (A peer on the same core that works through a batch makes a yield long
// too, but then there is something to read.) The while is a time, not a number of waits: who waits
// seldom would otherwise pay long for how busy it has been.
class Spinner {
 public:
  explicit Spinner(Duration limit) : limit_(limit) {}

  // A frame came, or a waiter has just sat down.
  void restart() {
    round_ = 0;
    suspects_ = false;
  }
  // The poller was asleep. Whoever woke it may be on the same core, and wants its answer.
  void wake_up() {
    restart();
    rounds_per_yield_ = kFewestRounds;
  }
  // Nothing came. False: go to sleep. What is known to be on its way, or likely to come to who has
  // begun to look by `likely_until`, is worth a longer look.
  bool look_on(bool more_is_coming = false, TimePoint likely_until = TimePoint::min());

 private:
  bool give_up();

  Duration limit_;
  std::uint32_t round_ = 0;
  std::uint32_t next_yield_ = 0;  // in which round
  std::uint32_t rounds_per_yield_ = kFewestRounds;
  TimePoint since_{};
  bool suspects_ = false;  // a yield took long; if it brought nothing, that was harm
  TimePoint banned_until_{};
  Duration next_ban_ = kFirstBan;

  static constexpr int kLongerLook = 6;  // times the limit
  static constexpr std::uint32_t kFewestRounds = 2;
  static constexpr std::uint32_t kMostRounds = 32;
  static constexpr Duration kFirstBan = std::chrono::milliseconds(1);
  static constexpr Duration kLongestBan = std::chrono::milliseconds(200);
  static constexpr Duration kForgiveAfter = std::chrono::milliseconds(20);
};

}  // namespace hawser::agent
