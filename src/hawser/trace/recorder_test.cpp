#include "hawser/trace/recorder.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "hawser/trace/peer_clocks.h"

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

TEST(Recorder, EachGetsTheShapesAndTheMemoryThatItWants) {
  struct Seen {
    bool shapes = false, memory = false;
    bool operator==(const Seen&) const = default;
  };
  const auto seen = [](const std::shared_ptr<Recorder>& recorder) {
    const Recorded recorded = recorder->take();
    Seen seen{.shapes = !find(recorded, "aten::add").shapes.empty()};
    for (const auto& event : recorded.events) {
      seen.memory |= event.kind == wire::TraceEventKind::Memory;
    }
    return seen;
  };
  constexpr std::uint32_t kAll = wire::kTraceRanges | wire::kTraceShapes | wire::kTraceMemory;
  const at::Tensor x = at::ones({2});
  for (const std::uint32_t outer_wants : {std::uint32_t{wire::kTraceRanges}, kAll}) {
    for (const std::uint32_t inner_wants : {std::uint32_t{wire::kTraceRanges}, kAll}) {
      const auto outer = recorder(outer_wants), inner = recorder(inner_wants);
      {
        const Recording around(outer);
        const Recording within(inner);
        at::add(x, x);
      }
      EXPECT_EQ(seen(outer), (Seen{outer_wants == kAll, outer_wants == kAll})) << inner_wants;
      EXPECT_EQ(seen(inner), (Seen{inner_wants == kAll, inner_wants == kAll})) << outer_wants;
    }
  }
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

wire::TraceEvent call_named(std::string name) {
  wire::TraceEvent call;
  call.kind = wire::TraceEventKind::Call;
  call.name = std::move(name);
  call.call = 7;
  call.begun_ns = 5;
  return call;
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
  recorded_by->add_call(call_named("f"), &report, 0);
  recorded_by->add_call(call_named("g"), &report, 0);
  recorded_by->add_call(call_named("lost"), nullptr, 0);
  const Recorded recorded = recorded_by->take();
  ASSERT_EQ(recorded.processes.size(), 3);
  ASSERT_EQ(recorded.events.size(), 7);
  EXPECT_EQ(recorded.events[0].name, "f");
  EXPECT_EQ(recorded.events[0].kind, wire::TraceEventKind::Range);
  EXPECT_EQ(recorded.events[0].call, 0);
  EXPECT_EQ(recorded.events[1].name, "f#remote_op: aten::add");
  EXPECT_EQ(recorded.events[1].process, 1);
  EXPECT_EQ(recorded.events[2].process, 2);
  EXPECT_EQ(recorded.events[4].name, "g#remote_op: aten::add");
  EXPECT_EQ(recorded.dropped, 8);
}

// A timeline in a function that is called by somebody who wants no timeline, and the other way
// round.
TEST(Recorder, EachGetsACallInItsOwnForm) {
  const auto plain = recorder(), timeline = recorder(wire::kTraceRanges | wire::kTraceTimeline);
  wire::TraceReport report;
  report.processes = {{"there", 7, 1, 10}};
  report.events.resize(2);
  report.events[0].name = "aten::add";
  report.events[1].kind = wire::TraceEventKind::Service;
  const auto check = [&] {
    const Recorded calls = timeline->take(), ranges = plain->take();
    ASSERT_EQ(calls.events.size(), 3);
    EXPECT_EQ(calls.events[0].kind, wire::TraceEventKind::Call);
    EXPECT_EQ(calls.events[0].call, 7);
    EXPECT_EQ(calls.events[1].name, "aten::add");
    ASSERT_EQ(ranges.events.size(), 2);
    EXPECT_EQ(ranges.events[0].kind, wire::TraceEventKind::Range);
    EXPECT_EQ(ranges.events[1].name, "f#remote_op: aten::add");
  };
  {
    const Recording around(plain);
    const Recording within(timeline);
    Recorder::current()->add_call(call_named("f"), &report, 0);
  }
  check();
  const auto outer = recorder(wire::kTraceRanges | wire::kTraceTimeline);
  const auto inner = recorder();
  {
    const Recording around(outer);
    const Recording within(inner);
    EXPECT_EQ(inner->wanted(), wire::kTraceRanges | wire::kTraceTimeline);
    Recorder::current()->add_call(call_named("f"), &report, 0);
  }
  EXPECT_EQ(outer->take().events.size(), 3);
  EXPECT_EQ(inner->take().events.size(), 2);
}

// ------ clocks ------

// Calls to "there", which does something at `ns` of its clock and reports it.
class ReportedClock : public ::testing::Test {
 protected:
  void call(std::int64_t ns) {
    wire::TraceReport report;
    report.processes = {{.name = "there", .pid = 7}, {.name = "beyond", .pid = 8}};
    report.processes[1].clock_error_ns = 5;
    auto& event = report.events.emplace_back();
    event.name = "aten::add";
    event.start_ns = event.end_ns = ns;
    const auto offset = clocks_.offset_of("there");
    translate(report, offset);
    recorder_->add_call(call_named("f"), &report, offset.ns);
  }

  // Of the calls, the n-th.
  static std::int64_t time(const Recorded& recorded, std::size_t n) {
    return recorded.events.at(2 * n + 1).start_ns;
  }

  PeerClocks clocks_;
  const std::shared_ptr<Recorder> recorder_ = recorder();
};

TEST_F(ReportedClock, EventsAreAsFarOffAsItSaysAtMost) {
  constexpr std::int64_t kAhead = 700;         // of us, at "there"
  clocks_.learn("there", 0, 1400, 1500, 900);  // between 600 and 1400: 1000 is assumed
  call(500 + kAhead);
  clocks_.learn("there", 2000, 2750, 2800, 2150);  // between 650 and 750: 700 is
  call(2100 + kAhead);
  const Recorded recorded = recorder_->take();
  EXPECT_EQ(recorded.processes.at(1).clock_error_ns, 50);
  EXPECT_LE(std::abs(time(recorded, 0) - 500), 50) << "was put where it was by more than that";
  EXPECT_LE(std::abs(time(recorded, 1) - 2100), 50);
  EXPECT_EQ(recorded.processes.at(2).clock_error_ns, 405) << "nobody knows how it was translated";
}

TEST_F(ReportedClock, WhatWasTranslatedWorseIsMovedToTheOthers) {
  clocks_.learn("there", 2000, 2750, 2800, 2150);  // between 650 and 750
  call(1000);
  const std::int64_t later = 120'000'000'000;  // so that the first is forgotten
  clocks_.learn("there", later, later + 1110, later + 1610, later + 900);  // between 710 and 1110
  EXPECT_EQ(clocks_.offset_of("there").ns, 910);
  call(1000);
  const Recorded recorded = recorder_->take();
  EXPECT_EQ(time(recorded, 0), 300);
  EXPECT_EQ(time(recorded, 1), 300);
  EXPECT_EQ(recorded.processes.at(1).clock_error_ns, 50);
}

TEST_F(ReportedClock, WhatWasBeforeAClockWasSetStaysWhereItIs) {
  clocks_.learn("there", 0, 1100, 1200, 300);  // between 900 and 1100
  call(1250);
  clocks_.learn("there", 2000, -2990, -2980, 2030);  // between -5010 and -4990
  call(-2985);
  clocks_.learn("there", 3000, -1993, -1992, 3004);  // between -4996 and -4993
  call(-1993);
  const Recorded recorded = recorder_->take();
  EXPECT_EQ(time(recorded, 0), 250);
  EXPECT_LE(std::abs(time(recorded, 1) - 2010), 2) << "moved as more was known";
  EXPECT_EQ(recorded.processes.at(1).clock_error_ns, 100) << "that of the first";
}

TEST_F(ReportedClock, OneKnowsOnesOwnClock) {
  wire::TraceReport report;
  report.processes = {this_process("here", 3)};
  report.processes[0].clock_error_ns = 40;
  report.events.resize(1);
  report.events[0].start_ns = report.events[0].end_ns = 100;
  recorder_->add_call(call_named("f"), &report, 30);
  const Recorded recorded = recorder_->take();
  ASSERT_EQ(recorded.processes.size(), 1);
  EXPECT_EQ(recorded.processes[0].clock_error_ns, 0);
  EXPECT_EQ(time(recorded, 0), 130);
}

TEST_F(ReportedClock, WhatOthersTellIsAsFarOffAsTheySay) {
  clocks_.learn("there", 2000, 2750, 2800, 2150);  // between 650 and 750
  call(1000);
  wire::TraceReport report;
  report.processes = {{.name = "other", .pid = 6}, {.name = "there", .pid = 7}};
  report.processes[1].clock_error_ns = 80;
  recorder_->add_call(call_named("g"), &report, 0);
  EXPECT_EQ(recorder_->take().processes.at(1).clock_error_ns, 80);
}

// ------ room ------

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
  // 112 and 200 for the call, and as much and a little more for the event.
  for (int i = 0; i < 2; ++i) recorded_by->add_call(call_named(std::string(200, 'x')), &report, 0);
  EXPECT_EQ(recorded_by->take().dropped, 1);
  recorded_by->add_call(call_named("x"), &report, 0);
  EXPECT_EQ(recorded_by->take().dropped, 0) << "what was taken is gone";
}

}  // namespace
}  // namespace hawser::trace
