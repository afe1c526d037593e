#include "hawser/refs/graveyard.h"

#include <gtest/gtest.h>

namespace hawser::refs {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart{1h};

constexpr std::uint64_t kPage = Graveyard<RefId>::kIdsInPage;

TEST(Graveyard, RemembersForAWhile) {
  Graveyard<ForkId> graves(10s, 100);
  graves.bury({1, 1}, kStart);
  graves.bury({2, 1}, kStart + 9s);
  EXPECT_TRUE(graves.contains({1, 1}));
  EXPECT_FALSE(graves.contains({1, 2}));
  graves.bury({3, 1}, kStart + 10s);
  EXPECT_FALSE(graves.contains({1, 1}));
  EXPECT_TRUE(graves.contains({2, 1}));
  EXPECT_EQ(graves.pages(), 2u);
}

TEST(Graveyard, ForgetsTheOldestWhenThereAreTooMany) {
  Graveyard<RefId> graves(10s, 2);
  for (std::uint64_t i = 0; i < 5; ++i) graves.bury({1, i * kPage}, kStart);
  EXPECT_EQ(graves.pages(), 2u);
  EXPECT_FALSE(graves.contains({1, 2 * kPage}));
  EXPECT_TRUE(graves.contains({1, 3 * kPage}));
  EXPECT_TRUE(graves.contains({1, 4 * kPage}));
}

TEST(Graveyard, KeepsNeighboursOnOnePage) {
  Graveyard<RefId> graves(10s, 2);
  for (std::uint64_t i = 0; i < 2 * kPage; i += 2) graves.bury({1, i}, kStart);
  EXPECT_EQ(graves.pages(), 2u);
  for (std::uint64_t i = 0; i < 2 * kPage; ++i) EXPECT_EQ(graves.contains({1, i}), i % 2 == 0);
}

TEST(Graveyard, RemembersAPageAsLongAsTheLastOnIt) {
  Graveyard<RefId> graves(10s, 100);
  graves.bury({1, 1}, kStart);
  graves.bury({1, 2}, kStart + 9s);
  graves.bury({2, 1}, kStart + 11s);
  EXPECT_TRUE(graves.contains({1, 2}));
  graves.bury({2, 2}, kStart + 19s);
  EXPECT_FALSE(graves.contains({1, 2}));
  EXPECT_TRUE(graves.contains({2, 1}));
}

TEST(Origin, TellsLivesApartAndShowsTheRank) {
  const auto first = origin_of(7, Incarnation{1});
  const auto second = origin_of(7, Incarnation{2});
  EXPECT_NE(first, second);
  EXPECT_EQ(rank_of(first), 7u);
  EXPECT_EQ(rank_of(second), 7u);
  EXPECT_NE(origin_of(8, Incarnation{1}), first);
}

}  // namespace
}  // namespace hawser::refs
