#include "hawser/autograd/ids.h"

#include <gtest/gtest.h>

namespace hawser::autograd {
namespace {

ContextId first_of(std::uint64_t incarnation, std::optional<std::uint32_t> rank) {
  return Numbers({"node", Incarnation{incarnation}, rank}).next<ContextId>();
}

TEST(Numbers, ShowTheRankAndHaveNoSign) {
  for (const std::uint32_t rank : {0u, 7u, kMaxRank}) {
    EXPECT_EQ(rank_of(first_of(5, rank)), rank);
    EXPECT_GT(static_cast<std::int64_t>(number(first_of(4095, rank))), 0);
  }
}

TEST(Numbers, OfANodeThatStartsAgainAreOthers) { EXPECT_NE(first_of(5, 2), first_of(6, 2)); }

TEST(Numbers, OfNodesWithoutARankAreApartAlsoInAWorldThatManyHaveJoined) {
  EXPECT_NE(first_of(5, {}), first_of(5 + (1 << kLifeBits), {}));
  EXPECT_GT(static_cast<std::int64_t>(number(first_of(~std::uint64_t{0}, {}))), 0);
}

}  // namespace
}  // namespace hawser::autograd
