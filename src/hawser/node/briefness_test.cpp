#include "hawser/node/briefness.h"

#include <gtest/gtest.h>

namespace hawser {
namespace {

using namespace std::chrono_literals;

constexpr Duration kBrief = 1ms;
constexpr Duration kLong = 2ms;

void work_for(Duration time) {
  const TimePoint end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// Each run may lose its core for a moment, but not most of them.
template <class F>
bool becomes_brief(Briefness& briefness, F work) {
  for (int run = 0; run < 1000 && !briefness.is_brief(); ++run) briefness.run(work);
  return briefness.is_brief();
}

TEST(Briefness, WhatIsUnknownCountsAsSlow) { EXPECT_FALSE(Briefness(kBrief).is_brief()); }

TEST(Briefness, IsLearntFromRuns) {
  Briefness briefness(kBrief);
  EXPECT_TRUE(becomes_brief(briefness, [] {}));
  for (int run = 0; run < 64; ++run) briefness.run([] { work_for(kLong); });
  EXPECT_FALSE(briefness.is_brief());
}

TEST(Briefness, WhatARunWaitsForDoesNotCount) {
  Briefness briefness(kBrief);
  EXPECT_TRUE(becomes_brief(briefness, [] {
    const WaitingHere here;
    work_for(kLong);
  }));
}

}  // namespace
}  // namespace hawser
