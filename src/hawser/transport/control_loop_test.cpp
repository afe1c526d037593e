#include "hawser/transport/control_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

namespace hawser::transport {
namespace {

using namespace std::chrono_literals;

TimePoint in(Duration delay) { return std::chrono::steady_clock::now() + delay; }

// Completes when `count` signals were given.
class Signals {
 public:
  explicit Signals(int count) : left_(count) {}
  void give() {
    if (left_.fetch_sub(1) == 1) done_.set_value();
  }
  bool wait(std::chrono::milliseconds at_most = 10s) {
    return done_.get_future().wait_for(at_most) == std::future_status::ready;
  }

 private:
  std::atomic<int> left_;
  std::promise<void> done_;
};

struct ControlLoopTest : ::testing::Test {
  ControlLoopTest() { loop.start(); }
  ControlLoop loop;
};

TEST_F(ControlLoopTest, TasksRunOnTheControlThreadInOrder) {
  Signals all(100);
  std::vector<int> order;
  bool elsewhere = false;
  for (int i = 0; i < 100; ++i) {
    loop.post([&, i] {
      order.push_back(i);
      elsewhere |= !loop.on_control_thread();
      all.give();
    });
  }
  ASSERT_TRUE(all.wait());
  EXPECT_FALSE(elsewhere);
  EXPECT_FALSE(loop.on_control_thread());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_F(ControlLoopTest, TimersFireInTheOrderOfTheirTimes) {
  Signals all(3);
  std::vector<int> order;
  const auto fire = [&](int which) {
    return [&, which] {
      order.push_back(which);
      all.give();
    };
  };
  loop.schedule(in(60ms), fire(3));
  loop.schedule(in(20ms), fire(1));
  loop.schedule(in(40ms), fire(2));
  ASSERT_TRUE(all.wait());
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
}

TEST_F(ControlLoopTest, ATimerIsNeitherEarlyNorHeldUpByALaterOne) {
  loop.schedule(in(1h), [] {});
  Signals fired(1);
  const TimePoint at = in(30ms);
  TimePoint when{};
  loop.schedule(at, [&] {
    when = std::chrono::steady_clock::now();
    fired.give();
  });
  ASSERT_TRUE(fired.wait());
  EXPECT_GE(when, at);
}

TEST_F(ControlLoopTest, ManyThreadsMayScheduleAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kTimers = 300;
  Signals all(kThreads * kTimers);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTimers; ++i) {
        loop.schedule(in(std::chrono::microseconds((i * 37 + t * 11) % 5000)), [&] { all.give(); });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(all.wait());
}

TEST_F(ControlLoopTest, ACancelledTaskDoesNotRun) {
  std::atomic<bool> ran{false};
  loop.cancel(loop.schedule(in(10ms), [&] { ran = true; }));
  Signals later(1);
  loop.schedule(in(30ms), [&] { later.give(); });
  ASSERT_TRUE(later.wait());
  EXPECT_FALSE(ran);
  loop.cancel(Timers::Id{12345});
  loop.cancel(Timers::Id::None);
}

TEST_F(ControlLoopTest, ATaskMayCancelAnotherThatIsDueToo) {
  std::atomic<bool> ran{false};
  std::atomic<Timers::Id> second{};
  const TimePoint at = in(20ms);
  loop.schedule(at, [&] { loop.cancel(second.load()); });
  second = loop.schedule(at, [&] { ran = true; });
  Signals later(1);
  loop.schedule(in(50ms), [&] { later.give(); });
  ASSERT_TRUE(later.wait());
  EXPECT_FALSE(ran);
}

TEST_F(ControlLoopTest, StopDropsWhatHasNotRun) {
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held;
  loop.schedule(in(1h), [held = std::move(held)] {});
  loop.stop();
  loop.stop();
  EXPECT_TRUE(watch.expired());
}

TEST_F(ControlLoopTest, RunAloneRunsBeforeItReturns) {
  bool ran = false;
  loop.run_alone([&] { ran = loop.on_control_thread(); });
  EXPECT_TRUE(ran);
  bool nested = false;
  loop.run_alone([&] { loop.run_alone([&] { nested = true; }); });
  EXPECT_TRUE(nested);
}

TEST(ControlLoop, RunAloneWorksWithoutAThread) {
  ControlLoop loop;
  int runs = 0;
  loop.run_alone([&] { ++runs; });
  loop.start();
  loop.stop();
  loop.run_alone([&] { ++runs; });
  EXPECT_EQ(runs, 2);
}

TEST(ControlLoop, StoppingMeanwhileLosesNoErrand) {
  for (int round = 0; round < 50; ++round) {
    ControlLoop loop;
    loop.start();
    std::atomic<int> runs{0};
    std::thread asker([&] {
      for (int i = 0; i < 20; ++i) loop.run_alone([&] { ++runs; });
    });
    loop.stop();
    asker.join();
    EXPECT_EQ(runs, 20);
  }
}

}  // namespace
}  // namespace hawser::transport
