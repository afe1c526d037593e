#include "hawser/node/ref.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <thread>

#include "hawser/base/guarded.h"
#include "hawser/base/log.h"
#include "support/memory_store.h"
#include "support/outcome.h"
#include "support/process.h"

namespace hawser {
namespace {

using namespace std::chrono_literals;

// Stays where it is: it has no Codec.
class Counter {
 public:
  explicit Counter(std::int64_t start) : value_(start) { ++alive; }
  ~Counter() { --alive; }
  std::int64_t add(std::int64_t by) { return value_ += by; }
  std::int64_t value() const { return value_; }
  std::shared_ptr<Counter> clone() const { return std::make_shared<Counter>(value()); }

  static inline std::atomic<int> alive{0};

 private:
  std::atomic<std::int64_t> value_;
};

class ThreeNodes : public ::testing::TestWithParam<std::string> {
 protected:
  NodeOptions options(const std::string& name, std::uint32_t rank) {
    NodeOptions options;
    options.name = name;
    options.store = store_;
    options.rank = rank;
    options.world_size = 3;
    options.transports = {GetParam()};
    options.call_timeout = 20s;
    return options;
  }
  ThreeNodes() {
    for (Node* node : {&a_, &b_, &c_}) {
      node->serve("make", [](std::int64_t start) { return std::make_unique<Counter>(start); });
      node->serve("broken", []() -> std::int64_t { throw std::runtime_error("it broke"); });
      node->serve("sum_of", [](std::vector<Ref<Counter>> counters) {
        std::int64_t sum = 0;
        for (auto& each : counters) sum += each.call<std::int64_t>("value").get();
        return sum;
      });
      node->serve("slow", [this](std::int64_t start) {
        go_on_.wait();
        return std::make_unique<Counter>(start);
      });
      node->serve("plus_one", [](Ref<std::int64_t> x) { return x.fetch().get() + 1; });
      node->serve_method("add", &Counter::add);
      node->serve_method("value", &Counter::value);
      node->serve_method("clone", &Counter::clone);
      node->serve_method("throw", [](Counter&) { throw std::runtime_error("no"); });
    }
  }
  // All references end, and with them all values.
  void expect_nothing_left() {
    for (Node* node : {&a_, &b_, &c_}) {
      EXPECT_TRUE(testing::eventually([&] { return node->refs().empty(); }));
    }
    EXPECT_TRUE(testing::eventually([] { return Counter::alive == 0; }));
  }

