#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hawser/trace/recorder.h"

namespace torch::autograd::profiler {
struct LegacyEvent;
}
namespace torch::profiler::impl {
struct ProfilerConfig;
}

// What libtorch's own profilers are told.
namespace hawser::trace {

using LegacyEvents = std::vector<torch::autograd::profiler::LegacyEvent>;

// A call as the process that made it shows it.
struct CallRow {
  std::string name;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::uint32_t thread = 0;  // that made it
  bool is_async = false;
};

// Whether a profiler of libtorch is on in this thread, and which.
enum class TorchProfiler { None, Legacy, Kineto };
TorchProfiler active_torch_profiler();
// What it records of itself, as wire::TraceWants.
std::uint32_t wants_of_torch_profiler();
// The same of the legacy profiler with this configuration. Warns once that times of CUDA are not
// recorded on other nodes.
std::uint32_t wants_of(const torch::profiler::impl::ProfilerConfig& config);

// A call that has ended, and what was recorded during it; for the profiler that is on in this
// thread. These have no place for the number of events that are missing, so that is logged, once.
void tell_legacy(const CallRow& row, const wire::TraceReport* report, std::int64_t node);
void tell_kineto(const CallRow& row, const wire::TraceReport* report);

// As the legacy profiler would have recorded it in this process, one list for each thread; the
// first list begins with its mark of the start.
std::vector<LegacyEvents> as_legacy_profile(const Recorded& recorded, std::int64_t begun_ns);

}  // namespace hawser::trace
