#include "hawser/node/node.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <latch>
#include <thread>

#include "hawser/node/coroutine.h"
#include "support/memory_store.h"
#include "support/process.h"
#include "support/test_certificates.h"

namespace hawser {
namespace {

using namespace std::chrono_literals;

ErrorKind kind_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::Invalid;
}

const agent::PeerReport& peer_of(const NodeReport& report, const std::string& name) {
  const auto found = std::find_if(report.peers.begin(), report.peers.end(),
                                  [&](const auto& peer) { return peer.name == name; });
  if (found == report.peers.end()) throw std::runtime_error("no peer '" + name + "'");
  return *found;
}

struct Point {
  double x = 0;
  std::int64_t y = 0;
};
HAWSER_FIELDS(Point, x, y)

// Two nodes in one process, over each transport.
class TwoNodes : public ::testing::TestWithParam<std::string> {
 protected:
  NodeOptions options(const std::string& name) {
    NodeOptions options;
    options.name = name;
    options.store = store_;
    options.transports = {GetParam()};
    if (GetParam() == "tls") {
      options.transports = {"tcp"};
      options.tls = authority_.issue(name);
    }
    options.call_timeout = 20s;
    return options;
  }
  std::shared_ptr<testing::MemoryStore> store_ = std::make_shared<testing::MemoryStore>();
  testing::TestAuthority authority_;
  Node a_{options("a")};
  Node b_{options("b")};
};

INSTANTIATE_TEST_SUITE_P(Transports, TwoNodes, ::testing::Values("shm", "tcp", "tls"));

TEST_P(TwoNodes, CallWithTensorsAndNumbers) {
  b_.serve("scale", [](at::Tensor x, double k) { return x * k; });
  const at::Tensor x = at::arange(6).reshape({2, 3}).to(at::kFloat);
  EXPECT_TRUE(at::equal(a_.call<at::Tensor>("b", "scale", x, 2.0).get(), x * 2));
}

TEST_P(TwoNodes, LargeTensorsArriveUnchanged) {
  b_.serve("echo", [](at::Tensor x) { return x; });
  const at::Tensor x = at::arange(4 << 20);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(a_.call<at::Tensor>("b", "echo", x).get(), x));
  }
}

TEST_P(TwoNodes, StructsAndContainers) {
  b_.serve("swap", [](Point p) { return Point{double(p.y), std::int64_t(p.x)}; });
  b_.serve("sum", [](std::vector<double> xs, std::map<std::string, double> named) {
    double total = 0;
    for (double x : xs) total += x;
    for (auto& [name, x] : named) total += x;
    return total;
  });
  const Point p = a_.call<Point>("b", "swap", Point{3, 4}).get();
  EXPECT_EQ(p.x, 4);
  EXPECT_EQ(p.y, 3);
  EXPECT_EQ(a_.call<double>("b", "sum", std::vector<double>{1, 2},
                            std::map<std::string, double>{{"x", 4}})
                .get(),
            7);
}

TEST_P(TwoNodes, OperatorsNeedNoRegistration) {
  const at::Tensor sum = a_.call<at::Tensor>("b", "aten::add", at::ones({2}), at::ones({2})).get();
  EXPECT_TRUE(at::equal(sum, at::ones({2}) * 2));
  EXPECT_EQ(kind_of([&] { a_.call<at::Tensor>("b", "aten::add", std::string("x")); }),
            ErrorKind::Invalid);
}

TEST_P(TwoNodes, ErrorsAreTyped) {
  b_.serve("fails", []() -> int { throw std::runtime_error("no luck"); });
  b_.serve("takes_int", [](std::int64_t) {});
  EXPECT_EQ(kind_of([&] { a_.call<int>("b", "fails").get(); }), ErrorKind::Remote);
  EXPECT_EQ(kind_of([&] { a_.call<int>("b", "unheard_of").get(); }), ErrorKind::Invalid);
  try {
    a_.call<void>("b", "takes_int", std::string("x")).get();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    EXPECT_EQ(error.message(), "takes_int(int) -> None: argument 1: expected int, got string");
    EXPECT_EQ(error.details().node, "b");
    EXPECT_EQ(error.details().function, "takes_int");
  }
}

TEST_P(TwoNodes, DeadlinePassesAndReachesTheHandler) {
  std::latch cancelled(1);
  b_.serve("slow", [&](const CallContext& context) {
    context.on_cancel([&] { cancelled.count_down(); });
    cancelled.wait();
  });
  EXPECT_EQ(kind_of([&] { a_.call<void>({.to = "b", .timeout = 50ms}, "slow").get(); }),
            ErrorKind::Timeout);
  cancelled.wait();
}

