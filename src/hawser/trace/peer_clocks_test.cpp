#include "hawser/trace/peer_clocks.h"

#include <gtest/gtest.h>

namespace hawser::trace {
namespace {

TEST(PeerClocks, NothingIsKnownAtFirst) {
  EXPECT_EQ(PeerClocks().offset_of("b").ns, 0);
  EXPECT_EQ(PeerClocks().offset_of("b").error_ns, 0);
}

TEST(PeerClocks, ACallBoundsTheDifferenceFromBothSides) {
  PeerClocks clocks;
  // Theirs is 1000 ahead; 40 there and 20 back.
  clocks.learn("b", 5000, 6040, 6100, 5120);
  const auto offset = clocks.offset_of("b");
  EXPECT_LE(offset.ns - offset.error_ns, 1000);
  EXPECT_GE(offset.ns + offset.error_ns, 1000);
  EXPECT_LE(offset.error_ns, 30);
}

TEST(PeerClocks, MoreCallsAreMoreExact) {
  PeerClocks clocks;
  clocks.learn("b", 0, 1400, 1500, 900);      // slow there: between 600 and 1400
  clocks.learn("b", 2000, 3010, 3100, 2500);  // quick there: at most 1010
  clocks.learn("b", 4000, 5400, 5500, 4510);  // quick back: at least 990
  EXPECT_EQ(clocks.offset_of("b").ns, 1000);
  EXPECT_EQ(clocks.offset_of("b").error_ns, 10);
  EXPECT_EQ(clocks.offset_of("c").ns, 0);
}

TEST(PeerClocks, TheOffsetStaysWhileItIsPossible) {
  PeerClocks clocks;
  clocks.learn("b", 0, 1100, 1200, 300);  // between 900 and 1100
  EXPECT_EQ(clocks.offset_of("b").ns, 1000);
  clocks.learn("b", 2000, 3010, 3100, 2150);  // between 950 and 1010
  EXPECT_EQ(clocks.offset_of("b").ns, 1000);
  EXPECT_EQ(clocks.offset_of("b").error_ns, 50);
  clocks.learn("b", 4000, 4990, 5000, 4040);  // between 960 and 990
  EXPECT_EQ(clocks.offset_of("b").ns, 975);
  EXPECT_EQ(clocks.offset_of("b").error_ns, 15);
}

TEST(PeerClocks, ClocksThatMayAgreeAreTakenToDoSo) {
  PeerClocks clocks;
  clocks.learn("b", 0, 100, 110, 130);  // between -20 and 100
  EXPECT_EQ(clocks.offset_of("b").ns, 0);
  EXPECT_EQ(clocks.offset_of("b").error_ns, 100);
}

TEST(PeerClocks, AClockThatWasSetIsLearntAnew) {
  PeerClocks clocks;
  clocks.learn("b", 0, 1010, 1020, 40);
  clocks.learn("b", 1000, -3990, -3980, 1030);
  EXPECT_EQ(clocks.offset_of("b").ns, -5000);
}

TEST(PeerClocks, OldBoundsAreForgotten) {
  PeerClocks clocks;
  clocks.learn("b", 0, 1010, 1020, 40);  // between 980 and 1010
  const std::int64_t later = 120'000'000'000;
  clocks.learn("b", later, later + 1100, later + 1200, later + 300);  // between 900 and 1100
  EXPECT_EQ(clocks.offset_of("b").ns, 995) << "as assumed before: that is still possible";
  EXPECT_EQ(clocks.offset_of("b").error_ns, 105);
}

TEST(PeerClocks, ReportsAreTranslated) {
  wire::TraceReport report;
  report.processes = {{"b", 1, 1, 5}};
  report.events.resize(2);
  report.events[0].start_ns = 1100;
  report.events[0].end_ns = 1200;
  report.events[1] = report.events[0];
  report.events[1].begun_ns = 1150;
  translate(report, {1000, 10});
  EXPECT_EQ(report.events[0].start_ns, 100);
  EXPECT_EQ(report.events[0].end_ns, 200);
  EXPECT_EQ(report.events[0].begun_ns, 0) << "there is none";
  EXPECT_EQ(report.events[1].begun_ns, 150);
  EXPECT_EQ(report.processes[0].clock_error_ns, 15);
}

}  // namespace
}  // namespace hawser::trace
