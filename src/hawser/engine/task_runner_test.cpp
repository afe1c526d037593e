#include "hawser/engine/task_runner.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <deque>
#include <latch>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "hawser/base/event.h"

namespace hawser::engine {
namespace {

using torch::autograd::GraphTask;
using torch::autograd::Node;
using torch::autograd::variable_list;

class Function final : public Node {
 public:
  explicit Function(std::function<void()> body) : body_(std::move(body)) {}
  variable_list apply(variable_list&&) override {
    body_();
    return {};
  }

 private:
  const std::function<void()> body_;
};

// A task without edges: what is added is what runs.
class TaskRunnerTest : public testing::TestWithParam<TaskRunner::Devices> {
 protected:
  void begin(std::size_t functions) {
    task_ =
        std::make_shared<GraphTask>(false, false, 0, nullptr, c10::SmallVector<Node*, 4>{}, true);
    task_->owner_ = torch::autograd::CPU_DEVICE;
    task_->outstanding_tasks_ = functions;
    runner_ = std::make_shared<TaskRunner>(task_, GetParam(), [this](UniqueFunction<void()> work) {
      const std::lock_guard lock(mutex_);
      ++lent_;
      if (keep_) {
        kept_.push_back(std::move(work));
      } else {
        threads_.emplace_back([work = std::move(work)]() mutable { work(); });
      }
    });
  }
  void add(std::function<void()> body) {
    auto function = c10::make_intrusive<Function>(std::move(body));
    task_->exec_info_[function.get()].needed_ = true;
    runner_->add({std::move(function), {}});
  }
  void fail() {
    task_->has_error_ = true;
    ASSERT_FALSE(task_->future_completed_.exchange(true));
    task_->future_result_->setError(std::make_exception_ptr(std::runtime_error("stop")));
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void TearDown() override { join(); }

  std::shared_ptr<GraphTask> task_;
  std::shared_ptr<TaskRunner> runner_;
  bool keep_ = false;
  std::mutex mutex_;  // around what follows
  std::deque<UniqueFunction<void()>> kept_;
  std::vector<std::thread> threads_;
  int lent_ = 0;
};

std::string devices_of(const testing::TestParamInfo<TaskRunner::Devices>& info) {
  return info.param == TaskRunner::Devices::Cpu ? "Cpu" : "Others";
}
INSTANTIATE_TEST_SUITE_P(, TaskRunnerTest,
                         testing::Values(TaskRunner::Devices::Cpu, TaskRunner::Devices::Others),
                         devices_of);

TEST_P(TaskRunnerTest, TheTaskEndsWithItsLastFunction) {
  begin(2);
  std::latch first(1);
  add([&] { first.count_down(); });
  first.wait();
  EXPECT_FALSE(task_->future_result_->completed());
  add([] {});
  task_->future_result_->wait();
  EXPECT_FALSE(task_->future_result_->hasError());
  join();
  EXPECT_EQ(task_->outstanding_tasks_, 0u);
}

TEST_P(TaskRunnerTest, OneThreadAtATimeRunsWhatManyAdd) {  // RUN-1
  constexpr int kAdders = 4, kEach = 200;
  begin(kAdders * kEach);
  std::vector<c10::intrusive_ptr<Function>> functions;
  std::atomic<int> inside{0}, ran{0};
  for (int i = 0; i < kAdders * kEach; ++i) {
    functions.push_back(c10::make_intrusive<Function>([&] {
      EXPECT_EQ(++inside, 1);
      ++ran;
      --inside;
    }));
    task_->exec_info_[functions.back().get()].needed_ = true;
  }
  std::vector<std::thread> adders;
  for (int a = 0; a < kAdders; ++a) {
    adders.emplace_back([&, a] {
      for (int i = 0; i < kEach; ++i) runner_->add({functions[a * kEach + i], {}});
    });
  }
  for (std::thread& adder : adders) adder.join();
  task_->future_result_->wait();
  EXPECT_EQ(ran, kAdders * kEach);
}

TEST_P(TaskRunnerTest, StopsAtOnceWhenNothingRuns) {
  begin(1);
  fail();
  bool stopped = false;
  runner_->stop([&] { stopped = true; });
  EXPECT_TRUE(stopped);
  add([] { ADD_FAILURE() << "runs after the stop"; });
  EXPECT_EQ(lent_, 0);
}

TEST_P(TaskRunnerTest, StopsWhenTheFunctionThatRunsHasReturned) {
  begin(2);
  std::latch running(1), go_on(1);
  Event stopped;
  add([&] {
    running.count_down();
    go_on.wait();
    EXPECT_FALSE(stopped.happened());
  });
  running.wait();
  add([] { ADD_FAILURE() << "runs after the stop"; });
  fail();
  runner_->stop([&] { stopped.set(); });
  go_on.count_down();
  EXPECT_TRUE(stopped.sleep_until(Deadline::never()));
}

TEST_P(TaskRunnerTest, StopsBeforeTheThreadHasCome) {
  begin(1);
  keep_ = true;
  add([] { ADD_FAILURE() << "runs after the stop"; });
  fail();
  bool stopped = false;
  runner_->stop([&] { stopped = true; });
  EXPECT_FALSE(stopped);
  kept_.front()();
  EXPECT_TRUE(stopped);
}

TEST_P(TaskRunnerTest, StopsAThreadThatWaitsForTheEnd) {
  begin(2);
  std::latch ran(1);
  add([&] { ran.count_down(); });
  ran.wait();
  fail();
  Event stopped;
  runner_->stop([&] { stopped.set(); });
  EXPECT_TRUE(stopped.sleep_until(Deadline::never()));
}

TEST_P(TaskRunnerTest, AFunctionMayUseTheEngineItself) {
  begin(1);
  at::Tensor gradient;
  add([&] {
    const at::AutoGradMode on(true);
    const auto x = at::ones({2}).set_requires_grad(true);
    x.mul(x).sum().backward();
    gradient = x.grad();
  });
  task_->future_result_->wait();
  join();
  ASSERT_TRUE(gradient.defined());
  EXPECT_EQ(gradient.sum().item<double>(), 4.0);
}

TEST_P(TaskRunnerTest, TheThreadIsTheProgramsAgainAfterwards) {
  begin(1);
  keep_ = true;
  add([] {});
  kept_.front()();
  const auto x = at::ones({2}).set_requires_grad(true);
  x.mul(x).sum().backward();
  EXPECT_EQ(x.grad().sum().item<double>(), 4.0);
}

TEST_P(TaskRunnerTest, AnErrorEndsTheTask) {
  begin(2);
  add([] { throw std::runtime_error("raised by a function"); });
  task_->future_result_->wait();
  EXPECT_TRUE(task_->future_result_->hasError());
  join();
}

}  // namespace
}  // namespace hawser::engine
