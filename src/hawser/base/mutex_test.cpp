#include "hawser/base/mutex.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace hawser {
namespace {

TEST(Mutex, KeepsOthersOut) {
  Mutex mutex;
  mutex.lock();
  EXPECT_FALSE(mutex.try_lock());
  mutex.unlock();
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

// A lost wake-up shows as a test that never ends; two increments in one place, as a wrong sum.
TEST(Mutex, LosesNoWakeUpUnderContention) {
  constexpr int kThreads = 8, kRounds = 20'000;
  Mutex mutex;
  int sum = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const std::lock_guard lock(mutex);
        ++sum;
        if (round % 64 == 0) std::this_thread::yield();  // held: others must go to sleep
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, kThreads * kRounds);
}

}  // namespace
}  // namespace hawser