TEST_P(TwoNodes, CancelReachesTheHandlerAndItsOwnCalls) {
  std::latch started(1), cancelled(1);
  a_.serve("wait_for_cancel", [&](const CallContext& context) {
    context.on_cancel([&] { cancelled.count_down(); });
    started.count_down();
    cancelled.wait();
  });
  b_.serve("nested", [&] { b_.call<void>("a", "wait_for_cancel").get(); });
  auto future = a_.call<void>("b", "nested");
  started.wait();
  future.cancel();
  EXPECT_EQ(kind_of([&] { future.get(); }), ErrorKind::Cancelled);
  cancelled.wait();
}

// Neither those who enforce deadlines, nor close(), nor a function that waits to be told.
TEST_P(TwoNodes, ACallbackThatBlocksHoldsUpNothingButItsLike) {
  const auto may_return = std::make_shared<Event>(), told = std::make_shared<Event>();
  b_.serve("blocks", [=](const CallContext& context) {
    context.on_cancel([=] {
      told->set();
      may_return->sleep_until(Deadline::never());
    });
    may_return->sleep_until(Deadline::never());
  });
  b_.serve("looks", [](const CallContext& context) {
    EXPECT_TRUE(testing::eventually([&] { return context.cancelled(); }));
  });
  const auto call = [&](const char* function) {
    return kind_of([&] { a_.call<void>({.to = "b", .timeout = 50ms}, function).get(); });
  };
  EXPECT_EQ(call("blocks"), ErrorKind::Timeout);
  EXPECT_TRUE(told->sleep_until(Deadline::after(SteadyClock(), 20s)));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(call("looks"), ErrorKind::Timeout);
  EXPECT_TRUE(testing::eventually([&] { return b_.inspect().crew.running <= 1; }));
  EXPECT_FALSE(b_.close(100ms));
  may_return->set();
}

// All hands wait to be told.
TEST_P(TwoNodes, CancelReachesHandlersThatHoldEveryThread) {
  constexpr int kThreads = 4;
  NodeOptions few = options("few");
  few.limits.max_threads = kThreads;
  Node node(std::move(few));
  std::atomic<int> running{0}, told{0};
  node.serve("hold", [&](const CallContext& context) {
    const auto cancelled = std::make_shared<Event>();
    context.on_cancel([&told, cancelled] {
      ++told;
      cancelled->set();
    });
    ++running;
    cancelled->sleep_until(Deadline::after(SteadyClock(), 20s));
  });
  std::vector<Future<void>> calls;
  for (int i = 0; i < kThreads - 1; ++i) calls.push_back(a_.call<void>("few", "hold"));
  EXPECT_TRUE(testing::eventually([&] { return running == kThreads - 1; }));
  for (const auto& call : calls) call.cancel();
  EXPECT_TRUE(node.close(20s));
  EXPECT_EQ(told, kThreads - 1);
}

TEST_P(TwoNodes, NestedCallsToAnyDepth) {
  const auto descend = [](Node& self, const char* other) {
    return [&self, other](std::int64_t depth) -> std::int64_t {
      return depth == 0 ? 0 : 1 + self.call<std::int64_t>(other, "descend", depth - 1).get();
    };
  };
  a_.serve("descend", descend(a_, "b"));
  b_.serve("descend", descend(b_, "a"));
  EXPECT_EQ(a_.call<std::int64_t>("b", "descend", 50).get(), 50);
}

TEST_P(TwoNodes, FuturesAndCoroutinesAnswerLater) {
  b_.serve("scale", [](double x, double k) { return x * k; });
  a_.serve("through_future", [&](double x) {
    return a_.call<double>("b", "scale", x, 3.0).then([](double y) { return y + 1; });
  });
  a_.serve("through_coroutine", [&](double x) -> Future<double> {
    const double y = co_await a_.call<double>("b", "scale", x, 3.0);
    co_return co_await a_.call<double>("b", "scale", y, 2.0);
  });
  EXPECT_EQ(b_.call<double>("a", "through_future", 2.0).get(), 7);
  EXPECT_EQ(b_.call<double>("a", "through_coroutine", 2.0).get(), 12);
}

