#include "hawser/trace/recorder.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace hawser::trace {
namespace {

std::shared_ptr<Recorder> recorder(std::uint32_t wants = wire::kTraceRanges) {
  return std::make_shared<Recorder>(wants, this_process("here", 3));
}

std::size_t count(const Recorded& recorded, std::string_view name) {
  return static_cast<std::size_t>(
      std::count_if(recorded.events.begin(), recorded.events.end(),
                    [&](const wire::TraceEvent& event) { return event.name == name; }));
}

const wire::TraceEvent& find(const Recorded& recorded, std::string_view name) {
  return *std::find_if(recorded.events.begin(), recorded.events.end(),
                       [&](const wire::TraceEvent& event) { return event.name == name; });
}

TEST(Recorder, RecordsOperatorsOfItsThreadWhileRecording) {
  const auto recorded_by = recorder(wire::kTraceRanges | wire::kTraceShapes);
  const at::Tensor x = at::ones({2, 3});
  at::mul(x, x);
  {
    const Recording recording(recorded_by);
    EXPECT_EQ(Recorder::current(), recorded_by.get());
    at::add(x, x);
    std::thread([&] { at::mul(x, x); }).join();
  }
  EXPECT_EQ(Recorder::current(), nullptr);
  at::mul(x, x);
  const Recorded recorded = recorded_by->take();
  EXPECT_EQ(count(recorded, "aten::add"), 1);
  EXPECT_EQ(count(recorded, "aten::mul"), 0) << "before, after, and in a thread of its own";
  const auto& add = find(recorded, "aten::add");
  EXPECT_EQ(add.shapes, (std::vector<std::int64_t>{2, 2, 3, 2, 2, 3, 0}));
  EXPECT_LE(add.start_ns, add.end_ns);
  EXPECT_GE(add.start_ns, recorded_by->begun_ns());
  ASSERT_EQ(recorded.processes.size(), 1);
  EXPECT_EQ(recorded.processes[0].name, "here");
  EXPECT_EQ(recorded.processes[0].node, 3);
}

TEST(Recorder, FollowsWhatLibtorchCarriesToOtherThreads) {
  const auto recorded_by = recorder();
  const at::Tensor x = at::ones({2});
  {
    const Recording recording(recorded_by);
    std::thread([&, state = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard guard(state);
      at::mul(x, x);
    }).join();
  }
  EXPECT_EQ(count(recorded_by->take(), "aten::mul"), 1);
}

TEST(Recorder, TwoThreadsDoNotMix) {
  const auto first = recorder(), second = recorder();
  const auto work = [](const std::shared_ptr<Recorder>& recorder, bool adds) {
    const at::Tensor x = at::ones({2});
    const Recording recording(recorder);
    for (int i = 0; i < 50; ++i) adds ? at::add(x, x) : at::mul(x, x);
  };
  std::thread other([&] { work(first, true); });
  work(second, false);
  other.join();
  const Recorded adds = first->take(), muls = second->take();
  EXPECT_EQ(count(adds, "aten::add"), 50);
  EXPECT_EQ(count(adds, "aten::mul"), 0);
  EXPECT_EQ(count(muls, "aten::mul"), 50);
  EXPECT_EQ(count(muls, "aten::add"), 0);
}

TEST(Recorder, AnInnerRecordingFeedsTheOuterOneToo) {
  const auto outer = recorder(), inner = recorder();
  const at::Tensor x = at::ones({2});
  {
    const Recording around(outer);
    const Recording again(outer);  // no effect
    at::add(x, x);
    const Recording within(inner);
    at::mul(x, x);
  }
  const Recorded all = outer->take(), some = inner->take();
  EXPECT_EQ(count(all, "aten::add"), 1);
  EXPECT_EQ(count(all, "aten::mul"), 1);
  EXPECT_EQ(count(some, "aten::add"), 0);
  EXPECT_EQ(count(some, "aten::mul"), 1);
}

TEST(Recorder, RecordsMemoryOnlyIfWanted) {
  const auto bytes = [](std::uint32_t wants) {
    const auto recorded_by = recorder(wants);
    {
      const Recording recording(recorded_by);
      at::ones({1024});
    }
    std::int64_t allocated = 0;
    for (const auto& event : recorded_by->take().events) {
      if (event.kind == wire::TraceEventKind::Memory)
        allocated += std::max<std::int64_t>(event.bytes, 0);
    }
    return allocated;
  };
  EXPECT_EQ(bytes(wire::kTraceRanges), 0);
  EXPECT_GE(bytes(wire::kTraceRanges | wire::kTraceMemory), 4096);
}

TEST(Recorder, PutsReportsOfOthersBesideItsOwn) {
  const auto recorded_by = recorder();
  wire::TraceReport report;
  report.processes = {{"there", 7, 1, 10}, {"beyond", 8, 2, 20}};
  report.events.resize(2);
  report.events[0].name = "aten::add";
  report.events[1].name = "aten::mul";
  report.events[1].process = 1;
  report.dropped = 4;
  recorded_by->add(report, "call#");
  report.processes[0].clock_error_ns = 5;
  recorded_by->add(report, "");
  const Recorded recorded = recorded_by->take();
  ASSERT_EQ(recorded.processes.size(), 3);
  EXPECT_EQ(recorded.processes[1].clock_error_ns, 5) << "the better of the two";
  ASSERT_EQ(recorded.events.size(), 4);
  EXPECT_EQ(recorded.events[0].name, "call#aten::add");
  EXPECT_EQ(recorded.events[0].process, 1);
  EXPECT_EQ(recorded.events[1].process, 2);
  EXPECT_EQ(recorded.events[2].name, "aten::add");
  EXPECT_EQ(recorded.dropped, 8);
}

TEST(Recorder, CountsWhatItHasNoRoomFor) {
  const auto recorded_by = recorder();
  for (std::size_t i = 0; i < wire::kMaxTraceEvents + 5; ++i) recorded_by->add(wire::TraceEvent());
  const Recorded recorded = recorded_by->take();
  EXPECT_EQ(recorded.events.size(), wire::kMaxTraceEvents);
  EXPECT_EQ(recorded.dropped, 5);
  EXPECT_TRUE(recorded_by->take().events.empty());
}

TEST(Recorder, LongNamesTakeRoomToo) {
  const auto recorded_by = std::make_shared<Recorder>(wire::kTraceRanges, this_process("here", 3),
                                                      Room{.events = 100, .bytes = 1000});
  wire::TraceReport report;
  report.processes.emplace_back();
  report.events.resize(1);
  for (int i = 0; i < 3; ++i) recorded_by->add(report, std::string(300, 'x'));
  EXPECT_EQ(recorded_by->take().dropped, 1);
  recorded_by->add(report, {});
  EXPECT_EQ(recorded_by->take().dropped, 0) << "what was taken is gone";
}

}  // namespace
}  // namespace hawser::trace
