#include "hawser/node/autograd.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>
#include <thread>

#include "hawser/engine/current_context.h"
#include "hawser/node/autograd_context.h"
#include "hawser/node/ref.h"
#include "support/memory_store.h"
#include "support/outcome.h"
#include "support/process.h"

namespace hawser {
namespace {

using autograd::Context;

at::Tensor leaf(std::vector<double> values) {
  return at::tensor(values, at::kDouble).set_requires_grad(true);
}

// Raises when its gradient is asked for.
struct FailsBackward : torch::autograd::Function<FailsBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list) {
    throw std::runtime_error("no gradient today");
  }
};

class AutogradTest : public ::testing::Test {
 protected:
  AutogradTest() {
    for (Node* node : {&b_, &c_}) {
      node->serve("mul", [](at::Tensor x, at::Tensor y) { return x * y; });
      node->serve("weighted", [this](at::Tensor x) { return x * weight_; });
      node->serve("fails_backward", [](at::Tensor x) { return FailsBackward::apply(x); });
      node->serve("through", [node](const std::string& to, at::Tensor x, at::Tensor y) {
        return node->call<at::Tensor>(to, "mul", x * 2, y).get() + x;
      });
    }
    b_.serve("made", [](at::Tensor x) { return x * x; });
  }

  // On another node: the gradients it has in this context.
  static at::Tensor gradient(Node& node, autograd::ContextId context, const at::Tensor& of) {
    return node.autograd().gradients(context).at(of);
  }

  static NodeOptions options(const std::string& name, std::uint32_t rank,
                             const std::shared_ptr<agent::WorldStore>& store) {
    NodeOptions options;
    options.name = name;
    options.store = store;
    options.rank = rank;
    options.world_size = 3;
    options.transports = {"shm"};
    return options;
  }

  at::Tensor weight_ = leaf({3, 5});
  const std::shared_ptr<agent::WorldStore> store_ = std::make_shared<testing::MemoryStore>();
  Node a_{options("a", 0, store_)};
  Node b_{options("b", 1, store_)};
  Node c_{options("c", 2, store_)};
};

TEST_F(AutogradTest, OneRoundTrip) {
  const at::Tensor x = leaf({1, 2}), y = leaf({3, 4});
  Context context(a_);
  const at::Tensor product = a_.call<at::Tensor>("b", "mul", x, y).get();
  EXPECT_TRUE(product.requires_grad());
  context.backward({product.sum()});
  EXPECT_TRUE(at::equal(context.gradients().at(x), y));
  EXPECT_TRUE(at::equal(context.gradients().at(y), x));
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(AutogradTest, LeavesOfOtherNodesHaveTheirGradientsThere) {
  const at::Tensor x = leaf({1, 2});
  Context context(a_);
  context.backward({a_.call<at::Tensor>("b", "weighted", x).get().sum()});
  EXPECT_TRUE(at::equal(context.gradients().at(x), weight_));
  EXPECT_TRUE(at::equal(gradient(b_, context.id(), weight_), x));
  EXPECT_FALSE(weight_.grad().defined());
}

TEST_F(AutogradTest, NestedCallsJoinTheContext) {
  const at::Tensor x = leaf({1, 2}), y = leaf({3, 4});
  Context context(a_);
  // ((2x * y) + x) of b, in which c multiplies
  const at::Tensor out = a_.call<at::Tensor>("b", "through", std::string("c"), x, y).get();
  context.backward({(out * out).sum()});
  const at::Tensor x2 = leaf({1, 2}), y2 = leaf({3, 4});
  const at::Tensor same = 2 * x2 * y2 + x2;
  const auto expected = torch::autograd::grad({(same * same).sum()}, {x2, y2});
  EXPECT_TRUE(at::allclose(context.gradients().at(x), expected[0]));
  EXPECT_TRUE(at::allclose(context.gradients().at(y), expected[1]));
}

TEST_F(AutogradTest, ThroughOneself) {
  const at::Tensor x = leaf({1, 2}), y = leaf({3, 4});
  a_.serve("mul", [](at::Tensor p, at::Tensor q) { return p * q; });
  Context context(a_);
  context.backward({a_.call<at::Tensor>("a", "mul", x, y).get().sum()});
  EXPECT_TRUE(at::equal(context.gradients().at(x), y));
}

TEST_F(AutogradTest, ReferencesStayInTheGraph) {
  const at::Tensor x = leaf({1, 2});
  Context context(a_);
  const auto made = a_.remote<at::Tensor>("b", "made", x);
  context.backward({made.fetch().get().sum()});
  EXPECT_TRUE(at::equal(context.gradients().at(x), 2 * x));
}

TEST_F(AutogradTest, RepeatedPassesAddUpAndFreeTheGraphAtLast) {
  const at::Tensor x = leaf({1, 2}), y = leaf({3, 4});
  Context context(a_);
  const at::Tensor loss = a_.call<at::Tensor>("b", "mul", x, y).get().sum();
  context.backward({loss}, {.retain_graph = true});
  context.backward({loss});
  EXPECT_TRUE(at::equal(context.gradients().at(x), 2 * y));
  EXPECT_THROW(context.backward({loss}), Error);
  EXPECT_TRUE(at::equal(context.gradients().at(x), 2 * y));  // a failed pass adds nothing
}

TEST_F(AutogradTest, AnUnusedResultIsNotWaitedFor) {
  const at::Tensor x = leaf({1, 2}), y = leaf({3, 4});
  Context context(a_);
  const at::Tensor used = a_.call<at::Tensor>("b", "mul", x, y).get();
  const at::Tensor unused = a_.call<at::Tensor>("b", "mul", x, y).get();
  context.backward({used.sum()});
  EXPECT_TRUE(at::equal(context.gradients().at(x), y));
}

TEST_F(AutogradTest, InFastModeAnUnusedResultEndsWithTheTimeout) {
  const at::Tensor x = leaf({1, 2}), y = leaf({3, 4});
  Context context(a_);
  const at::Tensor used = a_.call<at::Tensor>("b", "mul", x, y).get();
  const at::Tensor unused = a_.call<at::Tensor>("b", "mul", x, y).get();
  const BackwardOptions fast{.retain_graph = true,
                             .timeout = std::chrono::milliseconds(100),
                             .mode = autograd::Mode::Fast};
  try {
    context.backward({used.sum()}, fast);
    FAIL() << "it cannot end";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Timeout);
  }
  context.backward({used.sum()});  // the context is as it was
  EXPECT_TRUE(at::equal(context.gradients().at(x), y));
}

