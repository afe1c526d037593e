#include "hawser/base/event.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace hawser {
namespace {

using namespace std::chrono_literals;

Deadline in(Duration budget) { return Deadline::after(SteadyClock(), budget); }

TEST(Event, HappensOnce) {
  Event event;
  EXPECT_FALSE(event.happened());
  event.set();
  EXPECT_TRUE(event.happened());
  event.set();
  EXPECT_TRUE(event.happened());
  EXPECT_TRUE(event.sleep_until(Deadline::never()));
}

TEST(Event, GivesUpAtTheDeadline) {
  Event event;
  EXPECT_FALSE(event.sleep_until(Deadline(TimePoint{})));
  EXPECT_FALSE(event.sleep_until(in(-1s)));
  const Deadline deadline = in(5ms);
  EXPECT_FALSE(event.sleep_until(deadline));
  EXPECT_TRUE(deadline.passed(SteadyClock().now()));
  EXPECT_FALSE(event.happened());
}

TEST(Event, IsSeenAfterTheDeadlineToo) {
  Event event;
  EXPECT_FALSE(event.sleep_until(in(1ms)));  // leaves the mark of a sleeper
  event.set();
  EXPECT_TRUE(event.sleep_until(Deadline(TimePoint{})));
}

TEST(Event, WakesAllSleepersAndShowsWhatWasWrittenBefore) {
  for (int round = 0; round < 200; ++round) {
    Event event;
    int written = 0;
    std::latch started(4);
    std::vector<std::thread> sleepers;
    for (int i = 0; i < 4; ++i) {
      sleepers.emplace_back([&, i] {
        started.arrive_and_wait();
        // Some sleep without a limit, some give up now and then and look again.
        while (!event.sleep_until(i % 2 == 0 ? Deadline::never() : in(20us))) {
        }
        EXPECT_EQ(written, 1);
      });
    }
    std::thread setter([&] {
      written = 1;
      event.set();
    });
    setter.join();
    for (std::thread& sleeper : sleepers) sleeper.join();
  }
}

// The waiter of a call owns the event, and is gone as soon as it has happened.
TEST(Event, MayBeDestroyedAsSoonAsItHasHappened) {
  for (int round = 0; round < 2000; ++round) {
    auto event = std::make_unique<Event>();
    std::thread setter([seen = event.get()] { seen->set(); });
    EXPECT_TRUE(event->sleep_until(Deadline::never()));
    event.reset();
    setter.join();
  }
}

TEST(Wakes, WakesWhomItHasCollected) {
  Event first, second;
  std::atomic<int> awake{0};
  const auto sleeper = [&](Event& event) {
    return std::thread([&] {
      event.sleep_until(Deadline::never());
      ++awake;
    });
  };
  std::thread one = sleeper(first), two = sleeper(second);
  Wakes wakes;
  {
    const Wakes::Collecting together(wakes);
    first.set();
    second.set();
  }
  EXPECT_TRUE(first.happened());
  wakes.wake();
  one.join();
  two.join();
  EXPECT_EQ(awake, 2);
}

TEST(Wakes, WakesWhatDoesNotFit) {
  std::vector<Event> events(100);
  std::vector<std::thread> sleepers;
  for (Event& event : events) {
    sleepers.emplace_back([&event] { event.sleep_until(Deadline::never()); });
  }
  {
    Wakes wakes;
    const Wakes::Collecting together(wakes);
    for (Event& event : events) event.set();
  }
  for (std::thread& sleeper : sleepers) sleeper.join();
}

}  // namespace
}  // namespace hawser
