#include "hawser/agent/failure_detector.h"

#include <gtest/gtest.h>

namespace hawser::agent {
namespace {

using namespace std::chrono_literals;

const TimePoint kStart{1h};

TEST(FailureDetector, JudgesByTheTimeSinceItHeard) {
  const FailureDetector detector({}, kStart);
  EXPECT_EQ(detector.judge(kStart), Liveness::Alive);
  EXPECT_EQ(detector.judge(kStart + 1999ms), Liveness::Alive);
  EXPECT_EQ(detector.judge(kStart + 2s), Liveness::Suspect);
  EXPECT_EQ(detector.judge(kStart + 9999ms), Liveness::Suspect);
  EXPECT_EQ(detector.judge(kStart + 10s), Liveness::Lost);
}

TEST(FailureDetector, AWordFromThePeerStartsAnew) {
  FailureDetector detector({}, kStart);
  detector.heard(kStart + 9s);
  EXPECT_EQ(detector.judge(kStart + 10s), Liveness::Alive);
  EXPECT_EQ(detector.last_heard(), kStart + 9s);
  EXPECT_EQ(detector.judge(kStart + 11s), Liveness::Suspect);
  EXPECT_EQ(detector.judge(kStart + 19s), Liveness::Lost);
}

TEST(FailureDetector, TakesItsTimesFromTheOptions) {
  const FailureDetector detector(
      {.heartbeat_interval = 1ms, .suspect_after = 2ms, .lost_after = 5ms}, kStart);
  EXPECT_EQ(detector.judge(kStart + 2ms), Liveness::Suspect);
  EXPECT_EQ(detector.judge(kStart + 5ms), Liveness::Lost);
}

}  // namespace
}  // namespace hawser::agent