// Unless told otherwise it ends when a call would.
TEST_F(AutogradTest, FastModeHasALimitOfItsOwn) {
  const at::Tensor x = leaf({1, 2}), y = leaf({3, 4});
  Context context(a_);
  const at::Tensor used = a_.call<at::Tensor>("b", "mul", x, y).get();
  const at::Tensor unused = a_.call<at::Tensor>("b", "mul", x, y).get();
  a_.set_call_timeout(std::chrono::milliseconds(100));
  EXPECT_EQ(testing::error_of([&] {
              context.backward({used.sum()}, {.mode = autograd::Mode::Fast});
            }).kind(),
            ErrorKind::Timeout);
}

TEST_F(AutogradTest, FastModeGivesTheSame) {
  const at::Tensor x = leaf({1, 2}), y = leaf({3, 4});
  Context context(a_);
  const at::Tensor out = a_.call<at::Tensor>("b", "through", std::string("c"), x, y).get();
  context.backward({out.sum()}, {.mode = autograd::Mode::Fast});
  EXPECT_TRUE(at::equal(context.gradients().at(x), 2 * y + 1));
}

TEST_F(AutogradTest, AnErrorOfAnotherNodeComesHomeWithItsName) {
  const at::Tensor x = leaf({1, 2});
  Context context(a_);
  const at::Tensor out = a_.call<at::Tensor>("b", "fails_backward", x).get();
  try {
    context.backward({out.sum()});
    FAIL() << "it has to throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Remote);
    EXPECT_EQ(error.message(), "no gradient today");
    EXPECT_EQ(error.details().node, "b");
  }
  EXPECT_EQ(context.gradients().size(), 0u);
}

// A sum that cannot be made: the leaf has another shape than at the first pass.
TEST_F(AutogradTest, GradientsThatCannotBeAddedFailThePass) {
  at::Tensor x = leaf({1, 2});
  Context context(a_);
  context.backward({a_.call<at::Tensor>("b", "mul", x, x).get().sum()});
  x.set_data(at::ones({3}, at::kDouble));
  EXPECT_EQ(testing::error_of([&] {
              context.backward({a_.call<at::Tensor>("b", "mul", x, x).get().sum()});
            }).kind(),
            ErrorKind::Remote);
  EXPECT_EQ(context.gradients().at(x).numel(), 2);  // as it was
  const at::Tensor y = leaf({3, 4});
  context.backward({a_.call<at::Tensor>("b", "mul", y, y).get().sum()});
  EXPECT_TRUE(at::equal(context.gradients().at(y), 2 * y));
  EXPECT_EQ(a_.autograd().count().passes, 0u);
}

