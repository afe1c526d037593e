#include "hawser/autograd/endings.h"

#include <gtest/gtest.h>

namespace hawser::autograd {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart{1h};

TEST(Endings, RemembersTheFirstForAWhile) {
  Endings endings(10s, 100);
  endings.remember(PassId{1}, Error(ErrorKind::Timeout, "first"), kStart);
  endings.remember(PassId{1}, Error(ErrorKind::Invalid, "second"), kStart);
  endings.remember(PassId{2}, std::nullopt, kStart + 9s);
  EXPECT_EQ(endings.error(PassId{1})->message(), "first");
  EXPECT_TRUE(endings.contains(PassId{2}));
  EXPECT_FALSE(endings.error(PassId{2}));
  endings.remember(PassId{3}, std::nullopt, kStart + 10s);
  EXPECT_FALSE(endings.contains(PassId{1}));
  EXPECT_TRUE(endings.contains(PassId{2}));
}

TEST(Endings, ForgetsTheOldestOfTooMany) {
  Endings endings(10s, 2);
  for (std::uint64_t i = 1; i <= 3; ++i) endings.remember(PassId{i}, std::nullopt, kStart);
  EXPECT_FALSE(endings.contains(PassId{1}));
  EXPECT_TRUE(endings.contains(PassId{3}));
}

}  // namespace
}  // namespace hawser::autograd
