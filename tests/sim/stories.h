#pragma once

#include "sim/story.h"

namespace hawser::simulation {

// Every node calls every other while there is trouble. Then peace: everything must come to an end,
// and everybody must be able to reach everybody.
Outcome tell_calls(std::uint64_t seed, StoryOptions options = {});

// A world that ends by leaving together (LEAVE-1, LEAVE-2, LEAVE-3).
Outcome tell_leaving(std::uint64_t seed, StoryOptions options = {});

}  // namespace hawser::simulation
