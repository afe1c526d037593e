#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "hawser/base/fault.h"
#include "hawser/base/log.h"
#include "sim/stories.h"

// Thousands of seeds. A seed that fails is told again, event by event, by
//   HAWSER_SIM_SEED=<seed> sim_tests --gtest_filter='Sim.Replay*'
namespace hawser::simulation {
namespace {

using Tell = Outcome (*)(std::uint64_t, StoryOptions);

// Losses are what these tests are about: no warnings.
class Quiet : public ::testing::Environment {
  void SetUp() override { log::configure("off"); }
};
const auto* const kQuiet = ::testing::AddGlobalTestEnvironment(new Quiet);

void expect_good(Tell tell, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Outcome outcome = tell(seed, {});
    EXPECT_TRUE(outcome.good()) << outcome.text();
    EXPECT_GE(outcome.events, 200u) << "seed " << seed;
    EXPECT_GE(outcome.nodes, 3u) << "seed " << seed;
  }
}

std::optional<std::uint64_t> seed_to_replay() {
  const char* seed = std::getenv("HAWSER_SIM_SEED");
  return seed ? std::optional(std::strtoull(seed, nullptr, 10)) : std::nullopt;
}

void replay(Tell tell) {
  const auto seed = seed_to_replay();
  if (!seed) GTEST_SKIP() << "set HAWSER_SIM_SEED to the seed that is to be told";
  const Outcome outcome = tell(*seed, {.log = true});
  std::cout << outcome.events << " events, " << outcome.calls << " calls, history "
            << outcome.history << '\n';
  EXPECT_TRUE(outcome.good()) << outcome.text();
}

TEST(Sim, ReplayCalls) { replay(tell_calls); }
TEST(Sim, ReplayLeaving) { replay(tell_leaving); }

// Cases of ctest, which runs them side by side.
constexpr std::uint64_t kSeedsPerCase = 250;
class CallSeeds : public ::testing::TestWithParam<int> {};
class LeavingSeeds : public ::testing::TestWithParam<int> {};

TEST_P(CallSeeds, KeepTheirPromises) {
  expect_good(tell_calls, static_cast<std::uint64_t>(GetParam()) * kSeedsPerCase, kSeedsPerCase);
}
TEST_P(LeavingSeeds, EndTogether) {
  expect_good(tell_leaving, static_cast<std::uint64_t>(GetParam()) * kSeedsPerCase, kSeedsPerCase);
}
INSTANTIATE_TEST_SUITE_P(Sim, CallSeeds, ::testing::Range(0, 8));
INSTANTIATE_TEST_SUITE_P(Sim, LeavingSeeds, ::testing::Range(0, 4));

void expect_same_history(Tell tell) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Outcome once = tell(seed, {});
    const Outcome again = tell(seed, {});
    EXPECT_EQ(once.history, again.history) << "seed " << seed;
    EXPECT_EQ(once.events, again.events) << "seed " << seed;
  }
}
TEST(Sim, ASeedOfCallsHasOneHistory) { expect_same_history(tell_calls); }
TEST(Sim, ASeedOfLeavingHasOneHistory) { expect_same_history(tell_leaving); }

#ifdef HAWSER_DELIBERATE_FAULTS

struct Wrong {
  const char* name;
  hawser::testing::Fault fault;
  Tell tell;
};

class DeliberateFaults : public ::testing::TestWithParam<Wrong> {
 protected:
  ~DeliberateFaults() override { hawser::testing::faults = 0; }
};

TEST_P(DeliberateFaults, AreFound) {
  constexpr std::uint64_t kSeeds = 300;
  hawser::testing::faults = GetParam().fault;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Outcome outcome = GetParam().tell(seed, {});
    if (outcome.good()) continue;
    std::cout << GetParam().name << " is found by " << outcome.text() << '\n';
    return;
  }
  FAIL() << GetParam().name << " is not found by " << kSeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(
    Sim, DeliberateFaults,
    ::testing::Values(Wrong{"ReuseCallIds", hawser::testing::kReuseCallIds, tell_calls},
                      Wrong{"ForgetDeadline", hawser::testing::kForgetDeadline, tell_calls},
                      Wrong{"IgnoreIncarnation", hawser::testing::kIgnoreIncarnation, tell_calls},
                      Wrong{"DropAnswer", hawser::testing::kDropAnswer, tell_calls},
                      Wrong{"AnswerTwice", hawser::testing::kAnswerTwice, tell_calls},
                      Wrong{"ForgetOnLoss", hawser::testing::kForgetOnLoss, tell_calls},
                      Wrong{"NeverSuspect", hawser::testing::kNeverSuspect, tell_calls},
                      Wrong{"KeepCancelled", hawser::testing::kKeepCancelled, tell_calls},
                      Wrong{"ForgetWaiting", hawser::testing::kForgetWaiting, tell_calls},
                      Wrong{"LeaveEarly", hawser::testing::kLeaveEarly, tell_leaving},
                      Wrong{"TrustOneCount", hawser::testing::kTrustOneCount, tell_leaving},
                      Wrong{"StayWithSteward", hawser::testing::kStayWithSteward, tell_leaving}),
    [](const auto& tested) { return std::string(tested.param.name); });

#endif

}  // namespace
}  // namespace hawser::simulation
