#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "hawser/base/fault.h"
#include "hawser/base/log.h"
#include "sim/stories.h"
#include "support/sanitized.h"

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

std::optional<std::uint64_t> number_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::optional(std::strtoull(text, nullptr, 10)) : std::nullopt;
}

void replay(Tell tell) {
  const auto seed = number_from("HAWSER_SIM_SEED");
  if (!seed) GTEST_SKIP() << "set HAWSER_SIM_SEED to the seed that is to be told";
  const Outcome outcome = tell(*seed, {.log = true});
  std::cout << outcome.events << " events, " << outcome.calls << " calls, history "
            << outcome.history << '\n';
  EXPECT_TRUE(outcome.good()) << outcome.text();
}

TEST(Sim, ReplayCalls) { replay(tell_calls); }
TEST(Sim, ReplayLeaving) { replay(tell_leaving); }

// For a long night: as many seeds as wanted, beyond those of every run.
void explore(Tell tell) {
  const auto count = number_from("HAWSER_SIM_COUNT");
  if (!count) GTEST_SKIP() << "set HAWSER_SIM_COUNT to the number of seeds that are to be tried";
  expect_good(tell, 10'000, *count);
}

TEST(Sim, ExploreCalls) { explore(tell_calls); }
TEST(Sim, ExploreLeaving) { explore(tell_leaving); }

// Cases of ctest, which runs them side by side.
constexpr std::uint64_t kSeedsPerCase = testing::kSanitized ? 50 : 250;
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

// ---- what happened to which kind of message ----

using Counts = SimNetwork::MishapCounts;
using transport::sim::Mishap;

constexpr wire::Kind kKinds[] = {
    wire::Kind::Hello,   wire::Kind::Challenge, wire::Kind::Proof,        wire::Kind::Welcome,
    wire::Kind::Refusal, wire::Kind::Call,      wire::Kind::Reply,        wire::Kind::Failure,
    wire::Kind::Cancel,  wire::Kind::Heartbeat, wire::Kind::Goodbye,      wire::Kind::HeartbeatEcho,
    wire::Kind::Arrival, wire::Kind::Census,    wire::Kind::CensusReport, wire::Kind::Dismissal};
constexpr Mishap kMishaps[] = {Mishap::Cut,      Mishap::Killed,  Mishap::Partition,
                               Mishap::Stopped,  Mishap::Dropped, Mishap::Duplicated,
                               Mishap::Reordered};

// Handshakes run over a stream of bytes, which has no frames to lose one by one.
bool can_happen(wire::Kind kind, Mishap mishap) {
  const bool to_single_frames =
      mishap == Mishap::Dropped || mishap == Mishap::Duplicated || mishap == Mishap::Reordered;
  return !to_single_frames || !wire::is_handshake(kind);
}

void print(const Counts& counts) {
  std::printf("%-14s", "");
  for (const Mishap mishap : kMishaps) std::printf("%12s", std::string(to_string(mishap)).c_str());
  for (const wire::Kind kind : kKinds) {
    std::printf("\n%-14s", std::string(to_string(kind)).c_str());
    for (const Mishap mishap : kMishaps) {
      const auto found = counts.find({kind, mishap});
      std::printf("%12llu",
                  found == counts.end() ? 0ull : static_cast<unsigned long long>(found->second));
    }
  }
  std::printf("\n");
}

TEST(Sim, EveryFaultMeetsEveryKindOfMessage) {
  if (testing::kSanitized) GTEST_SKIP() << "this is about the stories";
  constexpr std::uint64_t kSeeds = 400;
  Counts counts;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const Tell tell : {tell_calls, tell_leaving}) {
      for (const auto& [what, count] : tell(seed, {}).mishaps) counts[what] += count;
    }
  }
  print(counts);
  for (const wire::Kind kind : kKinds) {
    for (const Mishap mishap : kMishaps) {
      if (!can_happen(kind, mishap)) continue;
      EXPECT_TRUE(counts.contains({kind, mishap}))
          << "no " << to_string(kind) << " was " << to_string(mishap);
    }
  }
}

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
  constexpr std::uint64_t kSeeds = 1000;  // the shyest shows in one of about 120
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
                      Wrong{"ForgetPutAside", hawser::testing::kForgetPutAside, tell_calls},
                      Wrong{"LeaveEarly", hawser::testing::kLeaveEarly, tell_leaving},
                      Wrong{"TrustOneCount", hawser::testing::kTrustOneCount, tell_leaving},
                      Wrong{"StayWithSteward", hawser::testing::kStayWithSteward, tell_leaving}),
    [](const auto& tested) { return std::string(tested.param.name); });

#endif

}  // namespace
}  // namespace hawser::simulation