TEST_F(AutogradTest, GradientsThatAnotherNodeCannotAddFailThePass) {
  const at::Tensor x = leaf({1, 2}), longer = leaf({1, 2, 3});
  Context context(a_);
  context.backward({a_.call<at::Tensor>("b", "weighted", x).get().sum()});
  weight_.set_data(at::ones({3}, at::kDouble));
  try {
    context.backward({a_.call<at::Tensor>("b", "weighted", longer).get().sum()});
    FAIL() << "it has to throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Remote) << error.what();
    EXPECT_EQ(error.details().node, "b");
  }
  EXPECT_FALSE(context.gradients().contains(longer));
  EXPECT_TRUE(testing::eventually([&] { return b_.autograd().count().passes == 0; }));
  context.backward({a_.call<at::Tensor>("b", "mul", longer, longer).get().sum()});
  EXPECT_TRUE(at::equal(context.gradients().at(longer), 2 * longer));
}

TEST_F(AutogradTest, NoticesArePartOfTheGraph) {
  const at::Tensor x = leaf({1, 2});
  auto [given, kept] = Promise<at::Tensor>::pair(b_.scheduler());
  b_.serve("keep", [&given](at::Tensor y) { given.succeed(std::move(y)); });
  b_.serve("kept_squared", [&kept] { return kept.get() * kept.get(); });
  Context context(a_);
  a_.notify("b", "keep", x);
  context.backward({a_.call<at::Tensor>("b", "kept_squared").get().sum()});
  EXPECT_TRUE(at::equal(context.gradients().at(x), 2 * x));
}

TEST_F(AutogradTest, ToProfilersAPassIsOneScope) {
  const at::Tensor x = leaf({1, 2});
  Context context(a_);
  const at::Tensor loss = a_.call<at::Tensor>("b", "weighted", x).get().sum();
  static int scopes = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) {
        scopes += std::string_view(function.name()) == "torch::distributed::autograd::backward";
        return std::unique_ptr<at::ObserverContext>();
      }).scopes({at::RecordScope::USER_SCOPE}));
  context.backward({loss});
  at::removeCallback(handle);
  EXPECT_EQ(scopes, 1);
}

TEST_F(AutogradTest, MixedWithAndWithoutGradient) {
  const at::Tensor x = leaf({1, 2}), y = at::tensor({3.0, 4.0});
  Context context(a_);
  context.backward({a_.call<at::Tensor>("b", "mul", x, y.to(at::kDouble)).get().sum()});
  EXPECT_EQ(context.gradients().size(), 1u);
}

TEST_F(AutogradTest, ContextsOfSeveralThreadsAreApart) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int step = 0; step < 25; ++step) {
        const at::Tensor x = leaf({1.0 + i, 2.0 + step});
        Context context(a_);
        context.backward({a_.call<at::Tensor>("b", "through", std::string("c"), x, x).get().sum()});
        if (at::equal(context.gradients().at(x), 4 * x + 1)) ++right;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 100);
}

TEST_F(AutogradTest, NothingStaysWhenTheContextEnds) {
  {
    const at::Tensor x = leaf({1, 2}), y = leaf({3, 4});
    Context context(a_);
    context.backward({a_.call<at::Tensor>("b", "through", std::string("c"), x, y).get().sum()});
    EXPECT_EQ(c_.autograd().count().contexts, 1u);
  }
  for (Node* node : {&a_, &b_, &c_}) {
    EXPECT_TRUE(testing::eventually([&] {
      const auto counts = node->autograd().count();
      return counts.contexts == 0 && counts.passes == 0;
    }));
  }
}

TEST_F(AutogradTest, OutsideOfAContextNothingIsRecorded) {
  const at::Tensor x = leaf({1, 2});
  const at::Tensor out = a_.call<at::Tensor>("b", "mul", x, x).get();
  EXPECT_TRUE(out.requires_grad());
  EXPECT_TRUE(out.is_leaf());
  EXPECT_EQ(b_.autograd().count().contexts, 0u);
}

TEST_F(AutogradTest, AnOrdinaryBackwardSaysWhatToDo) {
  const at::Tensor x = leaf({1, 2});
  Context context(a_);
  const at::Tensor out = a_.call<at::Tensor>("b", "mul", x, x).get();
  try {
    out.sum().backward();
    FAIL() << "the gradient of x would be lost";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("distributed autograd context"), std::string::npos);
  }
}

TEST_F(AutogradTest, RefusesRootsThatMakeNoSense) {
  Context context(a_);
  EXPECT_THROW(context.backward({}), Error);
  EXPECT_THROW(context.backward({at::ones({})}), Error);
  EXPECT_THROW(context.backward({leaf({1, 2}) * 2}), Error);
  EXPECT_THROW(context.backward({leaf({1})}), Error);
  EXPECT_THROW(Context nested(a_), Error);
}

}  // namespace
}  // namespace hawser