TEST_P(TwoNodes, CallsToOneselfCopy) {
  at::Tensor kept;
  a_.serve("keep", [&](at::Tensor x) { kept = x; });
  at::Tensor x = at::ones({3});
  a_.call<void>("a", "keep", x).get();
  x.zero_();
  EXPECT_TRUE(at::equal(kept, at::ones({3})));
}

TEST_P(TwoNodes, ManyThreadsManyCalls) {
  b_.serve("add", [](std::int64_t x, std::int64_t y) { return x + y; });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        EXPECT_EQ(a_.call<std::int64_t>("b", "add", t, i).get(), t + i);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(TwoNodes, ManyInFlight) {
  b_.serve("square", [](std::int64_t x) { return x * x; });
  std::vector<Future<std::int64_t>> futures;
  for (std::int64_t i = 0; i < 2000; ++i)
    futures.push_back(a_.call<std::int64_t>("b", "square", i));
  for (std::int64_t i = 0; i < 2000; ++i) EXPECT_EQ(futures[i].get(), i * i);
}

TEST_P(TwoNodes, LargeCallsWaitForRoomAndGiveUpWithOverloaded) {
  NodeOptions narrow = options("narrow");
  narrow.limits.max_bytes_in_flight_per_peer = 1 << 20;
  Node node(narrow);
  std::latch go_on(1);
  std::atomic<int> served{0};
  b_.serve("hold", [&](at::Tensor) {
    ++served;
    go_on.wait();
  });
  const at::Tensor x = at::ones({1 << 20}, at::kByte);
  auto first = node.call<void>("b", "hold", x);
  while (served == 0) std::this_thread::yield();
  EXPECT_EQ(kind_of([&] { node.call<void>({.to = "b", .timeout = 20ms}, "hold", x).get(); }),
            ErrorKind::Overloaded);
  std::thread second([&] { node.call<void>("b", "hold", x).get(); });
  go_on.count_down();
  first.get();
  second.join();
  EXPECT_EQ(served, 2);
}

// FLOW-1: more is sent than may be in flight, in calls that are small.
TEST_P(TwoNodes, SmallCallsWaitForRoomToo) {
  NodeOptions narrow = options("narrow");
  narrow.limits.max_bytes_in_flight_per_peer = 64 * 1024;
  Node node(narrow);
  b_.serve("length", [](const std::string& text) { return text.size(); });
  const std::string text(1000, 'x');
  std::vector<Future<std::size_t>> lengths;
  std::size_t most = 0;
  for (int i = 0; i < 2000; ++i) {
    lengths.push_back(node.call<std::size_t>("b", "length", text));
    if (i == 0) lengths.front().get();  // connected: nothing waits for that
    most = std::max(most, node.inspect().calls.size());
  }
  for (const auto& length : lengths) EXPECT_EQ(length.get(), text.size());
  EXPECT_LE(most * text.size(), narrow.limits.max_bytes_in_flight_per_peer);
}

TEST_P(TwoNodes, AClosedPeerFailsCallsAtOnce) {
  std::latch started(1), cancelled(1);
  b_.serve("hang", [&](const CallContext& context) {
    context.on_cancel([&] { cancelled.count_down(); });
    started.count_down();
    cancelled.wait();
  });
  auto future = a_.call<void>("b", "hang");
  started.wait();
  b_.close();
  EXPECT_EQ(kind_of([&] { future.get(); }), ErrorKind::PeerLost);
  EXPECT_EQ(kind_of([&] { b_.call<void>("a", "x").get(); }), ErrorKind::Invalid);
}

TEST_P(TwoNodes, ACallToNobodyNamesWhoIsMissing) {
  try {
    a_.call<void>({.to = "nobody", .timeout = 50ms}, "f").get();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Timeout);
    EXPECT_NE(error.message().find("nobody of that name has joined"), std::string::npos)
        << error.message();
    EXPECT_EQ(error.details().node, "nobody");
  }
}

TEST_P(TwoNodes, InspectShowsPeersAndTransport) {
  b_.serve("f", [] {});
  a_.call<void>("b", "f").get();
  const NodeReport report = a_.inspect();
  const agent::PeerReport& b = peer_of(report, "b");
  EXPECT_EQ(b.transport, GetParam());
  EXPECT_EQ(b.state, "connected");
  EXPECT_GE(b.traffic.frames_sent, 1u);
  EXPECT_NE(report.to_text().find("by " + GetParam()), std::string::npos);
}

