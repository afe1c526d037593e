#pragma once

#include <algorithm>
#include <chrono>
#include <compare>

namespace hawser {

using Duration = std::chrono::nanoseconds;
// Monotonic. Compared only within one process; what travels is a remaining budget.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

// Driven by hand: by tests and by the simulator.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }
  void advance_to(TimePoint to) { now_ = std::max(now_, to); }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

// The moment by which something must have happened; `never()` sorts after every other.
class Deadline {
 public:
  constexpr Deadline() = default;
  constexpr explicit Deadline(TimePoint at) : at_(at) {}
  static constexpr Deadline never() { return Deadline(); }
  static Deadline from(TimePoint now, Duration budget) {
    return budget >= TimePoint::max() - now ? never() : Deadline(now + budget);
  }
  static Deadline after(const Clock& clock, Duration budget) { return from(clock.now(), budget); }

  bool is_never() const { return at_ == TimePoint::max(); }
  TimePoint at() const { return at_; }
  bool passed(TimePoint now) const { return now >= at_; }
  // Zero when passed, Duration::max() when never.
  Duration remaining(TimePoint now) const {
    if (is_never()) return Duration::max();
    return now >= at_ ? Duration::zero() : at_ - now;
  }
  auto operator<=>(const Deadline&) const = default;

 private:
  TimePoint at_ = TimePoint::max();
};

}  // namespace hawser
