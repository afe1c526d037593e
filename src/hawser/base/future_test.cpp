#include "hawser/base/future.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hawser {
namespace {

using namespace std::chrono_literals;

// Runs what is posted when the test says so.
class TestScheduler final : public Scheduler {
 public:
  void post(UniqueFunction<void()> task) override {
    const std::lock_guard lock(mutex_);
    if (!stopped_) tasks_.push_back(std::move(task));
  }
  bool wait(Event& event, Deadline deadline) override { return event.sleep_until(deadline); }

  int run() {
    int ran = 0;
    for (; auto task = next(); ++ran) task();
    return ran;
  }
  void stop() {
    std::deque<UniqueFunction<void()>> dropped;
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(tasks_);
  }

 private:
  UniqueFunction<void()> next() {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) return nullptr;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }
  std::mutex mutex_;
  std::deque<UniqueFunction<void()>> tasks_;
  bool stopped_ = false;
};

class FutureTest : public ::testing::Test {
 protected:
  template <class T>
  typename Promise<T>::Pair make() {
    return Promise<T>::pair(scheduler_);
  }
  std::shared_ptr<TestScheduler> scheduler_ = std::make_shared<TestScheduler>();
};

template <class T>
ErrorKind failure_of(const Future<T>& future) {
  try {
    future.get();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "there is a value";
  return {};
}

Error refused() { return Error(ErrorKind::Refused, "no"); }

TEST_F(FutureTest, CarriesAValue) {
  auto [promise, future] = make<std::string>();
  EXPECT_FALSE(future.done());
  EXPECT_FALSE(future.wait_for(1ms));
  promise.succeed("value");
  EXPECT_TRUE(future.done());
  EXPECT_TRUE(future.wait_for(0ms));
  EXPECT_EQ(future.get(), "value");
  EXPECT_EQ(future.get(), "value");
  EXPECT_FALSE(Future<int>().valid());
}

TEST_F(FutureTest, CarriesAnError) {
  auto [promise, future] = make<void>();
  promise.fail(refused());
  EXPECT_EQ(failure_of(future), ErrorKind::Refused);
  EXPECT_FALSE(future.wait().ok());
}

TEST_F(FutureTest, IsSettledOnce) {
  auto [promise, future] = make<int>();
  promise.succeed(1);
  promise.succeed(2);
  promise.fail(refused());
  EXPECT_EQ(future.get(), 1);
}

TEST_F(FutureTest, ADroppedPromiseIsAnError) {
  Future<int> future;
  {
    auto pair = make<int>();
    future = pair.future;
  }
  EXPECT_EQ(failure_of(future), ErrorKind::Cancelled);
}

TEST_F(FutureTest, APromiseThatIsReplacedIsDropped) {
  auto first = make<int>();
  auto second = make<int>();
  first.promise = std::move(second.promise);
  EXPECT_EQ(failure_of(first.future), ErrorKind::Cancelled);
  EXPECT_FALSE(second.future.done());
  first.promise.succeed(2);
  EXPECT_EQ(second.future.get(), 2);
}

TEST_F(FutureTest, WhatProducingThrowsIsTheError) {
  auto own = make<int>();
  own.promise.settle_with([]() -> int { throw refused(); });
  EXPECT_EQ(failure_of(own.future), ErrorKind::Refused);
  auto standard = make<void>();
  standard.promise.settle_with([] { throw std::runtime_error("boom"); });
  EXPECT_EQ(failure_of(standard.future), ErrorKind::Remote);
  EXPECT_EQ(standard.future.wait().error().message(), "boom");
  auto other = make<void>();
  other.promise.settle_with([] { throw 7; });
  EXPECT_EQ(failure_of(other.future), ErrorKind::Remote);
}

TEST_F(FutureTest, CallbacksRunOnTheScheduler) {
  auto [promise, settled_later] = make<int>();
  const Future<int> future = settled_later;
  std::vector<int> seen;
  const auto note = [&](const Result<int>& outcome) {
    EXPECT_TRUE(future.done());
    seen.push_back(outcome.value());
  };
  future.on_settled(note);
  future.on_settled(note);
  EXPECT_EQ(scheduler_->run(), 0);
  promise.succeed(4);
  EXPECT_TRUE(seen.empty());
  EXPECT_EQ(scheduler_->run(), 2);
  future.on_settled(note);  // after the fact
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_EQ(scheduler_->run(), 1);
  EXPECT_EQ(seen, std::vector<int>({4, 4, 4}));
}

TEST_F(FutureTest, ThenPassesTheValueOn) {
  auto [promise, future] = make<int>();
  Future<std::string> text = future.then([](int value) { return std::to_string(value); });
  Future<void> end = text.then([](const std::string& value) { EXPECT_EQ(value, "5"); });
  Future<int> after_void = end.then([] { return 6; });
  promise.succeed(5);
  EXPECT_FALSE(text.done());
  scheduler_->run();
  EXPECT_EQ(text.get(), "5");
  EXPECT_EQ(after_void.get(), 6);
}

TEST_F(FutureTest, ThenPassesErrorsOn) {
  auto [promise, future] = make<int>();
  const auto never = future.then([](int) { ADD_FAILURE(); });
  promise.fail(refused());
  scheduler_->run();
  EXPECT_EQ(failure_of(never), ErrorKind::Refused);

  auto [good, value] = make<int>();
  const auto thrown = value.then([](int) { throw std::logic_error("then"); });
  good.succeed(1);
  scheduler_->run();
  EXPECT_EQ(failure_of(thrown), ErrorKind::Remote);
}

TEST_F(FutureTest, ThenIsCancelledWhenTheSchedulerStops) {
  auto [promise, future] = make<int>();
  const auto next = future.then([](int) { ADD_FAILURE(); });
  promise.succeed(1);
  scheduler_->stop();
  EXPECT_EQ(failure_of(next), ErrorKind::Cancelled);
  const auto later = future.then([](int) { ADD_FAILURE(); });
  EXPECT_EQ(failure_of(later), ErrorKind::Cancelled);
}

// ------------------------------------------------------------------------------- cancelling

TEST_F(FutureTest, CancelCallsTheCancellerOnce) {
  auto pair = make<int>();
  int cancelled = 0;
  pair.future.set_canceller([&] {
    ++cancelled;
    pair.promise.fail(Error(ErrorKind::Cancelled, "by the caller"));
  });
  pair.future.cancel();
  pair.future.cancel();
  EXPECT_EQ(cancelled, 1);
  EXPECT_EQ(failure_of(pair.future), ErrorKind::Cancelled);
}

TEST_F(FutureTest, CancelHasNoEffectOnWhatIsSettledOrCannotBeCancelled) {
  auto [promise, future] = make<int>();
  future.cancel();
  EXPECT_FALSE(future.done());
  future.set_canceller([] { ADD_FAILURE(); });
  promise.succeed(1);
  future.cancel();
  EXPECT_EQ(future.get(), 1);
}

TEST_F(FutureTest, TheCancellerIsDroppedWhenTheFutureIsSettled) {
  const auto owned = std::make_shared<int>(1);
  auto early = make<int>();
  early.future.set_canceller([owned] {});
  EXPECT_EQ(owned.use_count(), 2);
  early.promise.succeed(1);
  EXPECT_EQ(owned.use_count(), 1);
  early.future.set_canceller([owned] {});  // the reply was faster than the caller
  EXPECT_EQ(owned.use_count(), 1);
}

TEST_F(FutureTest, CancellingWhatFollowsCancelsTheCall) {
  auto pair = make<int>();
  pair.future.set_canceller([&] { pair.promise.fail(Error(ErrorKind::Cancelled, "told")); });
  const auto last = pair.future.then([](int v) { return v; }).then([](int v) { return v; });
  last.cancel();
  EXPECT_TRUE(pair.future.done());
  scheduler_->run();
  EXPECT_EQ(failure_of(last), ErrorKind::Cancelled);
}

TEST_F(FutureTest, NothingKeepsAFutureAliveThatNobodyHolds) {
  const auto owned = std::make_shared<int>(1);
  {
    auto [promise, future] = make<int>();
    const auto next = future.then([owned](int) {});
  }
  scheduler_->run();
  EXPECT_EQ(owned.use_count(), 1);
}

// ------------------------------------------------------------------------------- many threads

TEST_F(FutureTest, ManyThreadsGetTheSameResult) {
  for (int round = 0; round < 200; ++round) {
    auto pair = make<int>();
    std::atomic<int> settled{0};
    std::atomic<int> callbacks{0};
    std::latch start(8);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        EXPECT_EQ(pair.future.get() % 10, 7);
      });
    }
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        pair.future.on_settled([&](const auto& outcome) {
          EXPECT_EQ(outcome.value() % 10, 7);
          ++callbacks;
        });
      });
    }
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        pair.promise.succeed(10 * i + 7);
        ++settled;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(scheduler_->run(), 2);
    EXPECT_EQ(callbacks, 2);
  }
}

TEST_F(FutureTest, CancelAndSettleMayRace) {
  for (int round = 0; round < 500; ++round) {
    auto pair = make<int>();
    pair.future.set_canceller([&] { pair.promise.fail(Error(ErrorKind::Cancelled, "raced")); });
    std::thread canceller([&] { pair.future.cancel(); });
    std::thread settler([&] { pair.promise.succeed(1); });
    const auto& outcome = pair.future.wait();
    EXPECT_TRUE(outcome.ok() || outcome.error().kind() == ErrorKind::Cancelled);
    canceller.join();
    settler.join();
  }
}

}  // namespace
}  // namespace hawser
