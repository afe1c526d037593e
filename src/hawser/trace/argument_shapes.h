#pragma once

#include <cstdint>
#include <vector>

namespace at {
struct RecordFunction;
}

namespace hawser::trace {

// Of a range that is being begun: for each argument the number of its dimensions, and those. What
// is no tensor has none.
std::vector<std::int64_t> shapes_of_arguments(const at::RecordFunction& function);

}  // namespace hawser::trace
