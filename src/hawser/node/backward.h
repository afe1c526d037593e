#pragma once

#include <cstddef>
#include <optional>

#include "hawser/autograd/messages.h"
#include "hawser/base/clock.h"
#include "hawser/engine/gradients.h"

// What programs say and hear about distributed autograd.
namespace hawser {

// How a backward pass is to be run; autograd/DESIGN.md says what the modes are.
struct BackwardOptions {
  bool retain_graph = false;
  // Of the whole pass. Unless told: as long as it takes in SMART mode, which ends by itself, and in
  // FAST mode, which may wait for what never comes, NodeOptions::call_timeout.
  std::optional<Duration> timeout{};
  autograd::Mode mode = autograd::Mode::Smart;
};

struct AutogradCounts {
  std::size_t contexts = 0;
  std::size_t passes = 0;
};

}  // namespace hawser
