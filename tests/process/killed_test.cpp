// kill -9, and other ways to end without a word.
#include <ATen/ops/ones.h>

#include <atomic>

#include "process/world.h"

namespace hawser::testing {
namespace {

using Clock = std::chrono::steady_clock;

class Killed : public OverTransports {
 protected:
  static std::ptrdiff_t open_files() {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  }
  // It fails with PeerLost, and `since` is a moment ago.
  template <class T>
  void expect_lost_at_once(const Future<T>& call, const Worker& callee, Clock::time_point since) {
    ASSERT_TRUE(call.wait_for(kPatience));
    EXPECT_LT(Clock::now() - since, kAtOnce);
    const auto& outcome = call.wait();
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().kind(), ErrorKind::PeerLost) << outcome.error().what();
    EXPECT_EQ(outcome.error().details().node, "callee");
    EXPECT_EQ(outcome.error().details().incarnation, callee.incarnation());
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, Killed, kTransports);

TEST_P(Killed, CalleeDuringACall) {
  Node caller(options("caller"));
  Worker callee(options("callee"));
  const auto call = caller.call<void>("callee", "hold");
  callee.channel().expect("holding");
  const auto killed = Clock::now();
  callee.process().kill();
  expect_lost_at_once(call, callee, killed);
  EXPECT_LT(call.wait().error().details().last_heard.value(), kPatience);
  EXPECT_TRUE(eventually([&] { return peer_of(caller, "callee").state == "lost"; }));
}

TEST_P(Killed, CalleeWithAThousandCallsUnderWay) {
  Node caller(options("caller"));
  Worker callee(options("callee"));
  std::vector<Future<void>> calls;
  for (int i = 0; i < 1000; ++i) calls.push_back(caller.call<void>("callee", "hold"));
  callee.channel().expect("holding");
  const auto killed = Clock::now();
  callee.process().kill();
  for (const auto& call : calls) expect_lost_at_once(call, callee, killed);
  EXPECT_EQ(caller.inspect().calls.size(), 0u);
}

// It stands still, so that the transfer cannot be over when it is killed.
TEST_P(Killed, CalleeWhileALargeTensorIsOnItsWay) {
  Node caller(options("caller"));
  Worker callee(options("callee"));
  caller.call<std::int64_t>("callee", "add", 1, 2).get();
  const auto sent_before = peer_of(caller, "callee").traffic.bytes_sent;
  callee.process().stop();
  const auto call = caller.call<at::Tensor>("callee", "echo", at::ones({128 * kMiB}, at::kByte));
  EXPECT_TRUE(
      eventually([&] { return peer_of(caller, "callee").traffic.bytes_sent > sent_before; }));
  EXPECT_FALSE(call.done());
  const auto killed = Clock::now();
  callee.process().kill();
  expect_lost_at_once(call, callee, killed);
}

// The first answer is there, the others are being written.
TEST_P(Killed, CalleeWhileItSendsLargeTensors) {
  Node caller(options("caller"));
  Worker callee(options("callee"));
  std::vector<Future<at::Tensor>> answers;
  for (int i = 0; i < 16; ++i) {
    answers.push_back(caller.call<at::Tensor>("callee", "make", 32 * kMiB));
  }
  ASSERT_TRUE(answers.front().wait_for(kPatience));
  const auto killed = Clock::now();
  callee.process().kill();
  for (const auto& answer : answers) ASSERT_TRUE(answer.wait_for(kPatience));
  EXPECT_LT(Clock::now() - killed, kAtOnce);
  std::size_t lost = 0;
  for (const auto& answer : answers) {
    if (answer.wait().ok()) {
      EXPECT_EQ(answer.wait().value().sum().item<std::int64_t>(), 7 * 32 * kMiB);
    } else {
      EXPECT_EQ(answer.wait().error().kind(), ErrorKind::PeerLost);
      ++lost;
    }
  }
  EXPECT_GT(lost, 0u);
}

TEST_P(Killed, CallerIsMissedByTheHandlerAndNotByOthers) {
  Node callee(options("callee"));
  Event held, cancelled;
  callee.serve("hold", [&](const CallContext& context) {
    EXPECT_EQ(context.caller(), "caller");
    context.on_cancel([&] { cancelled.set(); });
    held.set();
    EXPECT_TRUE(cancelled.sleep_until(Deadline::after(SteadyClock(), kPatience)));
    EXPECT_TRUE(context.cancelled());
  });
  callee.serve("add", [](std::int64_t a, std::int64_t b) { return a + b; });
  Worker other(options("other"));
  EXPECT_EQ(other.call_all({"callee"}), 1u);

  Worker caller(options("caller"));
  caller.call("callee", "hold");
  ASSERT_TRUE(held.sleep_until(Deadline::after(SteadyClock(), kPatience)));
  const auto killed = Clock::now();
  caller.process().kill();
  ASSERT_TRUE(cancelled.sleep_until(Deadline::after(SteadyClock(), kPatience)));
  EXPECT_LT(Clock::now() - killed, kAtOnce);
  EXPECT_EQ(other.call_all({"callee", "callee"}), 2u);
  EXPECT_TRUE(callee.close(kPatience));
}

// Part of it has arrived, and the rest never will. In shared memory there is no such part: a tensor
// is announced when it is complete.
TEST_P(Killed, CallerWhileItSendsALargeTensor) {
  if (GetParam() != std::string("tcp")) GTEST_SKIP();
  Node callee(options("callee"));
  std::atomic<int> served{0};
  callee.serve("echo", [&](at::Tensor x) {
    ++served;
    return x;
  });
  callee.serve("add", [](std::int64_t a, std::int64_t b) { return a + b; });
  Worker other(options("other"));
  EXPECT_EQ(other.call_all({"callee"}), 1u);
  Worker caller(options("caller"));
  const auto files_before = open_files();
  const auto lent_before = callee.inspect().memory.lent;

  EXPECT_EQ(caller.call_all({"callee"}), 1u);
  const auto received = [&] { return peer_of(callee, "caller").traffic.bytes_received; };
  const auto received_before = received();
  caller.channel().tell("send callee " + std::to_string(256 * kMiB));
  EXPECT_TRUE(eventually([&] { return received() > received_before + kMiB; }));
  caller.process().kill();
  EXPECT_TRUE(eventually([&] { return peer_of(callee, "caller").state == "lost"; }));
  EXPECT_EQ(served, 0);
  EXPECT_EQ(other.call_all({"callee"}), 1u);
  EXPECT_TRUE(eventually([&] { return callee.inspect().memory.lent <= lent_before; }))
      << callee.inspect().memory.lent << " bytes";
  EXPECT_TRUE(eventually([&] { return open_files() <= files_before; })) << open_files() << " files";
}

// It is connected to, and does not answer: it stands still.
TEST_P(Killed, CalleeWhileItIsBeingConnectedTo) {
  Node caller(options("caller"));
  Worker callee(options("callee"));
  callee.process().stop();
  const auto call = caller.call<std::int64_t>("callee", "add", 1, 2);
  ASSERT_TRUE(eventually([&] { return peer_of(caller, "callee").state == "seeking"; }));
  const auto killed = Clock::now();
  callee.process().kill();
  ASSERT_TRUE(call.wait_for(kPatience));
  EXPECT_LT(Clock::now() - killed, kAtOnce);
  ASSERT_FALSE(call.wait().ok());
  EXPECT_EQ(call.wait().error().kind(), ErrorKind::PeerLost) << call.wait().error().what();
}

// However a process ends, its callers know at once, and it does not crash on its way out.
TEST_P(Killed, ExitWithoutShutdown) {
  Node caller(options("caller"));
  for (const auto& [command, code] :
       {std::pair("exit", 0), std::pair("exit_with_static_node", 0), std::pair("vanish", 7)}) {
    SCOPED_TRACE(command);
    Worker callee(options("callee"));
    const auto call = caller.call<void>("callee", "hold");
    callee.channel().expect("holding");
    const auto left = Clock::now();
    callee.channel().tell(command);
    expect_lost_at_once(call, callee, left);
    EXPECT_EQ(callee.process().wait(), (Ending{.code = code, .signal = {}}));
  }
}

TEST_P(Killed, NotAtAllButClosedDuringACall) {
  Node caller(options("caller"));
  Worker callee(options("callee"));
  const auto call = caller.call<void>("callee", "hold");
  callee.channel().expect("holding");
  callee.channel().tell("close");
  EXPECT_EQ(error_of([&] { call.get(); }).kind(), ErrorKind::PeerLost);
  callee.channel().expect("cancelled");
  EXPECT_EQ(callee.process().wait(), (Ending{.code = 0, .signal = {}}));
  EXPECT_EQ(callee.process().output(), "");
}

TEST_P(Killed, RestartedUnderTheSameName) {
  Node caller(options("caller"));
  std::optional<Worker> callee(std::in_place, options("callee"));
  const std::uint64_t first = callee->incarnation();
  EXPECT_EQ(caller.call<std::int64_t>("callee", "add", 1, 2).get(), 3);

  callee->process().kill();
  callee->process().wait();
  ASSERT_TRUE(eventually([&] { return peer_of(caller, "callee").state == "lost"; }));
  const auto called = Clock::now();
  const Error error = error_of([&] { caller.call<std::int64_t>("callee", "add", 1, 2).get(); });
  EXPECT_EQ(error.kind(), ErrorKind::PeerLost) << error.what();
  EXPECT_LT(Clock::now() - called, kAtOnce);

  callee.emplace(options("callee"));
  EXPECT_GT(callee->incarnation(), first);
  EXPECT_EQ(caller.call<std::int64_t>("callee", "add", 3, 4).get(), 7);
  EXPECT_EQ(peer_of(caller, "callee").incarnation, callee->incarnation());
}

#ifdef HAWSER_DELIBERATE_FAULTS
// At every step of setting up a connection and of the first bytes, at either end. The survivor
// hears of it, goes on, and keeps nothing of what was being set up.
TEST_P(Killed, WhileTheConnectionIsMade) {
  constexpr int kSteps = 24;
  Node survivor(options("survivor"));
  Worker steady(options("steady"));
  survivor.call<std::int64_t>("steady", "add", 1, 2).get();
  const auto before = open_files();
  int killed = 0;
  for (int step = 1; step <= kSteps; ++step) {
    for (const bool victim_calls : {false, true}) {
      SCOPED_TRACE("step " + std::to_string(step) + (victim_calls ? " of a caller" : ""));
      const std::string name = (victim_calls ? "caller" : "callee") + std::to_string(step);
      Worker victim(options(name));
      victim.die_at_step(step);
      if (victim_calls) {
        victim.call("survivor", "anything");
        killed += !victim.channel().hear(kPatience).has_value();
      } else {
        const auto sum =
            survivor.call<std::int64_t>({.to = name, .timeout = kPatience}, "add", 1, 2);
        ASSERT_TRUE(sum.wait_for(2 * kPatience));
        if (!sum.wait().ok()) {
          EXPECT_EQ(sum.wait().error().kind(), ErrorKind::PeerLost) << sum.wait().error().what();
          ++killed;
        }
      }
      victim.process().kill();
      EXPECT_EQ(survivor.call<std::int64_t>("steady", "add", 20, 22).get(), 42);
    }
  }
  EXPECT_GT(killed, 4);
  EXPECT_TRUE(eventually([&] { return open_files() <= before; })) << open_files() << " files";
}
#endif

}  // namespace
}  // namespace hawser::testing
