#include "hawser/engine/anomaly_mode.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <optional>

namespace hawser::engine {
namespace {

using Torch = torch::autograd::AnomalyMode;

TEST(AnomalyMode, IsOnWhileAnyScopeAsksForIt) {
  EXPECT_EQ(anomaly_mode(), AnomalyMode::Off);
  std::optional<AnomalyScope> first, second, none;
  none.emplace(AnomalyMode::Off);
  EXPECT_EQ(anomaly_mode(), AnomalyMode::Off);
  first.emplace(AnomalyMode::Trace);
  EXPECT_EQ(anomaly_mode(), AnomalyMode::Trace);
  second.emplace(AnomalyMode::TraceAndCheckNan);
  EXPECT_EQ(anomaly_mode(), AnomalyMode::TraceAndCheckNan);
  first.reset();
  EXPECT_EQ(anomaly_mode(), AnomalyMode::TraceAndCheckNan);
  second.reset();
  EXPECT_EQ(anomaly_mode(), AnomalyMode::Off);
}

TEST(AnomalyMode, OfTheProgramIsNotLessenedAndComesBack) {
  Torch::set_enabled(true, /*check_nan=*/true);
  {
    const AnomalyScope scope(AnomalyMode::Trace);
    EXPECT_EQ(anomaly_mode(), AnomalyMode::TraceAndCheckNan);
  }
  EXPECT_EQ(anomaly_mode(), AnomalyMode::TraceAndCheckNan);
  Torch::set_enabled(true, /*check_nan=*/false);
  {
    const AnomalyScope scope(AnomalyMode::TraceAndCheckNan);
    EXPECT_EQ(anomaly_mode(), AnomalyMode::TraceAndCheckNan);
  }
  EXPECT_EQ(anomaly_mode(), AnomalyMode::Trace);
  Torch::set_enabled(false);
}

// As where a pass ends after the block of the program that asked for it.
TEST(AnomalyMode, ThatTheProgramSwitchesOffMeanwhileStaysOff) {
  Torch::set_enabled(true);
  {
    const AnomalyScope scope(AnomalyMode::TraceAndCheckNan);
    Torch::set_enabled(false);
  }
  EXPECT_EQ(anomaly_mode(), AnomalyMode::Off);
}

TEST(AnomalyMode, ThatIsUnknownIsTheMostThatIsKnown) {
  EXPECT_EQ(anomaly_mode_of(0), AnomalyMode::Off);
  EXPECT_EQ(anomaly_mode_of(1), AnomalyMode::Trace);
  EXPECT_EQ(anomaly_mode_of(2), AnomalyMode::TraceAndCheckNan);
  EXPECT_EQ(anomaly_mode_of(200), AnomalyMode::TraceAndCheckNan);
}

}  // namespace
}  // namespace hawser::engine
