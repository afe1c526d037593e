#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "hawser/refs/fault.h"
#include "sim_refs/story.h"
#include "support/sanitized.h"

// Thousands of seeds. A seed that fails is told again, event by event, by
//   HAWSER_SIM_SEED=<seed> sim_refs_tests --gtest_filter='SimRefs.Replay'
namespace hawser::refs::simulation {
namespace {

void expect_good(std::uint64_t first, std::uint64_t count) {
  Model::Counts sum;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Outcome outcome = tell(seed);
    EXPECT_TRUE(outcome.good()) << outcome.text();
    sum.values += outcome.counts.values;
    sum.dropped += outcome.counts.dropped;
    sum.adopted += outcome.counts.adopted;
    sum.found += outcome.counts.found;
  }
  // A world in which nothing happens breaks no promises.
  EXPECT_GE(sum.values, count * 20);
  EXPECT_GE(sum.dropped, count * 10);
  EXPECT_GE(sum.adopted, count * 20);
  EXPECT_GE(sum.found, count * 5);
}

std::optional<std::uint64_t> number_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::optional(std::strtoull(text, nullptr, 10)) : std::nullopt;
}

TEST(SimRefs, Replay) {
  const auto seed = number_from("HAWSER_SIM_SEED");
  if (!seed) GTEST_SKIP() << "set HAWSER_SIM_SEED to the seed that is to be told";
  const Outcome outcome = tell(*seed, {.log = true});
  const Model::Counts& counts = outcome.counts;
  std::cout << outcome.events << " events, history " << outcome.history << "\n"
            << counts.values << " values, " << counts.dropped << " dropped, " << counts.tickets
            << " tickets, " << counts.adopted << " adopted, " << counts.refused << " refused, "
            << counts.failed << " failed, " << counts.found << " uses found their value, "
            << counts.gone << " did not, " << outcome.crashes << " crashes, " << outcome.rejoins
            << " rejoins\n";
  EXPECT_TRUE(outcome.good()) << outcome.text();
}

// For a long night: as many seeds as wanted, beyond those of every run.
TEST(SimRefs, Explore) {
  const auto count = number_from("HAWSER_SIM_COUNT");
  if (!count) GTEST_SKIP() << "set HAWSER_SIM_COUNT to the number of seeds that are to be tried";
  expect_good(100'000, *count);
}

// Cases of ctest, which runs them side by side.
constexpr std::uint64_t kSeedsPerCase = testing::kSanitized ? 150 : 750;
class RefSeeds : public ::testing::TestWithParam<int> {};
TEST_P(RefSeeds, KeepTheirPromises) {
  expect_good(static_cast<std::uint64_t>(GetParam()) * kSeedsPerCase, kSeedsPerCase);
}
INSTANTIATE_TEST_SUITE_P(SimRefs, RefSeeds, ::testing::Range(0, 8));

TEST(SimRefs, ASeedHasOneHistory) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Outcome once = tell(seed);
    const Outcome again = tell(seed);
    EXPECT_EQ(once.history, again.history) << "seed " << seed;
    EXPECT_EQ(once.events, again.events) << "seed " << seed;
  }
}

TEST(SimRefs, EveryMishapMeetsEveryKindOfMessage) {
  if (testing::kSanitized) GTEST_SKIP() << "this is about the stories";
  constexpr std::uint64_t kSeeds = 500;
  std::map<std::pair<std::string_view, Mishap>, std::uint64_t> sum;
  std::uint64_t refused = 0, failed = 0, gone = 0, orphans = 0, rejoins = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Outcome outcome = tell(seed);
    for (const auto& [what, count] : outcome.mishaps) sum[what] += count;
    refused += outcome.counts.refused;
    failed += outcome.counts.failed;
    gone += outcome.counts.gone;
    orphans += outcome.counts.orphans;
    rejoins += outcome.rejoins;
  }
  std::printf("%-14s", "");
  for (std::size_t i = 0; i < kMishaps; ++i) {
    std::printf("%11s", std::string(to_string(Mishap(i))).c_str());
  }
  for (const auto what : all_contents()) {
    std::printf("\n%-14s", std::string(what).c_str());
    for (std::size_t i = 0; i < kMishaps; ++i) {
      const auto count = sum[{what, Mishap(i)}];
      std::printf("%11llu", static_cast<unsigned long long>(count));
      EXPECT_GT(count, 0u) << "no " << what << " was " << to_string(Mishap(i));
    }
  }
  std::printf(
      "\n%llu tickets refused, %llu references failed, %llu uses found nothing, %llu "
      "rejoins\n",
      static_cast<unsigned long long>(refused), static_cast<unsigned long long>(failed),
      static_cast<unsigned long long>(gone), static_cast<unsigned long long>(rejoins));
  EXPECT_GT(refused, 0u);
  EXPECT_GT(failed, 0u);
  EXPECT_GT(gone, 0u);
  EXPECT_GT(orphans, 0u) << "no giver crashed before the owner heard of its child";
  EXPECT_GT(rejoins, 0u);
}

#ifdef HAWSER_DELIBERATE_FAULTS

struct Wrong {
  const char* name;
  hawser::testing::RefFault fault;
};

class DeliberateRefFaults : public ::testing::TestWithParam<Wrong> {
 protected:
  ~DeliberateRefFaults() override { hawser::testing::faults = 0; }
};

TEST_P(DeliberateRefFaults, AreFound) {
  constexpr std::uint64_t kSeeds = 300;
  hawser::testing::faults = GetParam().fault;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Outcome outcome = tell(seed);
    if (outcome.good()) continue;
    std::cout << GetParam().name << " is found by seed " << seed << ": "
              << outcome.complaints.front() << '\n';
    return;
  }
  FAIL() << GetParam().name << " is not found by " << kSeeds << " seeds";
}

using namespace hawser::testing;
INSTANTIATE_TEST_SUITE_P(
    SimRefs, DeliberateRefFaults,
    ::testing::Values(Wrong{"SkipPin", kSkipPin}, Wrong{"ForgetUnpin", kForgetUnpin},
                      Wrong{"ForgetSpent", kForgetSpent}, Wrong{"ForgetShare", kForgetShare},
                      Wrong{"ForgetHolder", kForgetHolder}, Wrong{"DropAck", kDropAck},
                      Wrong{"ForgetRetry", kForgetRetry}, Wrong{"DeliverTwice", kDeliverTwice},
                      Wrong{"SkipGap", kSkipGap}, Wrong{"KeepLostHolder", kKeepLostHolder},
                      Wrong{"TrustLostOwner", kTrustLostOwner}, Wrong{"NeverAsk", kNeverAsk},
                      Wrong{"ForgetEarlyDrop", kForgetEarlyDrop}, Wrong{"NeverDeny", kNeverDeny},
                      Wrong{"ForgetDrop", kForgetDrop}, Wrong{"ReuseRefIds", kReuseRefIds},
                      Wrong{"ForgetWaiters", kForgetWaiters},
                      Wrong{"DropWhileCreating", kDropWhileCreating}),
    [](const auto& tested) { return std::string(tested.param.name); });

#endif

}  // namespace
}  // namespace hawser::refs::simulation
