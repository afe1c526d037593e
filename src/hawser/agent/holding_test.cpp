#include "hawser/agent/holding.h"

#include <gtest/gtest.h>

namespace hawser::agent {
namespace {

using namespace std::chrono_literals;

// How many calls in a row may not be held back.
int ban_of(Holding& holding) {
  int calls = 0;
  while (!holding.allowed()) ++calls;
  return calls;
}

// Flushes late until that has consequences, and says how often that took.
int late_flushes_until_banned(Holding& holding) {
  for (int flushes = 1; flushes <= 1000; ++flushes) {
    holding.flushed(1ms);
    if (!holding.allowed()) return flushes;
  }
  return 0;
}

TEST(Holding, EndsForAWhileWhenCallsAreLateAgainAndAgain) {
  Holding holding(200us);
  EXPECT_TRUE(holding.allowed());
  EXPECT_EQ(late_flushes_until_banned(holding), 16);
  EXPECT_EQ(ban_of(holding), 1023) << "one has been asked for already";
  EXPECT_TRUE(holding.allowed());
}

TEST(Holding, EndsForLongerEachTime) {
  Holding holding(200us);
  for (const int ban : {1024, 2048, 4096, 8192, 16'384, 32'768, 65'536, 65'536}) {
    EXPECT_EQ(late_flushes_until_banned(holding), 16);
    EXPECT_EQ(ban_of(holding), ban - 1);
  }
}

TEST(Holding, GoesOnWhenCallsAreLateNowAndThen) {
  Holding holding(200us);
  for (int i = 0; i < 1000; ++i) {
    holding.flushed(10ms);
    holding.flushed(200us);
    ASSERT_TRUE(holding.allowed()) << i;
  }
}

TEST(Holding, ForgivesAfterALongGoodTime) {
  Holding holding(200us);
  late_flushes_until_banned(holding);
  ban_of(holding);
  late_flushes_until_banned(holding);
  EXPECT_EQ(ban_of(holding), 2047);
  for (int i = 0; i < 256; ++i) holding.flushed(10us);
  EXPECT_EQ(late_flushes_until_banned(holding), 16);
  EXPECT_EQ(ban_of(holding), 1023);
}

}  // namespace
}  // namespace hawser::agent
