#pragma once

#include <algorithm>
#include <atomic>

#include "hawser/base/clock.h"

namespace hawser::agent {

// Whether calls may be held back so that several are written at once. Who starts some calls and
// then computes has them sent late. That is noticed when they are flushed, and not done again for a
// number of sends, which doubles each time. A thread that loses its core now and then sends late,
// too, but not most of the time: so a late flush is made up for by one that is in time.
//
// Any thread. What two threads do at the same moment may count once.
class Holding {
 public:
  // A flush is late when the first call has waited for longer.
  explicit Holding(Duration limit) : limit_(limit) {}

  // Asked for each call that could be held back.
  bool allowed() {
    const int left = banned_for_.load(std::memory_order_relaxed);
    if (left <= 0) return true;
    banned_for_.store(left - 1, std::memory_order_relaxed);
    return false;
  }

  void flushed(Duration waited) {
    const int debt = debt_.load(std::memory_order_relaxed);
    const int in_time = in_time_.load(std::memory_order_relaxed);
    if (waited <= limit_) {
      if (debt > 0) debt_.store(debt - 1, std::memory_order_relaxed);
      in_time_.store(std::min(in_time + 1, kForgiven), std::memory_order_relaxed);
      return;
    }
    const int before = in_time >= kForgiven ? 0 : last_ban_.load(std::memory_order_relaxed);
    in_time_.store(0, std::memory_order_relaxed);
    debt_.store(debt + 1, std::memory_order_relaxed);
    last_ban_.store(before, std::memory_order_relaxed);
    if (debt + 1 < kMostDebt) return;
    const int ban = std::clamp(2 * before, kFirstBan, kLongestBan);
    debt_.store(0, std::memory_order_relaxed);
    last_ban_.store(ban, std::memory_order_relaxed);
    banned_for_.store(ban, std::memory_order_relaxed);
  }

 private:
  static constexpr int kMostDebt = 16;
  static constexpr int kForgiven = 256;  // flushes in time, and bans are short again
  static constexpr int kFirstBan = 1024;
  static constexpr int kLongestBan = 65'536;

  const Duration limit_;
  std::atomic<int> banned_for_{0};
  std::atomic<int> last_ban_{0};
  std::atomic<int> debt_{0};
  std::atomic<int> in_time_{0};
};

}  // namespace hawser::agent
