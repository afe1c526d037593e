// What is recorded of calls between nodes. trace/ has the parts, tests/python what profilers of
// torch show of them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "hawser/node/autograd_context.h"
#include "hawser/node/node.h"
#include "hawser/node/ref.h"
#include "support/memory_store.h"

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
      node->serve("relay_squared", [](const CallContext& call, std::string to, at::Tensor x) {
        return call.node().call<at::Tensor>(to, "aten::mul", x, x).get() * x;
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

  // a calls b, which calls c, and the gradients go the same way back and forth.
  void run_backward() {
    const at::Tensor x = at::ones({2, 3}).set_requires_grad(true);
    autograd::Context context(a_);
    const auto y = a_.call<at::Tensor>("b", "relay_squared", std::string("c"), x).get();
    context.backward({y.sum()});
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

TEST_F(ProfiledNodes, ABackwardPassIsSeenOnAllNodes) {
  const auto seen = names([&] { run_backward(); });
  const auto has = [&](const std::string& name) {
    return std::find(seen.begin(), seen.end(), name) != seen.end();
  };
  const std::string to_b = "backward#gradients(a -> b)";
  const std::string to_c = to_b + "#remote_op: backward#gradients(b -> c)";
  EXPECT_TRUE(has("SumBackward0"));
  EXPECT_TRUE(has(to_b));
  EXPECT_TRUE(has(to_b + "#remote_op: MulBackward0"));
  EXPECT_TRUE(has(to_c));
  EXPECT_TRUE(has(to_c + "#remote_op: MulBackward0"));
}

TEST_F(ProfiledNodes, ATimelineLinksTheBackwardPassToTheForwardOne) {
  const Recorded recorded =
      record(wire::kTraceRanges | wire::kTraceTimeline, [&] { run_backward(); });
  const auto name_of = [&](const wire::TraceEvent& event) {
    return recorded.processes[event.process].name;
  };
  std::map<std::string, const wire::TraceEvent*> parts;
  std::map<std::uint64_t, std::string> senders;  // of messages of the forward pass
  std::vector<const wire::TraceEvent*> gradients;
  std::map<std::uint64_t, const wire::TraceEvent*> calls;
  for (const wire::TraceEvent& event : recorded.events) {
    if (event.kind == wire::TraceEventKind::Part) parts[name_of(event)] = &event;
    if (event.kind == wire::TraceEventKind::Call) calls[event.call] = &event;
    if (event.kind != wire::TraceEventKind::Service) continue;
    if (event.pass != 0) {
      gradients.push_back(&event);
    } else {
      EXPECT_NE(event.received, 0);
      EXPECT_NE(event.sent, 0);
      senders[event.sent] = name_of(event);
    }
  }
  ASSERT_EQ(parts.size(), 3);
  for (const auto& [node, part] : parts) {
    EXPECT_EQ(part->pass, parts["a"]->pass);
    EXPECT_LE(part->start_ns, part->begun_ns) << node;
    EXPECT_LE(part->begun_ns, part->done_ns) << node;
    EXPECT_LE(part->done_ns, part->end_ns) << node;
    EXPECT_LE(parts["a"]->start_ns, part->start_ns) << node;
    EXPECT_GE(parts["a"]->end_ns, part->end_ns) << node;
  }
  ASSERT_EQ(gradients.size(), 4) << "of two requests and two answers";
  for (const wire::TraceEvent* service : gradients) {
    EXPECT_EQ(service->pass, parts["a"]->pass);
    ASSERT_TRUE(calls.contains(service->call));
    EXPECT_EQ(calls[service->call]->name.substr(0, 18), "backward#gradients");
    EXPECT_LE(calls[service->call]->begun_ns, service->start_ns);
    EXPECT_LE(service->end_ns, calls[service->call]->end_ns);
    const auto sender = senders.find(service->sent);
    if (sender != senders.end()) {
      EXPECT_EQ(sender->second, name_of(*service)) << "gradients go where the tensors came from";
    }
  }
  EXPECT_EQ(senders.size(), 2);
}

TEST_F(ProfiledNodes, APassThatFailsIsRecordedToo) {
  const auto recorded = record(wire::kTraceRanges | wire::kTraceTimeline, [&] {
    const at::Tensor x = at::ones({2, 3}).set_requires_grad(true);
    autograd::Context context(a_);
    const auto y = a_.call<at::Tensor>("b", "relay_squared", std::string("c"), x).get();
    context.backward({y.sum()});
    EXPECT_THROW(context.backward({y.sum()}), Error) << "the graph was freed on b";
  });
  std::set<std::uint64_t> passes;
  for (const auto& event : recorded.events) {
    if (event.kind == wire::TraceEventKind::Part) passes.insert(event.pass);
  }
  EXPECT_EQ(passes.size(), 2);
}

TEST_F(ProfiledNodes, APassThatNobodyWatchesIsNotRecorded) {
  run_backward();
  b_.begin_serving_profile();
  run_backward();
  const auto served = b_.end_serving_profile();
  ASSERT_EQ(served.calls.size(), 2) << "the call, and the pass";
  const auto& events = served.calls[1].recorded.events;
  EXPECT_TRUE(std::any_of(events.begin(), events.end(),
                          [](const auto& event) { return event.name == "MulBackward0"; }));
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
  ASSERT_EQ(served.calls.size(), 2);
  EXPECT_EQ(served.calls[0].recorded.events.at(0).name, "aten::add");
  EXPECT_EQ(served.calls[1].recorded.events.at(0).name, "aten::mul");
  EXPECT_EQ(served.calls[1].recorded.processes.at(0).node, 1);
  EXPECT_THROW(b_.end_serving_profile(), Error);
}

}  // namespace
}  // namespace hawser
