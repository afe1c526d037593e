#include "hawser/base/clock.h"

#include <gtest/gtest.h>

namespace hawser {
namespace {

using namespace std::chrono_literals;

TEST(ManualClock, MovesOnlyForwardAndOnlyByHand) {
  ManualClock clock;
  const TimePoint start = clock.now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(5s);
  EXPECT_EQ(clock.now(), start + 5s);
  clock.advance_to(start + 2s);
  EXPECT_EQ(clock.now(), start + 5s);
  clock.advance_to(start + 9s);
  EXPECT_EQ(clock.now(), start + 9s);
}

TEST(Deadline, PassesAtItsMoment) {
  ManualClock clock;
  const Deadline deadline = Deadline::after(clock, 2s);
  EXPECT_FALSE(deadline.passed(clock.now()));
  EXPECT_EQ(deadline.remaining(clock.now()), 2s);
  clock.advance(2s);
  EXPECT_TRUE(deadline.passed(clock.now()));
  EXPECT_EQ(deadline.remaining(clock.now()), 0s);
  clock.advance(1s);
  EXPECT_EQ(deadline.remaining(clock.now()), 0s);
}

TEST(Deadline, NeverIsLaterThanEveryOther) {
  ManualClock clock;
  const Deadline never = Deadline::never();
  EXPECT_TRUE(never.is_never());
  EXPECT_FALSE(never.passed(clock.now()));
  EXPECT_EQ(never.remaining(clock.now()), Duration::max());
  EXPECT_LT(Deadline::after(clock, 24h * 365), never);
}

TEST(Deadline, BudgetTooLargeToAddMeansNever) {
  ManualClock clock;
  EXPECT_TRUE(Deadline::after(clock, Duration::max()).is_never());
  EXPECT_TRUE(Deadline::after(clock, Duration::max() - 1ns).is_never());
}

TEST(Deadline, NegativeBudgetHasPassed) {
  ManualClock clock;
  EXPECT_TRUE(Deadline::after(clock, -1s).passed(clock.now()));
}

}  // namespace
}  // namespace hawser