  std::shared_ptr<testing::MemoryStore> store_ = std::make_shared<testing::MemoryStore>();
  std::latch go_on_{1};
  Node a_{options("a", 0)};
  Node b_{options("b", 1)};
  Node c_{options("c", 2)};
};

INSTANTIATE_TEST_SUITE_P(Transports, ThreeNodes, ::testing::Values("shm", "tcp"));

TEST_P(ThreeNodes, TheValueStaysAndItsMethodsRunThere) {
  {
    const Ref<Counter> counter = a_.remote<Counter>("b", "make", 5);
    EXPECT_EQ(counter.owner(), "b");
    EXPECT_FALSE(counter.is_owner());
    EXPECT_EQ(counter.call<std::int64_t>("add", 2).get(), 7);
    EXPECT_EQ(counter.call<std::int64_t>("value").get(), 7);
    EXPECT_TRUE(counter.confirmed());
    EXPECT_EQ(Counter::alive, 1);
  }
  expect_nothing_left();
}

TEST_P(ThreeNodes, AValueThatTravelsCanBeFetched) {
  b_.serve("ones", [](std::int64_t n) { return at::ones({n}); });
  const Ref<at::Tensor> ones = a_.remote<at::Tensor>("b", "ones", 3);
  EXPECT_TRUE(at::equal(ones.fetch().get(), at::ones({3})));
  const Ref<at::Tensor> sum = a_.remote<at::Tensor>("b", "aten::add", at::ones({2}), at::ones({2}));
  EXPECT_TRUE(at::equal(sum.fetch().get(), 2 * at::ones({2})));
}

TEST_P(ThreeNodes, OneThatDoesNotSaysSo) {
  const Ref<Counter> counter = a_.remote<Counter>("b", "make", 5);
  const Ref<std::int64_t> mistaken(counter.handle());
  EXPECT_NE(
      std::string(testing::error_of([&] { mistaken.fetch().get(); }).what()).find("cannot be sent"),
      std::string::npos);
  // Nor can it be the result of a call.
  EXPECT_NE(
      std::string(testing::error_of([&] { a_.call<c10::IValue>("b", "make", 5).get(); }).what())
          .find("remote()"),
      std::string::npos);
  EXPECT_EQ(testing::error_of([&] { counter.call<void>("no_such").get(); }).kind(),
            ErrorKind::Invalid);
  EXPECT_EQ(testing::error_of([&] { counter.call<void>("throw").get(); }).kind(),
            ErrorKind::Remote);
}

TEST_P(ThreeNodes, ReferencesTravelInArgumentsResultsAndContainers) {
  b_.serve("pass_on", [](std::vector<Ref<Counter>> counters) { return counters; });
  {
    std::vector<Ref<Counter>> counters;
    counters.push_back(a_.remote<Counter>("b", "make", 1));
    counters.push_back(a_.remote<Counter>("c", "make", 2));
    counters.push_back(a_.ref(std::make_shared<Counter>(4)));
    counters.push_back(a_.remote<Counter>("a", "make", 8));
    EXPECT_EQ(a_.call<std::int64_t>("b", "sum_of", counters).get(), 15);
    EXPECT_EQ(a_.call<std::int64_t>("c", "sum_of", counters).get(), 15);
    const auto back = a_.call<std::vector<Ref<Counter>>>("b", "pass_on", counters).get();
    counters.clear();
    EXPECT_EQ(back.at(2).local()->value(), 4);
    EXPECT_TRUE(back.at(3).is_owner());
    EXPECT_EQ(back.at(0).call<std::int64_t>("value").get(), 1);
    EXPECT_EQ(a_.call<std::int64_t>("c", "sum_of", back).get(), 15);
  }
  expect_nothing_left();
}

// REF-4, and pipelining: nothing waits until somebody needs the value.
TEST_P(ThreeNodes, AReferenceIsUsedAndGivenOnBeforeItsValueExists) {
  const Ref<Counter> counter = a_.remote<Counter>("b", "slow", 5);
  const auto value = counter.call<std::int64_t>("value");
  const Ref<Counter> clone = counter.remote<Counter>("clone");
  const auto elsewhere =
      a_.call<std::int64_t>("c", "sum_of", std::vector<Ref<Counter>>{counter, counter});
  EXPECT_FALSE(value.done());
  EXPECT_FALSE(counter.confirmed());
  go_on_.count_down();
  EXPECT_EQ(value.get(), 5);
  EXPECT_EQ(elsewhere.get(), 10);
  EXPECT_EQ(clone.call<std::int64_t>("value").get(), 5);
}

TEST_P(ThreeNodes, MethodsThatHaveWaitedForTheValueMayWaitForEachOther) {
  std::latch both(2);
  b_.serve_method("meet", [&](Counter&) { both.arrive_and_wait(); });
  const Ref<Counter> counter = a_.remote<Counter>("b", "slow", 5);
  auto first = counter.call<void>("meet");
  auto second = counter.call<void>("meet");
  go_on_.count_down();
  first.get();
  second.get();
}

TEST_P(ThreeNodes, ACreatorThatSleepsLearnsThatTheValueIsThere) {  // LEISURE-1
  const Ref<Counter> counter = a_.remote<Counter>("b", "make", 5);
  EXPECT_TRUE(testing::eventually([&] { return counter.confirmed(); }));
}

TEST_P(ThreeNodes, TheErrorOfAFunctionIsThatOfItsValueAndTravelsAlongTheChain) {
  const Ref<std::int64_t> broken = a_.remote<std::int64_t>("b", "broken");
  const Error first = testing::error_of([&] { broken.fetch().get(); });
  EXPECT_EQ(first.kind(), ErrorKind::Remote);
  EXPECT_EQ(first.message(), "it broke");
  EXPECT_EQ(first.details().node, "b");
  EXPECT_EQ(first.details().function, "broken");
  const Ref<std::int64_t> next = a_.remote<std::int64_t>("c", "plus_one", broken);
  const Ref<std::int64_t> last = a_.remote<std::int64_t>("a", "plus_one", next);
  const Error at_the_end = testing::error_of([&] { last.fetch().get(); });
  EXPECT_EQ(at_the_end.details().node, "a");
  EXPECT_EQ(at_the_end.details().function, "plus_one");
  // Every link that it has passed, from the one that failed.
  for (const char* link : {"it broke", "broken on 'b'", "plus_one on 'c'"}) {
    EXPECT_NE(at_the_end.message().find(link), std::string::npos) << at_the_end.message();
  }
}

TEST_P(ThreeNodes, ACreationThatIsTooSlowEndsWhatWaitsForIt) {
  const Ref<Counter> late = a_.remote<Counter>({.to = "b", .timeout = 50ms}, "slow", 5);
  const auto waiting = late.call<std::int64_t>("value");  // has 20 s of its own
  EXPECT_EQ(testing::error_of([&] { waiting.get(); }).kind(), ErrorKind::Timeout);
  EXPECT_EQ(testing::error_of([&] { late.call<std::int64_t>("value").get(); }).kind(),
            ErrorKind::Timeout);
  EXPECT_EQ(testing::error_of([&] {
              a_.call<std::int64_t>("c", "sum_of", std::vector{late}).get();
            }).kind(),
            ErrorKind::Timeout);
  go_on_.count_down();
}

TEST_P(ThreeNodes, UsesHaveTimeLimitsOfTheirOwn) {
  const Ref<Counter> slow = a_.remote<Counter>("b", "slow", 5);
  const auto limited = slow.call<std::int64_t>({.timeout = 50ms}, "value");
  EXPECT_EQ(testing::error_of([&] { limited.get(); }).kind(), ErrorKind::Timeout);
  const Ref<Counter> late = slow.remote<Counter>({.timeout = 50ms}, "clone");
  EXPECT_TRUE(testing::eventually([&] {
    const auto error = late.handle()->error();
    return error && error->kind() == ErrorKind::Timeout;
  }));
  go_on_.count_down();
  EXPECT_EQ(slow.call<std::int64_t>({.timeout = 20s}, "value").get(), 5);
  EXPECT_EQ(slow.remote<Counter>({.timeout = 20s}, "clone").call<std::int64_t>("value").get(), 5);
}

TEST_P(ThreeNodes, TheOwnerKnowsWhetherTheValueExistsAndWaitsAsLongAsItSays) {
  const Ref<Counter> slow = a_.remote<Counter>("a", "slow", 5);
  EXPECT_FALSE(slow.has_value());
  EXPECT_EQ(testing::error_of([&] { slow.local(20ms); }).kind(), ErrorKind::Timeout);
  // Nor does a handler wait for longer than its caller does.
  Event gave_up;
  a_.serve("wait_for", [&](Ref<Counter> counter) {
    EXPECT_EQ(testing::error_of([&] { counter.local(); }).kind(), ErrorKind::Timeout);
    gave_up.set();
  });
  const auto waiting = a_.call<void>({.to = "a", .timeout = 50ms}, "wait_for", slow);
  EXPECT_TRUE(waiting.wait_for(20s));  // for its time-out, or for the handler, which ends just then
  EXPECT_TRUE(gave_up.sleep_until(Deadline::after(SteadyClock(), 20s)));
  go_on_.count_down();
  EXPECT_EQ(slow.local()->value(), 5);
  EXPECT_TRUE(slow.has_value());
  const Ref<Counter> elsewhere = a_.remote<Counter>("b", "make", 5);
  EXPECT_EQ(testing::error_of([&] { elsewhere.has_value(); }).kind(), ErrorKind::Invalid);
}

TEST_P(ThreeNodes, WhoStopsWaitingIsForgotten) {
  const Ref<Counter> slow = a_.remote<Counter>("a", "slow", 5);
  const auto token = std::make_shared<int>();
  const auto number =
      a_.references().when_there(*slow.handle(), [token](const Found&) { ADD_FAILURE(); });
  EXPECT_EQ(token.use_count(), 2);
  a_.references().stop_waiting(slow.handle()->id(), number);
  EXPECT_EQ(token.use_count(), 1);
  go_on_.count_down();
  EXPECT_EQ(slow.local()->value(), 5);
}

// Has the lock of its node's references held while it is asked for a copy that never changes.
class HoldsTheLock final : public Kept {
 public:
  std::string type_name() const override { return "HoldsTheLock"; }
  std::size_t bytes() const override { return 0; }
  wire::Payload copy() override { return write_result(nullptr, std::int64_t{7}); }
  std::span<const std::byte> constant_copy() const override {
    asked = true;  // no Event: whoever waits for that would be woken when this hand is through
    go_on.sleep_until(Deadline::after(SteadyClock(), 20s));
    return {};
  }
  void call(const CallContext&, std::string_view) override {}

