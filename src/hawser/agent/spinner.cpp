#include "hawser/agent/spinner.h"

#include <sched.h>

#include <algorithm>

namespace hawser::agent {
namespace {

constexpr std::uint32_t kPausesPerRound = 8;
constexpr std::uint32_t kRoundsPerYield = 4;

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
    since_ = std::chrono::steady_clock::now();
    if (since_ < banned_until_) return false;
  }
  for (std::uint32_t i = 0; i < kPausesPerRound; ++i) pause_briefly();
  if (++round_ % kRoundsPerYield != 0) return true;

  const TimePoint before = std::chrono::steady_clock::now();
  if (before - since_ > limit_) return false;
  ::sched_yield();
  const TimePoint after = std::chrono::steady_clock::now();
  if (after - before <= kLongYield) return true;
  if (after > banned_until_ + kForgiveAfter) next_ban_ = kFirstBan;
  banned_until_ = after + next_ban_;
  next_ban_ = std::min(2 * next_ban_, kLongestBan);
  return false;
}

}  // namespace hawser::agent