TEST_P(TwoNodes, EveryConnectionHasARoundTripSoonWhetherOrNotItIsUsed) {
  NodeOptions brisk = options("brisk");
  brisk.failure_detector.heartbeat_interval = 20ms;
  Node node(brisk);
  node.connect("b");
  EXPECT_TRUE(testing::eventually(
      [&] { return peer_of(node.inspect(), "b").round_trip > Duration::zero(); }));
  const NodeReport report = node.inspect();
  EXPECT_NE(report.to_text().find(", round trip "), std::string::npos) << report.to_text();
}

TEST_P(TwoNodes, InspectShowsCallsAtBothEndsAndWhoRunsThem) {
  std::latch started(1), go_on(1);
  b_.serve("hold", [&] {
    started.count_down();
    go_on.wait();
  });
  const auto held = a_.call<void>({.to = "b", .timeout = 15s}, "hold");
  started.wait();
  const NodeReport caller = a_.inspect();
  const NodeReport callee = b_.inspect();
  ASSERT_EQ(caller.calls.size(), 1u);
  ASSERT_EQ(callee.calls.size(), 1u);
  for (const NodeReport* report : {&caller, &callee}) {
    const agent::CallInFlight& call = report->calls.front();
    EXPECT_EQ(call.function, "hold");
    EXPECT_EQ(call.id, caller.calls.front().id);
    EXPECT_NE(call.id, CallId{});
    EXPECT_EQ(call.incoming, report == &callee);
    EXPECT_EQ(call.peer, call.incoming ? "a" : "b");
    EXPECT_GT(call.age, Duration::zero());
    ASSERT_TRUE(call.remaining);
    EXPECT_GT(*call.remaining, Duration::zero());
    EXPECT_LE(*call.remaining, 15s);
    const std::string line = std::string(call.incoming ? "from a" : "to b") + "  hold  #" +
                             std::to_string(number(call.id)) + ", for ";
    EXPECT_NE(report->to_text().find(line), std::string::npos) << report->to_text();
    EXPECT_NE(report->to_text().find(" left\n"), std::string::npos) << report->to_text();
  }
  EXPECT_GE(callee.crew.threads, 2u);
  EXPECT_EQ(callee.crew.running, 1u);
  EXPECT_EQ(callee.crew.queued, 0u);
  EXPECT_NE(callee.to_text().find("(1 in handlers, "), std::string::npos) << callee.to_text();
  go_on.count_down();
  held.get();
  EXPECT_TRUE(a_.inspect().calls.empty());
  EXPECT_TRUE(testing::eventually([&] { return b_.inspect().crew.running == 0; }));
  EXPECT_GE(b_.inspect().crew.tasks_run, 1u);
}

TEST_P(TwoNodes, InspectShowsTheMemoryOfWhatWasReceivedAndWhatWaits) {
  constexpr std::size_t kBytes = 4 << 20;
  at::Tensor kept;
  b_.serve("keep", [&](at::Tensor x) { kept = x; });
  const at::Tensor x = at::ones({static_cast<std::int64_t>(kBytes)}, at::kByte);
  a_.call<void>("b", "keep", x).get();
  const MemoryReport holding = b_.inspect().memory;
  if (GetParam() == "shm") {
    EXPECT_EQ(holding.adopted, kBytes);
    EXPECT_GE(holding.shared, kBytes);
    EXPECT_NE(b_.inspect().to_text().find("4.0 MiB of it in arenas of peers"), std::string::npos)
        << b_.inspect().to_text();
  } else {
    EXPECT_EQ(holding.adopted, 0u);
    EXPECT_GE(holding.lent, kBytes);
  }
  kept.reset();
  EXPECT_EQ(b_.inspect().memory.adopted, 0u);
  EXPECT_LT(b_.inspect().memory.lent, kBytes);

  EXPECT_EQ(a_.inspect().memory.to_send, 0u);
  const auto waiting = a_.call<void>("nobody", "keep", x);
  EXPECT_GE(a_.inspect().memory.to_send, kBytes);
  EXPECT_NE(a_.inspect().to_text().find(", 4.0 MiB to be sent"), std::string::npos)
      << a_.inspect().to_text();
  waiting.cancel();
  EXPECT_EQ(a_.inspect().memory.to_send, 0u);
}

// ------------------------------------------------------------------------------- the current node

