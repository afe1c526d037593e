// What is recorded of calls between nodes. trace/ has the parts, tests/python what profilers of
// torch show of them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "hawser/node/node.h"
#include "hawser/node/ref.h"
#include "tests/support/memory_store.h"

namespace hawser {
namespace {

using namespace std::chrono_literals;
using trace::Recorded;
using trace::Recorder;
using trace::Recording;

class ProfiledNodes : public ::testing::Test {
 protected:
  NodeOptions options(const std::string& name, std::uint32_t rank) {
    NodeOptions options;
    options.name = name;
    options.store = store_;
    options.rank = rank;
    options.world_size = 3;
    options.call_timeout = 20s;
    return options;
  }
  ProfiledNodes() {
    for (Node* node : {&a_, &b_, &c_}) {
      node->serve("add", [](at::Tensor x) { return at::add(x, x); });
      node->serve("fail", [](at::Tensor x) -> at::Tensor {
        at::mul(x, x);
        throw std::runtime_error("after a multiplication");
      });
      node->serve("relay", [](const CallContext& call, std::string to, at::Tensor x) {
        return call.node().call<at::Tensor>(to, "add", x).get();
      });
      node->serve("relay_later", [](const CallContext& call, std::string to, at::Tensor x) {
        return call.node().call<at::Tensor>(to, "add", x);
      });
    }
  }

  template <class F>
  Recorded record(std::uint32_t wants, F work) {
    const auto recorder = std::make_shared<Recorder>(wants, a_.process());
    {
      const Recording recording(recorder);
      work();
    }
    return recorder->take();
  }
  template <class F>
  std::vector<std::string> names(F work) {
    std::vector<std::string> names;
    for (const auto& event : record(wire::kTraceRanges, work).events) names.push_back(event.name);
    std::sort(names.begin(), names.end());
    return names;
  }

  std::shared_ptr<testing::MemoryStore> store_ = std::make_shared<testing::MemoryStore>();
  Node a_{options("a", 0)}, b_{options("b", 1)}, c_{options("c", 2)};
  const at::Tensor x_ = at::ones({2, 3});
};

TEST_F(ProfiledNodes, TheCallerSeesWhatACallDidElsewhere) {
  EXPECT_EQ(names([&] { a_.call<at::Tensor>("b", "add", x_).get(); }),
            (std::vector<std::string>{"rpc_async#add(a -> b)",
                                      "rpc_async#add(a -> b)#remote_op: aten::add"}));
  EXPECT_EQ(names([&] { a_.call<at::Tensor>("b", "aten::mul", x_, x_).get(); }),
            (std::vector<std::string>{"rpc_async#aten::mul(a -> b)",
                                      "rpc_async#aten::mul(a -> b)#remote_op: aten::mul"}));
}

TEST_F(ProfiledNodes, NestedCallsAreSeenThrough) {
  for (const std::string function : {"relay", "relay_later"}) {
    const std::string outer = "rpc_async#" + function + "(a -> b)";
    const std::string inner = outer + "#remote_op: rpc_async#add(b -> c)";
    EXPECT_EQ(names([&] { a_.call<at::Tensor>("b", function, std::string("c"), x_).get(); }),
              (std::vector<std::string>{outer, inner, inner + "#remote_op: aten::add"}));
  }
}

TEST_F(ProfiledNodes, AFailedCallHasItsEvents) {
  const auto seen = names([&] { EXPECT_THROW(a_.call<at::Tensor>("b", "fail", x_).get(), Error); });
  EXPECT_EQ(seen, (std::vector<std::string>{"rpc_async#fail(a -> b)",
                                            "rpc_async#fail(a -> b)#remote_op: aten::mul"}));
}

TEST_F(ProfiledNodes, CreatingAndUsingAReferenceIsRecorded) {
  const auto seen = names([&] {
    const auto ref = a_.remote<at::Tensor>("b", "add", x_);
    ref.fetch().get();
  });
  EXPECT_EQ(seen, (std::vector<std::string>{"rpc_remote#add(a -> b)",
                                            "rpc_remote#add(a -> b)#remote_op: aten::add",
                                            "to_here#(a)->(b)"}));
}

TEST_F(ProfiledNodes, ATimelineHasBothSidesOfEveryCall) {
  const Recorded recorded = record(wire::kTraceRanges | wire::kTraceTimeline, [&] {
    a_.call<at::Tensor>("b", "relay", std::string("c"), x_).get();
  });
  std::map<std::uint64_t, std::vector<const wire::TraceEvent*>> calls;
  for (const auto& event : recorded.events) {
    if (event.call != 0) calls[event.call].push_back(&event);
  }
  ASSERT_EQ(calls.size(), 2);
  for (auto& [id, sides] : calls) {
    ASSERT_EQ(sides.size(), 2);
    std::sort(sides.begin(), sides.end(), [](auto* x, auto* y) { return x->kind < y->kind; });
    const auto& [call, service] = std::tie(*sides[0], *sides[1]);
    EXPECT_EQ(call.kind, wire::TraceEventKind::Call);
    EXPECT_EQ(service.kind, wire::TraceEventKind::Service);
    EXPECT_LE(call.start_ns, call.begun_ns);
    EXPECT_LE(call.begun_ns, service.start_ns);
    EXPECT_LE(service.start_ns, service.begun_ns);
    EXPECT_LE(service.begun_ns, service.done_ns);
    EXPECT_LE(service.done_ns, service.end_ns);
    EXPECT_LE(service.end_ns, call.end_ns);
    EXPECT_GE(call.bytes, 24);
    EXPECT_GE(service.bytes, 24);
  }
  std::vector<std::string> processes;
  for (const auto& process : recorded.processes) processes.push_back(process.name);
  std::sort(processes.begin(), processes.end());
  EXPECT_EQ(processes, (std::vector<std::string>{"a", "b", "c"}));
}

TEST_F(ProfiledNodes, NobodyRecordsWithoutAProfile) {
  a_.call<at::Tensor>("b", "add", x_).get();
  const auto seen = names([] {});
  EXPECT_TRUE(seen.empty());
  a_.call<at::Tensor>("b", "add", x_).get();
}

TEST_F(ProfiledNodes, ANodeCanProfileWhatItServes) {
  b_.begin_serving_profile();
  a_.call<at::Tensor>("b", "add", x_).get();
  c_.call<at::Tensor>("b", "aten::mul", x_, x_).get();
  const auto served = b_.end_serving_profile();
  a_.call<at::Tensor>("b", "add", x_).get();
  ASSERT_EQ(served.size(), 2);
  EXPECT_EQ(served[0].recorded.events.at(0).name, "aten::add");
  EXPECT_EQ(served[1].recorded.events.at(0).name, "aten::mul");
  EXPECT_EQ(served[1].recorded.processes.at(0).node, 1);
  EXPECT_THROW(b_.end_serving_profile(), Error);
}

}  // namespace
}  // namespace hawser
