#include "hawser/base/guarded.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace hawser {
namespace {

using namespace std::chrono_literals;

TEST(Guarded, OneThreadAtATime) {
  Guarded<int> counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&counter] {
      for (int j = 0; j < 1000; ++j) ++*counter.lock();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*counter.lock(), 4000);
}

TEST(Guarded, CanBeUnlockedBeforeTheScopeEnds) {
  Guarded<int> number(1);
  auto held = number.lock();
  held.unlock();
  EXPECT_EQ(*number.lock(), 1);
}

TEST(Condition, WakesWhenThePredicateHolds) {
  Guarded<bool> ready;
  Condition changed;
  std::thread other([&] {
    *ready.lock() = true;
    changed.notify_one();
  });
  auto held = ready.lock();
  EXPECT_TRUE(changed.wait_until(held, Deadline(std::chrono::steady_clock::now() + 10s),
                                 [&] { return *held; }));
  held.unlock();
  other.join();
}

TEST(Condition, SaysWhenTheDeadlinePassed) {
  Guarded<bool> ready;
  Condition changed;
  auto held = ready.lock();
  EXPECT_FALSE(changed.wait_until(held, Deadline(std::chrono::steady_clock::now() + 1ms),
                                  [&] { return *held; }));
}

}  // namespace
}  // namespace hawser
