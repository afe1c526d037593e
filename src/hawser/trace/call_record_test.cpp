#include "hawser/trace/call_record.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_legacy.h>

#include <cstdlib>
#include <thread>

#include "hawser/base/log.h"

namespace hawser::trace {
namespace {

using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

CallNames call_of(std::string_view function, wire::TargetKind kind = wire::TargetKind::Function) {
  return {.style = CallStyle::Sync, .target = kind, .function = function, .from = "a", .to = "b"};
}

wire::TraceReport report_of(std::initializer_list<const char*> names) {
  wire::TraceReport report;
  report.processes = {{"b", 9, 1, 0}};
  std::int64_t at = wall_ns();
  report.received_at_ns = report.answered_at_ns = at;
  for (const char* name : names) {
    auto& event = report.events.emplace_back();
    event.name = name;
    event.thread = 4;
    event.start_ns = at;
    event.end_ns = at += 100;
  }
  return report;
}

// "kind name@node", in the order in which they are listed.
std::vector<std::string> texts(const torch::autograd::profiler::thread_event_lists& lists) {
  std::vector<std::string> texts;
  for (const auto& list : lists) {
    for (const auto& event : list) {
      texts.push_back(event.kindStr() + " " + event.name() + "@" + std::to_string(event.nodeId()) +
                      (event.isRemote() ? " remote" : ""));
    }
  }
  return texts;
}

TEST(CallRecord, KeysNameFunctionAndPeers) {
  const auto key = [](CallNames names) { return key_of(names, TorchProfiler::Legacy); };
  EXPECT_EQ(key(call_of("scale")), "rpc_sync#scale(a -> b)");
  EXPECT_EQ(key(call_of("aten::add.Tensor", wire::TargetKind::Operator)),
            "rpc_sync#aten::add(a -> b)");
  EXPECT_EQ(key(call_of("some.module:Class.method", wire::TargetKind::Python)),
            "rpc_sync#Class.method(a -> b)");
  EXPECT_EQ(key(call_of("__torch__.f", wire::TargetKind::Script)), "rpc_sync#__torch__.f(a -> b)");
  EXPECT_EQ(key(call_of("forward", wire::TargetKind::Method)), "rpc_sync#forward(a -> b)");
  EXPECT_EQ(key(call_of("", wire::TargetKind::Method)), "to_here#(a)->(b)");
  CallNames names = call_of(":", wire::TargetKind::Python);
  names.label = "<lambda>";
  names.style = CallStyle::Remote;
  EXPECT_EQ(key(names), "rpc_remote#<lambda>(a -> b)");
  names.style = CallStyle::AsyncScript;
  EXPECT_EQ(key(names), "rpc_async_jit#<lambda>(a -> b)");
  EXPECT_EQ(key_of(names, TorchProfiler::Kineto), "rpc#<lambda>(a -> b)");
}

TEST(CallRecord, NobodyIsAskedForAnythingIfNobodyWatches) {
  EXPECT_FALSE(is_watched());
  EXPECT_EQ(stamp(), 0);
  PeerClocks clocks;
  CallRecord record(call_of("f"), this_process("a", 0), 0, 1);
  EXPECT_FALSE(record.note());
  record.end(std::nullopt, clocks);
}

TEST(CallRecord, TheLegacyProfilerGetsTheCallAndWhatItDidElsewhere) {
  PeerClocks clocks;
  torch::autograd::profiler::enableProfilerLegacy(ProfilerConfig(ProfilerState::CPU, true, false));
  EXPECT_TRUE(is_watched());
  CallRecord record(call_of("f"), this_process("a", 0), 0, 1);
  ASSERT_TRUE(record.note());
  EXPECT_EQ(record.note()->record, wire::kTraceRanges | wire::kTraceShapes);
  // By a thread that knows nothing of the profiler.
  std::thread([&] { record.end(report_of({"aten::add"}), clocks); }).join();
  const auto told = texts(torch::autograd::profiler::disableProfilerLegacy());
  const std::vector<std::string> expected = {
      "push rpc_sync#f(a -> b)@0", "pop @0",
      "push rpc_sync#f(a -> b)#remote_op: aten::add@1 remote", "pop @1 remote"};
  EXPECT_TRUE(std::search(told.begin(), told.end(), expected.begin(), expected.end()) != told.end())
      << ::testing::PrintToString(told);
}

TEST(CallRecord, AnAnswerAfterTheEndOfTheProfileIsHarmless) {
  PeerClocks clocks;
  torch::autograd::profiler::enableProfilerLegacy(ProfilerConfig(ProfilerState::CPU));
  CallRecord record(call_of("f"), this_process("a", 0), 0, 1);
  torch::autograd::profiler::disableProfilerLegacy();
  record.end(report_of({"aten::add"}), clocks);
  EXPECT_FALSE(is_watched());
}

TEST(CallRecord, ARecorderGetsTheCallUnderItsNameAndPassesTheWishOn) {
  PeerClocks clocks;
  const auto recorder =
      std::make_shared<Recorder>(wire::kTraceRanges | wire::kTraceMemory, this_process("a", 0));
  {
    const Recording recording(recorder);
    CallRecord record(call_of("f"), this_process("a", 0), 0, 1);
    EXPECT_EQ(record.note()->record, wire::kTraceRanges | wire::kTraceMemory);
    record.end(report_of({"aten::add"}), clocks);
  }
  const Recorded recorded = recorder->take();
  ASSERT_EQ(recorded.events.size(), 2);
  EXPECT_EQ(recorded.events[0].name, "rpc_sync#f(a -> b)");
  EXPECT_EQ(recorded.events[0].kind, wire::TraceEventKind::Range);
  EXPECT_EQ(recorded.events[1].name, "rpc_sync#f(a -> b)#remote_op: aten::add");
}

TEST(CallRecord, ATimelineKeepsNamesAndHasTheTimesOfTheCall) {
  PeerClocks clocks;
  const auto recorder =
      std::make_shared<Recorder>(wire::kTraceRanges | wire::kTraceTimeline, this_process("a", 0));
  const std::int64_t called = wall_ns();
  {
    const Recording recording(recorder);
    CallRecord record(call_of("f"), this_process("a", 0), called, 123);
    record.end(report_of({"aten::add"}), clocks);
  }
  const Recorded recorded = recorder->take();
  ASSERT_EQ(recorded.events.size(), 2);
  const auto& call = recorded.events[0];
  EXPECT_EQ(call.kind, wire::TraceEventKind::Call);
  EXPECT_EQ(call.start_ns, called);
  EXPECT_GE(call.begun_ns, called);
  EXPECT_GE(call.end_ns, call.begun_ns);
  EXPECT_EQ(call.bytes, 123);
  EXPECT_NE(call.call, 0);
  EXPECT_EQ(recorded.events[1].name, "aten::add");
}

TEST(CallRecord, WhatAPeerOfAnotherClockDidIsWithinTheCall) {
  constexpr std::int64_t kAhead = 3'600'000'000'000;  // an hour
  PeerClocks clocks;
  const auto recorder =
      std::make_shared<Recorder>(wire::kTraceRanges | wire::kTraceTimeline, this_process("a", 0));
  {
    const Recording recording(recorder);
    for (int i = 0; i < 5; ++i) {
      CallRecord record(call_of("f"), this_process("a", 0), 0, 1);
      wire::TraceReport report = report_of({"aten::add"});
      report.received_at_ns += kAhead;
      report.events[0].start_ns += kAhead;
      report.answered_at_ns = report.events[0].end_ns = wall_ns() + kAhead;
      record.end(std::move(report), clocks);
    }
  }
  const Recorded recorded = recorder->take();
  ASSERT_EQ(recorded.events.size(), 10);
  const std::int64_t error = recorded.processes.at(1).clock_error_ns;
  EXPECT_LT(error, kAhead / 1000);
  for (std::size_t i = 0; i < recorded.events.size(); i += 2) {
    const auto& call = recorded.events[i];
    const auto& there = recorded.events[i + 1];
    EXPECT_GE(there.start_ns, call.begun_ns - error);
    EXPECT_LE(there.end_ns, call.end_ns + error);
  }
}

TEST(CallRecord, WhatIsMissingInAProfileOfTorchIsLoggedOnce) {
  std::vector<std::string> lines;
  log::set_sink(
      [&](log::Level, std::string_view, std::string_view line) { lines.emplace_back(line); });
  PeerClocks clocks;
  torch::autograd::profiler::enableProfilerLegacy(ProfilerConfig(ProfilerState::CPU));
  for (int i = 0; i < 2; ++i) {
    CallRecord record(call_of("f"), this_process("a", 0), 0, 1);
    wire::TraceReport report = report_of({"aten::add"});
    report.dropped = 12;
    record.end(std::move(report), clocks);
  }
  torch::autograd::profiler::disableProfilerLegacy();
  log::set_sink(nullptr);
  ASSERT_EQ(lines.size(), 1);
  EXPECT_NE(lines[0].find("rpc_sync#f(a -> b) did on other nodes 12 events"), std::string::npos)
      << lines[0];
}

TEST(CallRecord, TimesOfCudaAreOfTheCpuElsewhere) {
  std::vector<std::string> lines;
  log::set_sink(
      [&](log::Level, std::string_view, std::string_view line) { lines.emplace_back(line); });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(wants_of(ProfilerConfig(ProfilerState::CUDA, true, true)),
              wire::kTraceRanges | wire::kTraceShapes | wire::kTraceMemory);
  }
  log::set_sink(nullptr);
  ASSERT_EQ(lines.size(), 1);
  EXPECT_NE(lines[0].find("times of the CPU only"), std::string::npos);
}

TEST(CallRecord, ConcurrentCallsDoNotMix) {
  PeerClocks clocks;
  const auto recorder = std::make_shared<Recorder>(wire::kTraceRanges, this_process("a", 0));
  {
    const Recording recording(recorder);
    CallRecord first(call_of("f"), this_process("a", 0), 0, 1);
    CallRecord second(call_of("g"), this_process("a", 0), 0, 1);
    std::thread([&] { second.end(report_of({"aten::mul"}), clocks); }).join();
    std::thread([&] { first.end(report_of({"aten::add"}), clocks); }).join();
    EXPECT_NE(first.note()->call, second.note()->call);
  }
  std::vector<std::string> names;
  for (const auto& event : recorder->take().events) names.push_back(event.name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "rpc_sync#g(a -> b)", "rpc_sync#g(a -> b)#remote_op: aten::mul",
                       "rpc_sync#f(a -> b)", "rpc_sync#f(a -> b)#remote_op: aten::add"}));
}

}  // namespace
}  // namespace hawser::trace
