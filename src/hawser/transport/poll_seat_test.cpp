#include "hawser/transport/poll_seat.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

// The protocol around the seat is checked in poll_seat_model_test.cpp.
namespace hawser::transport {
namespace {

using State = PollSeat::State;
constexpr PollSeat::Sitter kHand = 7;
constexpr PollSeat::Sitter kWaiter = 8;

TEST(PollSeat, IsTakenByOne) {
  PollSeat seat;
  EXPECT_EQ(seat.state(), State::Asleep);
  EXPECT_TRUE(seat.take(kWaiter, State::WaiterPolls));
  EXPECT_EQ(seat.state(), State::WaiterPolls);
  EXPECT_FALSE(seat.take(kHand, State::HandPolls));
  EXPECT_FALSE(seat.take(kWaiter, State::WaiterPolls));
  EXPECT_TRUE(seat.leave(kWaiter, State::WaiterPolls));
  EXPECT_TRUE(seat.take(kHand, State::HandPolls));
}

TEST(PollSeat, AKnockTakesAnEmptySeat) {
  PollSeat seat;
  EXPECT_TRUE(seat.knock(kHand));
  EXPECT_EQ(seat.state(), State::HandPolls);
  EXPECT_TRUE(seat.leave(kHand, State::HandPolls));
}

TEST(PollSeat, AKnockOnATakenSeatKeepsTheSitterFromLeavingOnce) {
  PollSeat seat;
  seat.take(kWaiter, State::WaiterPolls);
  EXPECT_FALSE(seat.knock(kHand));
  EXPECT_FALSE(seat.knock(kHand));
  EXPECT_EQ(seat.state(), State::WaiterPolls);
  EXPECT_FALSE(seat.leave(kWaiter, State::WaiterPolls));
  EXPECT_EQ(seat.state(), State::WaiterPolls);
  EXPECT_TRUE(seat.leave(kWaiter, State::WaiterPolls));
}

TEST(PollSeat, ANudgeSaysWhoIsThereAndLeavesAMark) {
  PollSeat seat;
  EXPECT_EQ(seat.nudge(), State::Asleep);
  seat.take(kHand, State::HandPolls);
  EXPECT_EQ(seat.nudge(), State::HandPolls);
  EXPECT_FALSE(seat.leave(kHand, State::HandPolls));
  seat.lend();
  EXPECT_EQ(seat.nudge(), State::HandAway);
  EXPECT_TRUE(seat.reclaim(kHand, State::HandPolls));
  EXPECT_FALSE(seat.leave(kHand, State::HandPolls));
  EXPECT_TRUE(seat.leave(kHand, State::HandPolls));
}

TEST(PollSeat, VacatingSaysWhetherSomebodyKnocked) {
  PollSeat seat;
  seat.take(kHand, State::HandPolls);
  EXPECT_FALSE(seat.vacate());
  seat.take(kHand, State::HandPolls);
  seat.knock(kWaiter);
  EXPECT_TRUE(seat.vacate());
  EXPECT_EQ(seat.state(), State::Asleep);
}

TEST(PollSeat, WhatIsLentIsReclaimedByItsLenderOnly) {
  PollSeat seat;
  EXPECT_FALSE(seat.reclaim(kWaiter, State::WaiterPolls));
  seat.take(kWaiter, State::WaiterPolls);
  EXPECT_FALSE(seat.reclaim(kWaiter, State::WaiterPolls));  // it has not been lent
  EXPECT_FALSE(seat.steal(kHand, State::HandPolls));
  seat.lend();
  EXPECT_EQ(seat.state(), State::WaiterAway);
  EXPECT_EQ(seat.lends(), 1u);
  EXPECT_FALSE(seat.take(kHand, State::HandPolls));
  EXPECT_FALSE(seat.reclaim(kHand, State::HandPolls));
  EXPECT_TRUE(seat.reclaim(kWaiter, State::WaiterPolls));
  EXPECT_EQ(seat.state(), State::WaiterPolls);
}

TEST(PollSeat, WhatIsLentCanBeStolenAndKeepsItsMark) {
  PollSeat seat;
  seat.take(kWaiter, State::WaiterPolls);
  seat.lend();
  EXPECT_FALSE(seat.knock(kHand));
  EXPECT_TRUE(seat.steal(kHand, State::HandPolls));
  EXPECT_EQ(seat.state(), State::HandPolls);
  EXPECT_FALSE(seat.reclaim(kWaiter, State::WaiterPolls));
  EXPECT_FALSE(seat.leave(kHand, State::HandPolls));
  EXPECT_TRUE(seat.leave(kHand, State::HandPolls));
}

TEST(PollSeat, ASnapshotIsAllThereIs) {
  PollSeat seat;
  seat.take(kHand, State::HandPolls);
  seat.lend();
  seat.knock(kWaiter);
  PollSeat same(seat.snapshot());
  EXPECT_EQ(same.state(), State::HandAway);
  EXPECT_EQ(same.lends(), 1u);
  EXPECT_TRUE(same.reclaim(kHand, State::HandPolls));
  EXPECT_TRUE(same.vacate());
}

// However threads take, lend, steal and leave it: what its holder writes is not written by others.
TEST(PollSeat, HasOneHolder) {
  PollSeat seat;
  std::uint64_t holders_own = 0;
  std::atomic<std::uint64_t> turns{0};
  std::vector<std::thread> threads;
  for (PollSeat::Sitter me = 1; me <= 4; ++me) {
    threads.emplace_back([&, me] {
      const State polls = me % 2 == 0 ? State::HandPolls : State::WaiterPolls;
      for (int i = 0; i < 20'000; ++i) {
        if (!seat.take(me, polls) && !seat.reclaim(me, polls) && !seat.steal(me, polls)) {
          seat.nudge();
          continue;
        }
        ++holders_own;
        turns.fetch_add(1, std::memory_order_relaxed);
        if (i % 3 == 0) {
          seat.lend();
        } else if (!seat.leave(me, polls)) {
          seat.vacate();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(holders_own, turns.load());
}

}  // namespace
}  // namespace hawser::transport