TEST(CurrentNode, IsTheOldestThatIsOpenAndElseAnError) {
  EXPECT_EQ(Node::find_current(), nullptr);
  try {
    Node::current();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    EXPECT_NE(error.message().find("there is no node in this process"), std::string::npos);
  }
  const auto store = std::make_shared<testing::MemoryStore>();
  NodeOptions options;
  options.store = store;
  options.name = "first";
  Node first(options);
  options.name = "second";
  Node second(options);
  EXPECT_EQ(&Node::current(), &first);
  first.close();
  EXPECT_EQ(&Node::current(), &second);
  second.close();
  EXPECT_EQ(Node::find_current(), nullptr);
}

TEST_P(TwoNodes, TheCurrentNodeIsTheOneWhoseFunctionOrCallbackRuns) {
  EXPECT_EQ(&Node::current(), &a_) << "the oldest";
  b_.serve("whose", [] { return Node::current().name(); });
  EXPECT_EQ(a_.call<std::string>("b", "whose").get(), "b");
  EXPECT_EQ(b_.call<std::string>("b", "whose").get(), "b");
  const auto here = [](const std::string&) { return Node::current().name(); };
  EXPECT_EQ(b_.call<std::string>("b", "whose").then(here).get(), "b");
  EXPECT_EQ(a_.call<std::string>("b", "whose").then(here).get(), "a");
  const auto settled = b_.call<std::string>("b", "whose");
  settled.get();
  EXPECT_EQ(settled.then(here).get(), "b") << "attached when it was there already";
  std::promise<std::string> after_failure;
  b_.call<void>("b", "unheard_of").on_settled([&](const auto&) {
    after_failure.set_value(Node::current().name());
  });
  EXPECT_EQ(after_failure.get_future().get(), "b");
}

// ------------------------------------------------------------------------------- leaving together

// A rendezvous whose host dies, or stands still.
class MortalStore final : public agent::WorldStore {
 public:
  std::optional<std::string> get(const std::string& key) override {
    live();
    if (key == hidden_) return std::nullopt;
    return keys_.get(key);
  }
  void set(const std::string& key, const std::string& value) override {
    live();
    keys_.set(key, value);
  }
  std::string get_or_set(const std::string& key, const std::string& value) override {
    live();
    return keys_.get_or_set(key, value);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    live();
    return keys_.add(key, amount);
  }

  void hide(std::string key) { hidden_ = std::move(key); }  // before anybody asks for it
  void die() { dead_ = true; }
  void stand_still() { still_ = true; }
  void go_on() {
    still_ = false;
    still_.notify_all();
  }

 private:
  void live() {
    still_.wait(true);
    if (dead_) throw Error(ErrorKind::PeerLost, "the rendezvous is dead");
  }
  testing::MemoryStore keys_;
  std::string hidden_;
  std::atomic<bool> dead_{false};
  std::atomic<bool> still_{false};
};

class StaticWorld : public ::testing::Test {
 protected:
  std::unique_ptr<Node> member(std::uint32_t rank, std::uint32_t size) {
    NodeOptions options;
    options.name = "m" + std::to_string(rank);
    options.store = store_;
    options.rank = rank;
    options.world_size = size;
    return std::make_unique<Node>(std::move(options));
  }
  // Of a shutdown() of `node` that ends with one.
  std::thread leave(Node& node, ErrorKind& error, Duration timeout = kForever) {
    return std::thread(
        [&node, &error, timeout] { error = kind_of([&] { node.shutdown(timeout); }); });
  }
  static void leave_together(Node& one, Node& other) {
    const std::jthread leaving([&] { EXPECT_NO_THROW(one.shutdown(20s)); });
    EXPECT_NO_THROW(other.shutdown(20s));
  }
  static void await_leaving(const Node& node) {
    ASSERT_TRUE(testing::eventually([&] { return !node.inspect().shutdown_waits_for.empty(); }));
  }
  std::shared_ptr<MortalStore> store_ = std::make_shared<MortalStore>();
};

TEST_F(StaticWorld, ShutdownServesUntilEverybodyHasArrived) {
  auto server = member(0, 2);
  auto client = member(1, 2);
  server->serve("add", [](std::int64_t x, std::int64_t y) { return x + y; });
  std::thread serving([&] { server->shutdown(); });
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(client->call<std::int64_t>("m0", "add", i, 1).get(), i + 1);
  }
  EXPECT_FALSE(server->closed());
  client->shutdown();
  serving.join();
  EXPECT_TRUE(server->closed());
  EXPECT_TRUE(client->closed());
}

