#include "hawser/agent/spinner.h"

#include <sched.h>

#include <algorithm>

namespace hawser::agent {
namespace {

constexpr std::uint32_t kPausesPerRound = 8;
constexpr Duration kEmptyYield = std::chrono::nanoseconds(800);
constexpr Duration kLongYield = std::chrono::microseconds(200);
constexpr Duration kTimeSlice = std::chrono::microseconds(700);

}  // namespace

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

Yielded yield_core() {
  const TimePoint before = std::chrono::steady_clock::now();
  ::sched_yield();
  const Duration yielded = std::chrono::steady_clock::now() - before;
  if (yielded > kTimeSlice) return Yielded::TimeSlice;
  if (yielded > kLongYield) return Yielded::Long;
  return yielded > kEmptyYield ? Yielded::Shared : Yielded::Empty;
}

bool Spinner::look_on(bool more_is_coming, TimePoint likely_until) {
  if (limit_ <= Duration::zero()) return false;
  if (round_ == 0) {
    since_ = std::chrono::steady_clock::now();
    if (since_ < banned_until_) return false;
    next_yield_ = rounds_per_yield_;
  }
  if (suspects_) return give_up();
  for (std::uint32_t i = 0; i < kPausesPerRound; ++i) pause_briefly();
  if (++round_ < next_yield_) return true;

  const bool longer = more_is_coming || since_ < likely_until;
  if (std::chrono::steady_clock::now() - since_ > (longer ? kLongerLook : 1) * limit_) {
    round_ = 0;
    return false;
  }
  const Yielded yielded = yield_core();
  if (yielded == Yielded::TimeSlice) return give_up();
  rounds_per_yield_ =
      yielded == Yielded::Empty ? std::min(2 * rounds_per_yield_, kMostRounds) : kFewestRounds;
  next_yield_ = round_ + rounds_per_yield_;
  suspects_ = yielded == Yielded::Long;
  return true;
}

bool Spinner::give_up() {
  const TimePoint now = std::chrono::steady_clock::now();
  if (now - banned_until_ > kForgiveAfter) next_ban_ = kFirstBan;
  banned_until_ = now + next_ban_;
  next_ban_ = std::min(2 * next_ban_, kLongestBan);
  round_ = 0;
  suspects_ = false;
  return false;
}

}  // namespace hawser::agent
