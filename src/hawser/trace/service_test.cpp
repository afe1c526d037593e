#include "hawser/trace/service.h"

#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_legacy.h>

#include "hawser/base/error.h"
#include "hawser/trace/torch_profilers.h"

namespace hawser::trace {
namespace {

class ServiceTest : public ::testing::Test {
 protected:
  std::unique_ptr<Service> serve(const std::optional<wire::TraceNote>& note) {
    auto service = std::make_unique<Service>("f", note, 0, profiles_, this_process("here", 2));
    const Recording recording(service->recorder());
    at::add(x_, x_);
    return service;
  }

  static wire::Payload ten_bytes() {
    wire::Payload payload;
    payload.value.resize(10);
    return payload;
  }

  ServingProfiles profiles_;
  const at::Tensor x_ = at::ones({2});
};

TEST_F(ServiceTest, TheCallerGetsWhatItAskedForOnce) {
  wire::TraceNote note{.call = 5, .record = wire::kTraceRanges};
  note.received_at_ns = wall_ns();
  const auto service = serve(note);
  const auto report = service->finish(ten_bytes());
  ASSERT_TRUE(report);
  ASSERT_EQ(report->events.size(), 1);
  EXPECT_EQ(report->events[0].name, "aten::add");
  EXPECT_EQ(report->received_at_ns, note.received_at_ns);
  EXPECT_GE(report->answered_at_ns, report->events[0].end_ns);
  EXPECT_FALSE(service->finish(ten_bytes()));
}

TEST_F(ServiceTest, ATimelineHasTheTimesOfTheService) {
  wire::TraceNote note{.call = 5, .record = wire::kTraceTimeline};
  note.received_at_ns = wall_ns();
  const auto service = serve(note);
  service->function_returned();
  const auto report = service->finish(ten_bytes());
  ASSERT_EQ(report->events.size(), 1) << "no ranges were wanted";
  const auto& event = report->events[0];
  EXPECT_EQ(event.kind, wire::TraceEventKind::Service);
  EXPECT_EQ(event.call, 5);
  EXPECT_EQ(event.bytes, 10);
  EXPECT_LE(event.start_ns, event.begun_ns);
  EXPECT_LE(event.begun_ns, event.done_ns);
  EXPECT_LE(event.done_ns, event.end_ns);
}

TEST_F(ServiceTest, ALargeAnswerIsNotEndangeredByWhatWasRecorded) {
  const auto service = serve(wire::TraceNote{.call = 1, .record = wire::kTraceRanges});
  wire::Payload large;
  large.value.resize(std::size_t{40} << 20);
  const auto report = service->finish(large);
  EXPECT_TRUE(report->events.empty());
  EXPECT_EQ(report->dropped, 1);
}

TEST_F(ServiceTest, ProfilesOfServingAreNested) {
  EXPECT_EQ(profiles_.wants(), 0);
  profiles_.begin(wire::kTraceRanges);
  EXPECT_FALSE(serve(std::nullopt)->finish({})) << "the caller has not asked";
  profiles_.begin(wire::kTraceRanges | wire::kTraceShapes);
  EXPECT_EQ(profiles_.wants(), wire::kTraceRanges | wire::kTraceShapes);
  serve(std::nullopt)->finish({});
  const auto inner = profiles_.end();
  serve(std::nullopt)->finish({});
  const auto outer = profiles_.end();
  EXPECT_EQ(inner.calls.size(), 1);
  EXPECT_EQ(outer.calls.size(), 3);
  EXPECT_EQ(profiles_.wants(), 0);
  EXPECT_THROW(profiles_.end(), Error);
}

TEST_F(ServiceTest, ACallThatBeganBeforeTheProfileIsNotInIt) {
  const auto service = serve(wire::TraceNote{.call = 1, .record = wire::kTraceRanges});
  profiles_.begin(wire::kTraceRanges);
  service->finish({});
  EXPECT_TRUE(profiles_.end().calls.empty());
}

TEST_F(ServiceTest, CallsBeyondTheLimitAreCounted) {
  profiles_.begin(wire::kTraceRanges);
  const ServingProfiles::ServedCall call{.recorded = {}, .begun_ns = wall_ns()};
  for (std::size_t i = 0; i < ServingProfiles::kMostCalls + 3; ++i) profiles_.add(call);
  const auto served = profiles_.end();
  EXPECT_EQ(served.calls.size(), ServingProfiles::kMostCalls);
  EXPECT_EQ(served.dropped, 3);
}

TEST_F(ServiceTest, BecomesAProfileOfTheLegacyProfiler) {
  profiles_.begin(wire::kTraceRanges | wire::kTraceMemory);
  serve(std::nullopt)->finish({});
  const auto calls = profiles_.end().calls;
  ASSERT_EQ(calls.size(), 1);
  const auto lists = as_legacy_profile(calls[0].recorded, calls[0].begun_ns);
  ASSERT_EQ(lists.size(), 2);
  EXPECT_STREQ(lists[0].at(0).name(), "__start_profile");
  EXPECT_EQ(lists[1].front().kindStr(), "push");
  EXPECT_STREQ(lists[1].front().name(), "aten::add");
  EXPECT_EQ(lists[1].front().nodeId(), 2);
  EXPECT_FALSE(lists[1].front().isRemote());
  EXPECT_GE(lists[0][0].cpuElapsedUs(lists[1].front()), 0);
  bool allocated = false;
  for (const auto& event : lists[1]) allocated |= event.cpuMemoryUsage() > 0;
  EXPECT_TRUE(allocated);
}

}  // namespace
}  // namespace hawser::trace