TEST_F(StaticWorld, ShutdownThatTimesOutNamesWhoIsMissingAndGoesOn) {
  auto first = member(0, 2);
  try {
    first->shutdown(50ms);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Timeout);
    EXPECT_NE(error.message().find("rank 1"), std::string::npos) << error.message();
  }
  auto second = member(1, 2);
  std::thread other([&] { second->shutdown(); });
  first->shutdown();
  other.join();
}

TEST_F(StaticWorld, ShutdownEndsWhenTheOthersAreLost) {
  auto first = member(0, 2);
  auto second = member(1, 2);
  first->serve("f", [] {});
  second->call<void>("m0", "f").get();
  second->close();
  first->shutdown(20s);
  EXPECT_TRUE(first->closed());
}

TEST_F(StaticWorld, ShutdownWithATimeoutOfZeroHasNone) {
  auto first = member(0, 2);
  auto second = member(1, 2);
  std::thread leaving([&] { first->shutdown(0s); });
  await_leaving(*first);
  second->shutdown(0s);
  leaving.join();
  EXPECT_TRUE(first->closed());
}

// Whether it waits for members to join, for others to ask, or for its own calls.
TEST_F(StaticWorld, ShutdownIsCancelledByClosing) {
  auto alone = member(0, 3);
  ErrorKind error{};
  std::thread leaving = leave(*alone, error, 0s);
  await_leaving(*alone);
  alone->close();
  leaving.join();
  EXPECT_EQ(error, ErrorKind::Cancelled);

  auto second = member(1, 3);
  const auto third = member(2, 3);
  leaving = leave(*second, error = ErrorKind{});
  await_leaving(*second);
  second->close();
  leaving.join();
  EXPECT_EQ(error, ErrorKind::Cancelled);
}

TEST_F(StaticWorld, ShutdownGoesOnWithWhomItKnowsWhenTheRendezvousIsDead) {
  auto first = member(0, 3);  // of three, one has not come
  auto second = member(1, 3);
  first->serve("f", [] {});
  second->call<void>("m0", "f").get();
  store_->die();
  leave_together(*first, *second);
  EXPECT_TRUE(first->closed());
  EXPECT_TRUE(second->closed());
}

TEST_F(StaticWorld, WhoHasConnectedIsKnownWithoutAskingTheRendezvous) {
  store_->hide("card/m1");
  auto first = member(0, 3);
  auto second = member(1, 3);
  first->serve("f", [] {});
  second->call<void>("m0", "f").get();
  store_->die();
  leave_together(*first, *second);
}

TEST_F(StaticWorld, AGuestKeepsNobodyFromLeaving) {
  NodeOptions options;
  options.name = "guest";
  options.store = store_;
  Node guest(options);
  guest.serve("g", [] {});
  auto second = member(1, 2);
  second->call<void>("guest", "g").get();  // does not take it for the member of rank 0
  auto first = member(0, 2);
  first->serve("f", [] {});
  // More than it was called: counted, the sums would not agree.
  for (int i = 0; i < 2; ++i) guest.call<void>("m0", "f").get();
  leave_together(*first, *second);
  EXPECT_FALSE(guest.closed());
}

TEST_F(StaticWorld, ShutdownDoesNotWaitLongerThanItMayForARendezvousThatStandsStill) {
  auto first = member(0, 2);
  store_->stand_still();
  EXPECT_EQ(kind_of([&] { first->shutdown(100ms); }), ErrorKind::Timeout);
  store_->go_on();
  auto second = member(1, 2);
  std::thread leaving([&] { first->shutdown(); });
  second->shutdown();
  leaving.join();
}

TEST_F(StaticWorld, ARankBelongsToOneName) {
  auto first = member(0, 2);
  NodeOptions options;
  options.name = "impostor";
  options.store = store_;
  options.rank = 0;
  options.world_size = 2;
  EXPECT_EQ(kind_of([&] { Node node(options); }), ErrorKind::Invalid);
}

TEST_F(StaticWorld, FiveNodesInOneProcess) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    nodes.push_back(member(rank, 5));
    nodes.back()->serve("whoami", [name = nodes.back()->name()] { return name; });
  }
  for (auto& from : nodes) {
    for (auto& to : nodes) {
      EXPECT_EQ(from->call<std::string>(to->name(), "whoami").get(), to->name());
    }
  }
  std::vector<std::thread> leaving;
  for (auto& node : nodes) leaving.emplace_back([&] { node->shutdown(); });
  for (auto& thread : leaving) thread.join();
}

}  // namespace
}  // namespace hawser
