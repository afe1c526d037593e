#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "hawser/autograd/fault.h"
#include "sim_autograd/story.h"
#include "support/sanitized.h"

// Thousands of seeds. A seed that fails is told again, event by event, by
//   HAWSER_SIM_SEED=<seed> sim_autograd_tests --gtest_filter='SimAutograd.Replay'
namespace hawser::autograd::simulation {
namespace {

void add(Model::Counts& sum, const Model::Counts& counts) {
  sum.contexts += counts.contexts;
  sum.joined += counts.joined;
  sum.refused += counts.refused;
  sum.passes += counts.passes;
  sum.succeeded += counts.succeeded;
  sum.failed += counts.failed;
  sum.fast += counts.fast;
  sum.spread += counts.spread;
  sum.compared += counts.compared;
  sum.torn += counts.torn;
  for (const auto& [kind, count] : counts.errors) sum.errors[kind] += count;
}

void print(const Model::Counts& counts) {
  std::cout << counts.contexts << " contexts, joined " << counts.joined << " times, refused "
            << counts.refused << "; " << counts.passes << " passes (" << counts.fast << " FAST, "
            << counts.spread << " over three nodes and more), " << counts.succeeded
            << " succeeded, " << counts.failed << " failed (";
  for (const auto& [kind, count] : counts.errors)
    std::cout << to_string(kind) << " " << count << " ";
  std::cout << "), " << counts.torn << " torn; gradients compared " << counts.compared
            << " times\n";
}

void expect_good(std::uint64_t first, std::uint64_t count) {
  Model::Counts sum;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Outcome outcome = tell(seed);
    EXPECT_TRUE(outcome.good()) << outcome.text();
    add(sum, outcome.counts);
  }
  // A world in which nothing happens breaks no promises.
  EXPECT_GE(sum.contexts, count * 3);
  EXPECT_GE(sum.joined, count * 6);
  EXPECT_GE(sum.succeeded, count * 3);
  EXPECT_GE(sum.failed, count);
  EXPECT_GE(sum.spread, count * 2);
  EXPECT_GE(sum.compared, count * 6);
}

std::optional<std::uint64_t> number_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::optional(std::strtoull(text, nullptr, 10)) : std::nullopt;
}

TEST(SimAutograd, Replay) {
  const auto seed = number_from("HAWSER_SIM_SEED");
  if (!seed) GTEST_SKIP() << "set HAWSER_SIM_SEED to the seed that is to be told";
  const Outcome outcome = tell(*seed, {.log = true});
  std::cout << outcome.events << " events, history " << outcome.history << ", " << outcome.crashes
            << " crashes, " << outcome.cuts << " cuts, " << outcome.rejoins << " rejoins\n";
  print(outcome.counts);
  EXPECT_TRUE(outcome.good()) << outcome.text();
}

// For a long night: as many seeds as wanted, beyond those of every run.
TEST(SimAutograd, Explore) {
  const auto count = number_from("HAWSER_SIM_COUNT");
  if (!count) GTEST_SKIP() << "set HAWSER_SIM_COUNT to the number of seeds that are to be tried";
  expect_good(100'000, *count);
}

// Cases of ctest, which runs them side by side.
constexpr std::uint64_t kSeedsPerCase = testing::kSanitized ? 50 : 500;
class AutogradSeeds : public ::testing::TestWithParam<int> {};
TEST_P(AutogradSeeds, KeepTheirPromises) {
  expect_good(static_cast<std::uint64_t>(GetParam()) * kSeedsPerCase, kSeedsPerCase);
}
INSTANTIATE_TEST_SUITE_P(SimAutograd, AutogradSeeds, ::testing::Range(0, 8));

TEST(SimAutograd, ASeedHasOneHistory) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Outcome once = tell(seed);
    const Outcome again = tell(seed);
    EXPECT_EQ(once.history, again.history) << "seed " << seed;
    EXPECT_EQ(once.events, again.events) << "seed " << seed;
  }
}