  mutable std::atomic<bool> asked{false};
  mutable Event go_on;
};

TEST_P(ThreeNodes, AHandleEndsWhileSomebodyElseHasTheLock) {  // HANDLE-1
  const auto value = std::make_shared<HoldsTheLock>();
  const Ref<std::int64_t> kept(a_.keep(value));
  Ref<Counter> held = a_.remote<Counter>("b", "make", 5);
  Ref<Counter> own = a_.ref(std::make_shared<Counter>(3));
  EXPECT_TRUE(testing::eventually([&] { return held.confirmed(); }));
  const auto sum = a_.call<std::int64_t>("b", "plus_one", kept);
  EXPECT_TRUE(testing::eventually([&] { return value->asked.load(); }));
  Event ended;
  std::thread finaliser([&] {
    held = {};
    own = {};
    ended.set();
  });
  EXPECT_TRUE(ended.sleep_until(Deadline::after(SteadyClock(), 10s)));
  value->go_on.set();
  finaliser.join();
  EXPECT_EQ(sum.get(), 8);
  EXPECT_TRUE(testing::eventually([] { return Counter::alive == 0; }));
}

TEST_P(ThreeNodes, AReleasedReferenceCannotBeUsed) {
  Ref<Counter> counter = a_.remote<Counter>("b", "make", 5);
  const Ref<Counter> copy = counter;
  EXPECT_EQ(counter.call<std::int64_t>("value").get(), 5);
  counter.release();
  EXPECT_EQ(testing::error_of([&] { copy.call<std::int64_t>("value").get(); }).kind(),
            ErrorKind::Invalid);
  expect_nothing_left();
}

TEST_P(ThreeNodes, ReferencesOfAClosedNodeSayThatItIsClosed) {
  Ref<Counter> kept;
  {
    NodeOptions other;
    other.name = "other";
    other.store = std::make_shared<testing::MemoryStore>();
    Node node(other);
    kept = node.ref(std::make_shared<Counter>(3));
    EXPECT_EQ(
        testing::error_of([&] { a_.call<void>("b", "sum_of", std::vector{kept}).get(); }).kind(),
        ErrorKind::Invalid);
  }
  EXPECT_EQ(testing::error_of([&] { kept.local(); }).kind(), ErrorKind::Invalid);
  EXPECT_EQ(Counter::alive, 0);
}

TEST_P(ThreeNodes, ReferencesToALostOwnerFailAndThoseOfALostHolderGo) {
  const Ref<Counter> counter = a_.remote<Counter>("b", "make", 5);
  const Ref<Counter> mine = a_.ref(std::make_shared<Counter>(3));
  b_.serve("hold", [held = std::make_shared<std::vector<Ref<Counter>>>()](Ref<Counter> counter) {
    held->push_back(std::move(counter));
  });
  a_.call<void>("b", "hold", mine).get();
  EXPECT_EQ(counter.call<std::int64_t>("value").get(), 5);
  EXPECT_TRUE(testing::eventually(
      [&] { return a_.refs().size() == 2 && a_.refs()[0].holders.size() == 1; }));
  b_.close();
  EXPECT_EQ(testing::error_of([&] { counter.call<std::int64_t>("value").get(); }).kind(),
            ErrorKind::PeerLost);
  EXPECT_TRUE(testing::eventually([&] { return a_.refs().at(0).holders.empty(); }));
  EXPECT_EQ(mine.local()->value(), 3);
}

TEST_P(ThreeNodes, TheInspectorShowsWhatThereIs) {
  const Ref<Counter> counter = a_.remote<Counter>("b", "make", 5);
  counter.call<std::int64_t>("value").get();
  const auto theirs = b_.refs();
  ASSERT_EQ(theirs.size(), 1u);
  EXPECT_TRUE(theirs[0].mine);
  EXPECT_EQ(theirs[0].state, "ready");
  EXPECT_EQ(theirs[0].made_by, "make");
  EXPECT_EQ(theirs[0].holders, std::vector<std::string>{"a"});
  EXPECT_EQ(theirs[0].handles, 0u);
  EXPECT_EQ(theirs[0].bytes, sizeof(Counter));
  EXPECT_NE(theirs[0].type.find("Counter"), std::string::npos);
  const auto ours = a_.refs();
  ASSERT_EQ(ours.size(), 1u);
  EXPECT_EQ(ours[0].id, theirs[0].id);
  EXPECT_EQ(ours[0].owner, "b");
  EXPECT_EQ(ours[0].state, "confirmed");
  EXPECT_EQ(ours[0].handles, 1u);
  EXPECT_TRUE(testing::eventually([&] { return a_.refs().at(0).age > ours[0].age; }));
  // Who else holds it, as the owner sees it.
  c_.serve("hold", [held = std::make_shared<std::vector<Ref<Counter>>>()](Ref<Counter> counter) {
    held->push_back(std::move(counter));
  });
  a_.call<void>("c", "hold", counter).get();
  EXPECT_TRUE(testing::eventually([&] {
    auto holders = b_.refs().at(0).holders;
    std::sort(holders.begin(), holders.end());
    return holders == std::vector<std::string>{"a", "c"};
  }));
  EXPECT_EQ(ours[0].origin, "");
}

TEST(References, SayWhereTheyWereCreatedWhenAskedTo) {
  NodeOptions options;
  options.name = "only";
  options.store = std::make_shared<testing::MemoryStore>();
  options.record_reference_origins = true;
  Node node(options);
  const Ref<Counter> counter = node.ref(std::make_shared<Counter>(3));
  EXPECT_NE(node.refs().at(0).origin.find("frame"), std::string::npos) << node.refs().at(0).origin;
}

// Lines of the layer "node", while it lives.
class CapturedLog {
 public:
  explicit CapturedLog(std::string_view levels) {
    log::configure(levels);
    log::set_sink([this](log::Level level, std::string_view layer, std::string_view line) {
      if (layer != "node") return;
      lines_.lock()->push_back((level == log::Level::Info ? "info: " : "warning: ") +
                               std::string(line));
    });
  }
  ~CapturedLog() {
    log::set_sink(nullptr);
    log::configure("warning");
  }
  std::vector<std::string> with(std::string_view text) {
    std::vector<std::string> found;
    for (const std::string& line : *lines_.lock()) {
      if (line.find(text) != std::string::npos) found.push_back(line);
    }
    return found;
  }

