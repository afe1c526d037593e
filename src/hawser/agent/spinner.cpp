#include "hawser/agent/spinner.h"

#include <sched.h>

#include <algorithm>

namespace hawser::agent {
namespace {

constexpr std::uint32_t kPausesPerRound = 8;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool Spinner::look_on() {
  if (limit_ <= Duration::zero()) return false;
  if (round_ == 0) {
    if (waits_off_ > 0) {
      if (--waits_off_ == 0) unbanned_since_ = std::chrono::steady_clock::now();
      return false;
    }
    since_ = std::chrono::steady_clock::now();
    next_yield_ = rounds_per_yield_;
  }
  if (suspects_) return give_up(std::chrono::steady_clock::now());
  for (std::uint32_t i = 0; i < kPausesPerRound; ++i) pause_briefly();
  if (++round_ < next_yield_) return true;

  const TimePoint before = std::chrono::steady_clock::now();
  if (before - since_ > limit_) {
    round_ = 0;
    return false;
  }
  ::sched_yield();
  const TimePoint after = std::chrono::steady_clock::now();
  const Duration yielded = after - before;
  if (yielded > kTimeSlice) return give_up(after);
  rounds_per_yield_ =
      yielded > kEmptyYield ? kFewestRounds : std::min(2 * rounds_per_yield_, kMostRounds);
  next_yield_ = round_ + rounds_per_yield_;
  suspects_ = yielded > kLongYield;
  return true;
}

bool Spinner::give_up(TimePoint now) {
  if (now - unbanned_since_ > kForgiveAfter) next_ban_ = kFirstBan;
  waits_off_ = next_ban_;
  next_ban_ = std::min(2 * next_ban_, kLongestBan);
  round_ = 0;
  suspects_ = false;
  return false;
}

}  // namespace hawser::agent
