// Distributed autograd between processes that compute, fail and die.
#include "hawser/node/autograd.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <array>
#include <future>

#include "process/world.h"

namespace hawser::testing {
namespace {

using autograd::Context;
using Counts = std::tuple<std::int64_t, std::int64_t>;  // contexts, passes

class Autograd : public OverTransports {
 protected:
  static at::Tensor leaf() { return at::full({4}, 3.0, at::kDouble).set_requires_grad(true); }

  static bool idle(Node& asker, const std::string& node) {
    return asker.call<Counts>(node, "count_autograd").get() == Counts(0, 0);
  }
  static bool has_no_pass(Node& asker, const std::string& node) {
    return std::get<1>(asker.call<Counts>(node, "count_autograd").get()) == 0;
  }
  static at::Tensor gradient_at(Node& asker, const std::string& node, const Context& context) {
    return asker.call<at::Tensor>(node, "gradient", static_cast<std::int64_t>(number(context.id())))
        .get();
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, Autograd, kTransports);

TEST_P(Autograd, GradientsOfThreeProcesses) {
  Node node(options("trainer"));
  Worker first(options("first")), second(options("second"));
  const at::Tensor x = leaf();
  Context context(node);
  // x * 2 on the one, * 2 on the other
  const at::Tensor out = node.call<at::Tensor>("first", "scale_via", "second", "scale", x).get();
  context.backward({out.sum()});
  EXPECT_TRUE(at::equal(context.gradients().at(x), at::full({4}, 4.0, at::kDouble)));
  EXPECT_TRUE(at::equal(gradient_at(node, "first", context), at::full({4}, 6.0, at::kDouble)));
  EXPECT_TRUE(at::equal(gradient_at(node, "second", context), at::full({4}, 6.0, at::kDouble)));
}

// The same as finite differences say.
TEST_P(Autograd, GradientsAgreeWithDifferences) {
  Node node(options("trainer"));
  Worker first(options("first")), second(options("second"));
  const auto loss_of = [&](const at::Tensor& x) {
    at::Tensor h = x;
    for (int step = 0; step < 3; ++step) {
      const at::Tensor a = node.call<at::Tensor>("first", "scale", h.sin()).get();
      const at::Tensor b =
          node.call<at::Tensor>("second", "scale_via", "first", "scale", h * a).get();
      h = (a + b).tanh();
    }
    return (h * h).sum();
  };
  const at::Tensor x = at::tensor({0.1, -0.2, 0.3, 0.7}, at::kDouble).set_requires_grad(true);
  at::Tensor analytic;
  {
    Context context(node);
    context.backward({loss_of(x)});
    analytic = context.gradients().at(x);
  }
  constexpr double kStep = 1e-6;
  for (std::int64_t i = 0; i < 4; ++i) {
    at::Tensor up = x.detach().clone(), down = x.detach().clone();
    up[i] += kStep;
    down[i] -= kStep;
    const double numeric = (loss_of(up) - loss_of(down)).item<double>() / (2 * kStep);
    EXPECT_NEAR(analytic[i].item<double>(), numeric, 1e-6 * (1 + std::abs(numeric)));
  }
}

TEST_P(Autograd, AProcessKilledInTheMidstOfBackward) {
  Node node(options("trainer"));
  Worker middle(options("middle")), end(options("end")), other(options("other"));
  const at::Tensor x = leaf();
  {
    Context context(node);
    const at::Tensor out =
        node.call<at::Tensor>("middle", "scale_via", "end", "stall_backward", x).get();
    auto pass = node.backward(context.id(), {out.sum()});
    end.channel().expect("in backward");
    const TimePoint killed = std::chrono::steady_clock::now();
    end.process().kill();
    ASSERT_TRUE(pass.wait_for(kPatience));
    EXPECT_LT(std::chrono::steady_clock::now() - killed, kAtOnce);
    EXPECT_TRUE(eventually([&] { return has_no_pass(node, "middle"); }));
    EXPECT_LT(std::chrono::steady_clock::now() - killed, kAtOnce);
    ASSERT_FALSE(pass.wait().ok());
    EXPECT_EQ(pass.wait().error().kind(), ErrorKind::PeerLost) << pass.wait().error().what();
    EXPECT_EQ(pass.wait().error().details().node, "end") << pass.wait().error().what();
    EXPECT_EQ(context.gradients().size(), 0u);
    EXPECT_FALSE(gradient_at(node, "middle", context).defined());
  }
  EXPECT_TRUE(eventually([&] { return idle(node, "middle"); }));
  {
    Context context(node);
    const at::Tensor out = node.call<at::Tensor>("middle", "scale_via", "other", "scale", x).get();
    context.backward({out.sum()});
    EXPECT_TRUE(at::equal(context.gradients().at(x), at::full({4}, 4.0, at::kDouble)));
  }
  EXPECT_TRUE(eventually([&] { return idle(node, "middle") && idle(node, "other"); }));
}

// Also where a function of the pass does not return.
TEST_P(Autograd, TimesOutEverywhere) {
  Node node(options("trainer"));
  Worker middle(options("middle")), end(options("end"));
  Context context(node);
  const at::Tensor out =
      node.call<at::Tensor>("middle", "scale_via", "end", "stall_backward", leaf()).get();
  const auto error =
      error_of([&] { context.backward({out.sum()}, {.timeout = std::chrono::milliseconds(300)}); });
  EXPECT_EQ(error.kind(), ErrorKind::Timeout) << error.what();
  EXPECT_EQ(node.inspect().autograd.passes, 0u);
  EXPECT_TRUE(eventually([&] { return has_no_pass(node, "middle"); }));
  EXPECT_TRUE(eventually([&] { return has_no_pass(node, "end"); }));
  EXPECT_FALSE(gradient_at(node, "middle", context).defined());
  end.process().kill();
}

TEST_P(Autograd, IsCancelledEverywhere) {
  Node node(options("trainer"));
  Worker middle(options("middle")), end(options("end"));
  Context context(node);
  const at::Tensor out =
      node.call<at::Tensor>("middle", "scale_via", "end", "stall_backward", leaf()).get();
  auto pass = node.backward(context.id(), {out.sum()});
  end.channel().expect("in backward");
  pass.cancel();
  ASSERT_TRUE(pass.wait_for(kPatience));
  EXPECT_EQ(pass.wait().error().kind(), ErrorKind::Cancelled);
  EXPECT_TRUE(eventually([&] { return node.inspect().autograd.passes == 0; }));
  EXPECT_TRUE(eventually([&] { return has_no_pass(node, "middle"); }));
  EXPECT_TRUE(eventually([&] { return has_no_pass(node, "end"); }));
  end.process().kill();
}

TEST_P(Autograd, ContextsOfAKilledCreatorAreCollected) {
  Node node(options("observer"));
  Worker creator(options("creator")), member(options("member"));
  node.notify("creator", "hold_context", "member");
  creator.channel().expect("holding");
  EXPECT_FALSE(idle(node, "member"));
  creator.process().kill();
  EXPECT_TRUE(eventually([&] { return idle(node, "member"); }));
}

TEST_P(Autograd, NoMemoryStays) {
  constexpr int kIterations = 10'000, kWarmUp = 1'000, kSteps = 2;
  // Endings are remembered for a minute, in some 200 bytes a step; the rest is the allocators'.
  constexpr std::int64_t kAllowed = std::int64_t{4} << 20;
  Node node(options("trainer"));
  Worker first(options("first")), second(options("second"));
  const at::Tensor x = leaf();
  const auto step = [&] {
    Context context(node);
    at::Tensor h = x;
    for (int i = 0; i < kSteps; ++i) {
      h = node.call<at::Tensor>(i % 2 ? "first" : "second", "scale", h).get().tanh();
    }
    context.backward({h.sum()});
    ASSERT_EQ(context.gradients().size(), 1u);
  };
  const auto resident = [&] {
    return std::array{static_cast<std::int64_t>(resident_bytes(::getpid())),
                      node.call<std::int64_t>("first", "resident").get(),
                      node.call<std::int64_t>("second", "resident").get()};
  };
  for (int i = 0; i < kWarmUp; ++i) step();
  const auto before = resident();
  for (int i = kWarmUp; i < kIterations; ++i) step();
  const auto after = resident();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_LT(after[i] - before[i], kAllowed) << "process " << i;
  }
  EXPECT_TRUE(eventually([&] { return idle(node, "first") && idle(node, "second"); }));
  EXPECT_EQ(node.inspect().autograd.contexts, 0u);
}

}  // namespace
}  // namespace hawser::testing