 private:
  Guarded<std::vector<std::string>> lines_;
};

class TheEnd : public ThreeNodes {
 protected:
  void end_together() {
    std::thread b([&] { b_.shutdown(20s); });
    std::thread c([&] { c_.shutdown(20s); });
    a_.shutdown(20s);
    b.join();
    c.join();
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, TheEnd, ::testing::Values("shm", "tcp"));

// What is held to the end is told to who wants to know; it is no reason to warn.
TEST_P(TheEnd, LetsGoOfEverything) {
  CapturedLog log("node=info");
  const Ref<Counter> counter = a_.remote<Counter>("b", "make", 5);
  const Ref<Counter> given = a_.ref(std::make_shared<Counter>(1));
  EXPECT_EQ(a_.call<std::int64_t>("c", "sum_of", std::vector{counter, given}).get(), 6);
  end_together();
  EXPECT_EQ(Counter::alive, 0);
  // A hand of 'c' may still be busy with getting rid of its arguments.
  const auto held = log.with("info: 'a', still held at the end");
  ASSERT_EQ(held.size(), 1u);
  EXPECT_NE(held[0].find("value " + counter.id() + " on b"), std::string::npos) << held[0];
  EXPECT_EQ(log.with("warning: "), std::vector<std::string>{});
}

struct Link {
  Ref<Link> next;
};

TEST_P(TheEnd, ReportsReferencesThatHoldEachOther) {
  CapturedLog log("warning");
  b_.serve("make_link", [] { return std::make_unique<Link>(); });
  b_.serve_method("point_to", [](Link& link, Ref<Link> next) { link.next = std::move(next); });
  {
    const Ref<Link> mine = a_.ref(std::make_shared<Link>());
    const Ref<Link> theirs = a_.remote<Link>("b", "make_link");
    theirs.call<void>("point_to", mine).get();
    mine.local()->next = theirs;
  }
  end_together();
  const auto report = log.with("ring of references");
  EXPECT_TRUE(std::any_of(report.begin(), report.end(), [](const std::string& line) {
    return line.find("is held by") != std::string::npos;
  })) << ::testing::PrintToString(report);
  EXPECT_EQ(log.with("still referenced when it left"), std::vector<std::string>{});
}

}  // namespace
}  // namespace hawser
