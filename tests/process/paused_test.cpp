// SIGSTOP and SIGCONT: silence is not death until it has lasted.
#include <ATen/ops/full.h>

#include <thread>

#include "process/world.h"

namespace hawser::testing {
namespace {

using Clock = std::chrono::steady_clock;

class Paused : public OverTransports {
 protected:
  NodeOptions options(const std::string& name, Duration lost_after) const {
    NodeOptions options = OverTransports::options(name);
    options.failure_detector = quick_detector(lost_after);
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, Paused, kTransports);

TEST_P(Paused, ShorterThanTheLimitLosesNothing) {
  Node caller(options("caller", kPatience));
  Worker callee(options("callee", kPatience));
  EXPECT_EQ(caller.call<std::int64_t>("callee", "add", 1, 2).get(), 3);

  callee.process().stop();
  std::vector<Future<std::int64_t>> sums;
  for (int i = 0; i < 100; ++i) {
    sums.push_back(caller.call<std::int64_t>("callee", "add", i, 1));
  }
  ASSERT_TRUE(eventually([&] { return peer_of(caller, "callee").state == "suspect"; }));
  EXPECT_GE(*peer_of(caller, "callee").since_heard, 300ms);
  for (const auto& sum : sums) EXPECT_FALSE(sum.done());

  callee.process().resume();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sums[static_cast<std::size_t>(i)].get(), i + 1);
  EXPECT_TRUE(eventually([&] { return peer_of(caller, "callee").state == "connected"; }));
  EXPECT_EQ(peer_of(caller, "callee").incarnation, callee.incarnation());
}

// FLOW-1: whoever goes on calling one that stands still is stopped in time.
TEST_P(Paused, CallsToOneThatStandsStillAreBounded) {
  NodeOptions narrow = options("caller", kPatience);
  narrow.limits.max_bytes_in_flight_per_peer = std::size_t{1} << 20;
  Node caller(narrow);
  Worker callee(options("callee", kPatience));
  const at::Tensor small = at::full({1024}, 1, at::kByte);
  caller.call<at::Tensor>("callee", "echo", small).get();

  callee.process().stop();
  std::thread calling([&] {
    std::vector<Future<at::Tensor>> echoes;
    for (int i = 0; i < 3000; ++i) {
      echoes.push_back(
          caller.call<at::Tensor>({.to = "callee", .timeout = kPatience}, "echo", small));
    }
    for (const auto& echo : echoes) EXPECT_TRUE(echo.get().equal(small));
  });
  EXPECT_TRUE(eventually([&] {
    const auto one_more = caller.call<at::Tensor>({.to = "callee", .timeout = 50ms}, "echo", small);
    return one_more.wait().error().kind() == ErrorKind::Overloaded;
  }));
  EXPECT_GT(peer_of(caller, "callee").outgoing, 500u);
  EXPECT_LE(peer_of(caller, "callee").outgoing, 1024u);
  callee.process().resume();
  calling.join();
}

TEST_P(Paused, LongerThanTheLimitIsLostAndComesBackAsAnother) {
  Node node(options("node", 1s));
  Event cancelled;
  node.serve("hold", [&](const CallContext& context) {
    context.on_cancel([&] { cancelled.set(); });
    cancelled.sleep_until(Deadline::after(SteadyClock(), kPatience));
  });
  node.serve("greet", [] {});
  Worker sleeper(options("sleeper", kPatience));
  const auto ours = node.call<void>("sleeper", "hold");
  sleeper.channel().expect("holding");
  sleeper.call("node", "hold");
  ASSERT_TRUE(eventually([&] { return peer_of(node, "sleeper").incoming == 1; }));

  const auto stopped = Clock::now();
  sleeper.process().stop();
  ASSERT_TRUE(eventually([&] { return peer_of(node, "sleeper").state == "suspect"; }));
  EXPECT_FALSE(ours.done());
  ASSERT_TRUE(ours.wait_for(kPatience));
  EXPECT_GE(Clock::now() - stopped, 900ms);
  EXPECT_LT(Clock::now() - stopped, 1s + kAtOnce);
  ASSERT_FALSE(ours.wait().ok());
  const Error& error = ours.wait().error();
  EXPECT_EQ(error.kind(), ErrorKind::PeerLost) << error.what();
  EXPECT_EQ(error.details().incarnation, sleeper.incarnation());
  EXPECT_GE(*error.details().last_heard, 1s);
  EXPECT_TRUE(cancelled.sleep_until(Deadline::after(SteadyClock(), kAtOnce)));
  ASSERT_TRUE(eventually([&] { return peer_of(node, "sleeper").state == "lost"; }));

  // It learns of its loss, and that nobody serves its call any more; and so do its handlers.
  sleeper.process().resume();
  std::vector<std::string> heard{*sleeper.channel().hear(), *sleeper.channel().hear()};
  std::sort(heard.begin(), heard.end());
  EXPECT_EQ(heard, (std::vector<std::string>{"cancelled", "outcome hold PeerLost"}));

  EXPECT_EQ(node.call<std::int64_t>("sleeper", "add", 1, 2).get(), 3);
  EXPECT_GT(peer_of(node, "sleeper").incarnation, sleeper.incarnation());
  EXPECT_EQ(sleeper.ask_incarnation(), peer_of(node, "sleeper").incarnation);
  sleeper.call("node", "greet");
  sleeper.channel().expect("outcome greet ok");
}

// The one that was stopped calls first: it is refused, rejoins, and its call goes through.
TEST_P(Paused, LongerThanTheLimitAndThenCallsByItself) {
  Node node(options("node", 1s));
  node.serve("greet", [] {});
  Worker sleeper(options("sleeper", kPatience));
  sleeper.call("node", "greet");
  sleeper.channel().expect("outcome greet ok");
  sleeper.process().stop();
  ASSERT_TRUE(eventually([&] { return peer_of(node, "sleeper").state == "lost"; }));
  sleeper.process().resume();
  // Its first calls may still go out on the connection that is gone.
  ASSERT_TRUE(eventually([&] {
    sleeper.call("node", "greet");
    return sleeper.channel().expect("outcome greet ") == "ok";
  }));
  EXPECT_GT(sleeper.ask_incarnation(), sleeper.incarnation());
  EXPECT_EQ(peer_of(node, "sleeper").incarnation, sleeper.ask_incarnation());
}

}  // namespace
}  // namespace hawser::testing