TEST(SimAutograd, EveryMishapMeetsEveryKindOfMessage) {
  if (testing::kSanitized) GTEST_SKIP() << "this is about the stories";
  constexpr std::uint64_t kSeeds = 500;
  std::map<std::pair<std::string_view, Mishap>, std::uint64_t> mishaps;
  std::map<std::string_view, std::uint64_t> sent;
  Model::Counts sum;
  std::uint64_t rejoins = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Outcome outcome = tell(seed);
    for (const auto& [what, count] : outcome.mishaps) mishaps[what] += count;
    for (const auto& [what, count] : outcome.sent) sent[what] += count;
    add(sum, outcome.counts);
    rejoins += outcome.rejoins;
  }
  std::printf("%-12s%12s", "", "Sent");
  for (std::size_t i = 0; i < kMishaps; ++i) {
    std::printf("%15s", std::string(to_string(Mishap(i))).c_str());
  }
  for (const auto what : all_contents()) {
    std::printf("\n%-12s%12llu", std::string(what).c_str(),
                static_cast<unsigned long long>(sent[what]));
    for (std::size_t i = 0; i < kMishaps; ++i) {
      const auto count = mishaps[{what, Mishap(i)}];
      std::printf("%15llu", static_cast<unsigned long long>(count));
      EXPECT_GT(count, 0u) << "no " << what << " was " << to_string(Mishap(i));
    }
  }
  std::printf("\n");
  print(sum);
  EXPECT_GT(sum.refused, 0u) << "no late message met a context that was over";
  EXPECT_GT(sum.torn, 0u) << "nobody was lost in the midst of committing";
  EXPECT_GT(rejoins, 0u);
  for (const ErrorKind kind :
       {ErrorKind::Timeout, ErrorKind::Cancelled, ErrorKind::PeerLost, ErrorKind::Remote}) {
    EXPECT_GT(sum.errors[kind], 0u) << "no pass failed with " << to_string(kind);
  }
}

#ifdef HAWSER_DELIBERATE_FAULTS

struct Wrong {
  const char* name;
  hawser::testing::GradFault fault;
};

class DeliberateGradFaults : public ::testing::TestWithParam<Wrong> {
 protected:
  ~DeliberateGradFaults() override { hawser::testing::faults = 0; }
};

TEST_P(DeliberateGradFaults, AreFound) {
  constexpr std::uint64_t kSeeds = 1500;
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
    SimAutograd, DeliberateGradFaults,
    ::testing::Values(Wrong{"StartUntold", kStartUntold}, Wrong{"NeverProceed", kNeverProceed},
                      Wrong{"ForgetBranch", kForgetBranch}, Wrong{"AnswerEarly", kAnswerEarly},
                      Wrong{"FinishEarly", kFinishEarly}, Wrong{"DropHeld", kDropHeld},
                      Wrong{"DeliverAgain", kDeliverAgain}, Wrong{"ForgetAbort", kForgetAbort},
                      Wrong{"ForgetStop", kForgetStop},
                      Wrong{"KeepLostContexts", kKeepLostContexts},
                      Wrong{"ForgetRelease", kForgetRelease}, Wrong{"ReleaseOnce", kReleaseOnce},
                      Wrong{"RaiseTheDead", kRaiseTheDead}, Wrong{"NeverInquire", kNeverInquire},
                      Wrong{"ReuseNumbers", kReuseNumbers}, Wrong{"IgnoreCut", kIgnoreCut},
                      Wrong{"ForgetCommit", kForgetCommit}, Wrong{"CommitAborted", kCommitAborted},
                      Wrong{"LoseCause", kLoseCause}, Wrong{"BlameMessenger", kBlameMessenger},
                      Wrong{"WakeAborted", kWakeAborted}),
    [](const auto& tested) { return std::string(tested.param.name); });

#endif

}  // namespace
}  // namespace hawser::autograd::simulation
