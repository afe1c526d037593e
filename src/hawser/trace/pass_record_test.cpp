#include "hawser/trace/pass_record.h"

#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace hawser::trace {
namespace {

constexpr std::uint64_t kPass = 7, kMessage = 9;

class PassRecordTest : public ::testing::Test {
 protected:
  static wire::TraceNote note(std::uint32_t wants) {
    wire::TraceNote note{.call = 5, .record = wants};
    note.received_at_ns = wall_ns();
    return note;
  }
  // What a thread does that was started with the part of the pass.
  void run_part() {
    std::optional<at::ThreadLocalState> carried;
    {
      const auto record = records_.find(kPass);
      const StartingPart starting(record.get());
      carried.emplace();
    }
    const at::ThreadLocalStateGuard as_started(*carried);
    at::add(x_, x_);
  }
  static std::size_t count(const std::vector<wire::TraceEvent>& events, wire::TraceEventKind kind) {
    return static_cast<std::size_t>(std::count_if(
        events.begin(), events.end(), [&](const auto& event) { return event.kind == kind; }));
  }

  ServingProfiles profiles_;
  PassRecords records_{this_process("here", 2), profiles_};
  const at::Tensor x_ = at::ones({2});
};

TEST_F(PassRecordTest, APassThatNobodyWatchesHasNoRecord) {
  EXPECT_FALSE(records_.serve(kPass, std::nullopt, kMessage));
  EXPECT_FALSE(records_.find(kPass));
  records_.begin(kPass);
  EXPECT_FALSE(records_.find(kPass));
}

TEST_F(PassRecordTest, TheSenderOfTheLastAnswerGetsEverything) {
  const auto wants = note(wire::kTraceRanges | wire::kTraceTimeline);
  const auto first = records_.serve(kPass, wants, kMessage);
  const auto second = records_.serve(kPass, wants, kMessage + 1);
  run_part();
  const auto at_once = second->finish(/*is_last=*/false);
  EXPECT_TRUE(at_once->events.empty());
  EXPECT_GE(at_once->answered_at_ns, at_once->received_at_ns);
  records_.find(kPass)->part_done();
  const auto report = first->finish(/*is_last=*/true);
  EXPECT_EQ(count(report->events, wire::TraceEventKind::Range), 1);
  EXPECT_EQ(count(report->events, wire::TraceEventKind::Part), 1);
  EXPECT_EQ(count(report->events, wire::TraceEventKind::Service), 2);
  for (const auto& event : report->events) {
    if (event.kind == wire::TraceEventKind::Range) continue;
    EXPECT_EQ(event.pass, kPass);
    EXPECT_LE(event.start_ns, event.begun_ns);
    EXPECT_LE(event.begun_ns, event.done_ns);
    EXPECT_LE(event.done_ns, event.end_ns);
  }
  records_.end(kPass, /*begun_here=*/true);
  EXPECT_TRUE(records_.find(kPass)) << "that was about passes of this node";
  records_.end(kPass, /*begun_here=*/false);
  EXPECT_FALSE(records_.find(kPass));
}

TEST_F(PassRecordTest, ProfilersOfTorchAreToldNothingOfTheTimeline) {
  const auto service = records_.serve(kPass, note(wire::kTraceRanges), kMessage);
  run_part();
  records_.find(kPass)->part_done();
  const auto report = service->finish(/*is_last=*/true);
  ASSERT_EQ(report->events.size(), 1);
  EXPECT_EQ(report->events[0].name, "aten::add");
}

TEST_F(PassRecordTest, WhoBeginsAPassKeepsWhatItRecords) {
  const auto recorder = std::make_shared<Recorder>(wire::kTraceRanges | wire::kTraceTimeline,
                                                   this_process("here", 2));
  {
    const Recording recording(recorder);
    records_.begin(kPass);
  }
  run_part();
  const auto service =
      records_.serve(kPass, note(wire::kTraceRanges | wire::kTraceTimeline), kMessage);
  const auto report = service->finish(/*is_last=*/true);
  EXPECT_TRUE(report->events.empty());
  records_.find(kPass)->part_done();
  records_.end(kPass, /*begun_here=*/true);
  const Recorded recorded = recorder->take();
  EXPECT_EQ(count(recorded.events, wire::TraceEventKind::Range), 1);
  EXPECT_EQ(count(recorded.events, wire::TraceEventKind::Service), 1);
  EXPECT_EQ(count(recorded.events, wire::TraceEventKind::Part), 1);
}

TEST_F(PassRecordTest, AThreadThatRunsOnePassStartsAnotherForNobody) {
  const auto recorder = std::make_shared<Recorder>(wire::kTraceRanges, this_process("here", 2));
  const Recording recording(recorder);
  {
    const StartingPart starting(nullptr);
    at::add(x_, x_);
  }
  EXPECT_TRUE(recorder->take().events.empty());
  at::add(x_, x_);
  EXPECT_EQ(recorder->take().events.size(), 1);
}

TEST_F(PassRecordTest, AProfileOfServingHasThePass) {
  profiles_.begin(wire::kTraceRanges);
  const auto service = records_.serve(kPass, std::nullopt, kMessage);
  run_part();
  EXPECT_FALSE(service->finish(/*is_last=*/true)) << "the sender has not asked";
  const auto served = profiles_.end();
  ASSERT_EQ(served.calls.size(), 1);
  EXPECT_EQ(served.calls[0].recorded.events.at(0).name, "aten::add");
}

}  // namespace
}  // namespace hawser::trace
