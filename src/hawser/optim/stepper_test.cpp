#include "hawser/optim/stepper.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "hawser/base/clock.h"

namespace hawser::optim {
namespace {

using namespace std::chrono_literals;

// tests/python/test_optim.py compares the rules with torch's own, option by option.
class StepperTest : public ::testing::Test {
 protected:
  at::Tensor parameter_ = at::full({3}, 2.0);
  at::Tensor target_ = parameter_.detach();

  static Gradients gradient(const at::Tensor& of, const at::Tensor& value) {
    Gradients gradients;
    gradients.insert(of, value);
    return gradients;
  }
  bool step_with(Plan::AnyGroup group, const at::Tensor& gradient_value) {
    Stepper stepper;
    const std::scoped_lock exclusively(stepper);
    Plan plan{"step", {}};
    plan.groups.push_back(std::move(group));
    stepper.follow(std::move(plan));
    return stepper.step(gradient(parameter_, gradient_value));
  }
  template <class Rule>
  bool step_with(Rule rule, typename Rule::State state, const at::Tensor& gradient_value) {
    return step_with(Group<Rule>{rule, {{parameter_, target_, std::move(state)}}}, gradient_value);
  }
  void expect_unchanged() { EXPECT_TRUE(at::equal(parameter_, at::full({3}, 2.0))); }
};

TEST_F(StepperTest, ChangesTheParameterAndItsVersion) {
  const auto before = parameter_._version();
  EXPECT_TRUE(step_with(Sgd{.lr = 0.5}, {}, at::ones({3})));
  EXPECT_TRUE(at::equal(parameter_, at::full({3}, 1.5)));
  EXPECT_GT(parameter_._version(), before);
}

TEST_F(StepperTest, ChangesStateInPlace) {
  const Sgd::State sgd{at::ones({3})};
  EXPECT_TRUE(step_with(Sgd{.lr = 0.5, .momentum = 0.5}, sgd, at::ones({3})));
  EXPECT_TRUE(at::equal(sgd.momentum_buffer, at::full({3}, 1.5)));
  EXPECT_TRUE(at::equal(parameter_, at::full({3}, 1.25)));

  const Adam::State adam{at::scalar_tensor(0.0), at::zeros({3}), at::zeros({3}), {}};
  EXPECT_TRUE(step_with(Adam{.lr = 0.25, .beta1 = 0.9, .beta2 = 0.99}, adam, at::ones({3})));
  EXPECT_EQ(adam.step.item<double>(), 1);
  EXPECT_TRUE(at::allclose(parameter_, at::full({3}, 1.0)));  // the first step has the rate's size
}

TEST_F(StepperTest, ParametersWithoutAGradientStay) {
  Stepper stepper;
  const std::scoped_lock exclusively(stepper);
  stepper.follow(Plan{"step", {Group<Sgd>{{.lr = 1}, {{parameter_, target_}}}}});
  EXPECT_TRUE(stepper.step(Gradients()));
  EXPECT_TRUE(stepper.step(gradient(at::ones({3}), at::ones({3}))));  // of another tensor
  expect_unchanged();
}

TEST_F(StepperTest, WithoutAPlanItDoesNothing) {
  Stepper stepper;
  const std::scoped_lock exclusively(stepper);
  EXPECT_FALSE(stepper.step(gradient(parameter_, at::ones({3}))));
  stepper.follow(Plan{"step", {Group<Sgd>{{.lr = 1}, {{parameter_, target_}}}}});
  stepper.follow(std::nullopt);
  EXPECT_FALSE(stepper.step(gradient(parameter_, at::ones({3}))));
  expect_unchanged();
}

TEST_F(StepperTest, LeavesToTorchWhatThePlanDoesNotProvideFor) {
  const at::Tensor ones = at::ones({3});
  EXPECT_FALSE(step_with(Sgd{.lr = 1, .momentum = 0.5}, {}, ones)) << "no state yet";
  EXPECT_FALSE(step_with(Adam{.lr = 1}, {}, ones)) << "no state yet";
  const Adam::State state{at::scalar_tensor(0.0), at::zeros({3}), at::zeros({3}), {}};
  EXPECT_FALSE(step_with(Adam{.lr = 1, .amsgrad = true}, state, ones)) << "part of the state";
  EXPECT_FALSE(step_with(Adam{.lr = 1}, state, ones.to_sparse())) << "which it refuses";
  EXPECT_FALSE(step_with(Sgd{.lr = 1, .weight_decay = 0.5}, {}, ones.to_sparse()));
  EXPECT_FALSE(step_with(Sgd{.lr = 1}, {}, ones.to(at::kDouble))) << "another type";
  EXPECT_FALSE(step_with(Sgd{.lr = 1}, {}, at::ones({1}))) << "another shape";
  expect_unchanged();
  EXPECT_TRUE(step_with(Sgd{.lr = 0.5}, {}, ones.to_sparse()));
  EXPECT_TRUE(at::equal(parameter_, at::full({3}, 1.5)));
}

TEST_F(StepperTest, NoticesThatAParameterHasOtherMemory) {
  parameter_.set_data(at::full({3}, 2.0));
  EXPECT_FALSE(step_with(Sgd{.lr = 1}, {}, at::ones({3})));
  expect_unchanged();
}

TEST_F(StepperTest, AllOfAStepOrNothing) {
  const at::Tensor second = at::ones({3});
  Stepper stepper;
  const std::scoped_lock exclusively(stepper);
  stepper.follow(Plan{"step",
                      {Group<Sgd>{{.lr = 1}, {{parameter_, target_}}},
                       Group<Sgd>{{.lr = 1, .momentum = 0.5}, {{second, second.detach()}}}}});
  Gradients both = gradient(parameter_, at::ones({3}));
  both.insert(second, at::ones({3}));
  EXPECT_FALSE(stepper.step(both));
  expect_unchanged();
}

// ------------------------------------------------------------------------------- turns

// Whether two threads can have one of them each at the same time.
bool go_together(Stepper& one, Stepper& two, Duration patience) {
  std::atomic<int> inside{0}, most{0};
  std::vector<std::thread> threads;
  for (Stepper* const stepper : {&one, &two}) {
    threads.emplace_back([&, stepper] {
      const std::scoped_lock exclusively(*stepper);
      const int now = ++inside;
      for (int before = most; before < now && !most.compare_exchange_weak(before, now);) {
      }
      const auto ends = std::chrono::steady_clock::now() + patience;
      while (most < 2 && std::chrono::steady_clock::now() < ends) std::this_thread::yield();
      --inside;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return most == 2;
}

void take_turns(Stepper& stepper, const std::vector<at::Tensor>& parameters) {
  const std::scoped_lock exclusively(stepper);
  stepper.take_turns(Turns::of(parameters));
}

TEST(Turns, AreTakenByThoseWhoShareAParameter) {
  const at::Tensor a = at::ones({1}), shared = at::ones({1}), b = at::ones({1});
  Stepper one, two;
  take_turns(one, {a, shared});
  take_turns(two, {shared, b});
  EXPECT_FALSE(go_together(one, two, 20ms));
}

TEST(Turns, AreNotTakenByOthers) {
  const at::Tensor a = at::ones({1}), b = at::ones({1});
  Stepper one, two;
  take_turns(one, {a});
  take_turns(two, {b});
  EXPECT_TRUE(go_together(one, two, 20s));
}

TEST(Turns, NobodyWaitsInACircle) {  // TURN-1
  const at::Tensor a = at::ones({1}), b = at::ones({1}), c = at::ones({1});
  Stepper makers[3], one, two;
  take_turns(makers[0], {a});
  take_turns(makers[1], {b});
  take_turns(makers[2], {c});
  take_turns(one, {a, b, c});
  take_turns(two, {c, b, a});
  std::vector<std::thread> threads;
  for (Stepper* const stepper : {&one, &two}) {
    threads.emplace_back([stepper] {
      for (int i = 0; i < 10'000; ++i) const std::scoped_lock exclusively(*stepper);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Turns, AParameterThatIsGoneIsForgotten) {
  for (int i = 0; i < 1000; ++i) {
    Stepper one, two;
    take_turns(one, {at::ones({1})});
    take_turns(two, {at::ones({1})});  // may well get the address that was free
    EXPECT_TRUE(go_together(one, two, 20s));
  }
}

}  // namespace
}  // namespace hawser::optim
