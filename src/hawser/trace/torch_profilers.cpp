#include "hawser/trace/torch_profilers.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/autograd/profiler_legacy.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>

#include "hawser/base/log.h"

namespace hawser::trace {
namespace {

using torch::autograd::profiler::LegacyEvent;
using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerStateBase;
using LegacyKind = torch::autograd::profiler::EventKind;

std::vector<std::vector<std::int64_t>> unflattened(const std::vector<std::int64_t>& shapes) {
  std::vector<std::vector<std::int64_t>> each;
  for (std::size_t at = 0; at < shapes.size();) {
    const auto dimensions = static_cast<std::size_t>(std::max<std::int64_t>(shapes[at], 0));
    const std::size_t begin = at + 1, end = std::min(begin + dimensions, shapes.size());
    each.emplace_back(shapes.begin() + static_cast<std::ptrdiff_t>(begin),
                      shapes.begin() + static_cast<std::ptrdiff_t>(end));
    at = end;
  }
  return each;
}

void warn_of_missing(const wire::TraceReport& report, const std::string& call) {
  static std::atomic_flag warned;
  if (report.dropped == 0 || warned.test_and_set()) return;
  log::Line(log::Level::Warning, "trace")
      << "of what " << call << " did on other nodes " << report.dropped
      << " events did not fit into its answer and are missing in the profile; further losses are "
         "not reported";
}

// A call is one in a timeline, which this thread makes at the same time.
bool is_range(const wire::TraceEvent& event) {
  return event.kind == wire::TraceEventKind::Range || event.kind == wire::TraceEventKind::Call;
}

// A beginning, an end or an allocation. libtorch wants those of one thread in order.
struct Moment {
  std::int64_t ns;
  LegacyKind kind;
  const wire::TraceEvent* event;
  std::uint64_t handle;  // the same for a beginning and its end

  // What begins at the moment at which something else ends is inside of it.
  auto order() const {
    const int step = kind == LegacyKind::PushRange ? 0 : kind == LegacyKind::MemoryAlloc ? 1 : 2;
    return std::tuple(ns, step, handle);
  }
};

LegacyEvent legacy_event(const Moment& moment, std::string name, std::int64_t node, bool remote) {
  const wire::TraceEvent& event = *moment.event;
  const bool begins = moment.kind == LegacyKind::PushRange;
  LegacyEvent legacy(moment.kind, at::StringView(std::move(name)),
                     static_cast<std::uint16_t>(event.thread), moment.handle,
                     begins ? unflattened(event.shapes) : std::vector<std::vector<std::int64_t>>(),
                     node, remote, moment.kind == LegacyKind::MemoryAlloc ? event.bytes : 0,
                     std::max<std::int64_t>(moment.ns, 1), false);
  legacy.setScope(event.scope);
  return legacy;
}

// By process and thread.
using Threads = std::map<std::pair<std::uint16_t, std::uint32_t>, std::vector<Moment>>;

Threads by_thread(const std::vector<wire::TraceEvent>& events) {
  std::vector<const wire::TraceEvent*> sorted;
  for (const wire::TraceEvent& event : events) sorted.push_back(&event);
  // What encloses something else begins before it, also where the clock does not tell.
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::tuple(a->start_ns, -a->end_ns) < std::tuple(b->start_ns, -b->end_ns);
  });
  Threads threads;
  std::uint64_t handle = 0;
  for (const wire::TraceEvent* event : sorted) {
    auto& moments = threads[{event->process, event->thread}];
    if (event->kind == wire::TraceEventKind::Memory) {
      moments.push_back({event->start_ns, LegacyKind::MemoryAlloc, event, 0});
    } else if (is_range(*event)) {
      ++handle;
      moments.push_back({event->start_ns, LegacyKind::PushRange, event, handle});
      moments.push_back({event->end_ns, LegacyKind::PopRange, event, handle});
    }
  }
  for (auto& [thread, moments] : threads) {
    std::stable_sort(moments.begin(), moments.end(),
                     [](const Moment& a, const Moment& b) { return a.order() < b.order(); });
  }
  return threads;
}

std::string name_of(const Moment& moment, std::string_view prefix) {
  if (moment.kind != LegacyKind::PushRange) return {};
  return std::string(prefix) + moment.event->name;
}

}  // namespace

TorchProfiler active_torch_profiler() {
  auto* const state = ProfilerStateBase::get(/*global=*/false);
  if (!state) return TorchProfiler::None;
  switch (state->profilerType()) {
    case ActiveProfilerType::LEGACY:
      return TorchProfiler::Legacy;
    case ActiveProfilerType::KINETO:
      // While it profiles all threads of the process it takes no reports.
      return ProfilerStateBase::get(/*global=*/true) ? TorchProfiler::None : TorchProfiler::Kineto;
    default:
      return TorchProfiler::None;
  }
}

std::uint32_t wants_of_torch_profiler() {
  const auto active = active_torch_profiler();
  if (active == TorchProfiler::None) return 0;
  // Shapes and memory of events that are reported to Kineto from outside are not shown by it.
  if (active == TorchProfiler::Kineto) return wire::kTraceRanges;
  return wants_of(ProfilerStateBase::get(/*global=*/false)->config());
}

std::uint32_t wants_of(const torch::profiler::impl::ProfilerConfig& config) {
  static std::atomic_flag warned;
  if (config.state == torch::profiler::impl::ProfilerState::CUDA && !warned.test_and_set()) {
    log::Line(log::Level::Warning, "trace")
        << "the profile asks for times of CUDA; what is done for others is recorded with times of "
           "the CPU only";
  }
  return wire::kTraceRanges | (config.report_input_shapes ? wire::kTraceShapes : 0u) |
         (config.profile_memory ? wire::kTraceMemory : 0u);
}

void tell_legacy(const CallRow& row, const wire::TraceReport* report, std::int64_t node) {
  wire::TraceEvent call;
  call.thread = row.thread;
  LegacyEvents own;
  own.push_back(
      legacy_event({row.start_ns, LegacyKind::PushRange, &call, 1}, row.name, node, false));
  // libtorch takes a range for asynchronous if it was ended by another thread.
  wire::TraceEvent end;
  end.thread = row.is_async ? row.thread + 1 : row.thread;
  own.push_back(legacy_event({row.end_ns, LegacyKind::PopRange, &end, 1}, {}, node, false));
  torch::autograd::profiler::addEventList(std::move(own));
  if (!report) return;
  warn_of_missing(*report, row.name);
  const std::string prefix = row.name + std::string(kRemoteOp);
  for (const auto& [thread, moments] : by_thread(report->events)) {
    LegacyEvents list;
    list.reserve(moments.size());
    const std::int64_t where = report->processes[thread.first].node;
    for (const Moment& moment : moments) {
      list.push_back(legacy_event(moment, name_of(moment, prefix), where, true));
    }
    torch::autograd::profiler::addEventList(std::move(list));
  }
}

void tell_kineto(const CallRow& row, const wire::TraceReport* report) {
  const auto tell = [](std::int64_t start_ns, std::int64_t end_ns, std::uint8_t scope,
                       const std::string& name, const std::string& where) {
    torch::autograd::profiler::reportBackendEventToActiveKinetoProfiler(
        start_ns / 1000, end_ns / 1000, 0, static_cast<at::RecordScope>(scope), name, where);
  };
  tell(row.start_ns, row.end_ns, static_cast<std::uint8_t>(at::RecordScope::USER_SCOPE), row.name,
       "hawser");
  if (!report) return;
  warn_of_missing(*report, row.name);
  const std::string prefix = row.name + std::string(kRemoteOp);
  for (const wire::TraceEvent& event : report->events) {
    if (!is_range(event)) continue;
    const std::uint8_t scope =
        event.scope < static_cast<std::uint8_t>(at::RecordScope::NUM_SCOPES) ? event.scope : 0;
    tell(event.start_ns, event.end_ns, scope, prefix + event.name,
         report->processes[event.process].name);
  }
}

std::vector<LegacyEvents> as_legacy_profile(const Recorded& recorded, std::int64_t begun_ns) {
  std::vector<LegacyEvents> lists(1);
  const wire::TraceEvent start;
  const std::int64_t own_node = recorded.processes.front().node;
  lists.front().push_back(
      legacy_event({begun_ns, LegacyKind::Mark, &start, 0}, "__start_profile", own_node, false));
  for (const auto& [thread, moments] : by_thread(recorded.events)) {
    LegacyEvents& list = lists.emplace_back();
    const std::int64_t node = recorded.processes[thread.first].node;
    for (const Moment& moment : moments) {
      list.push_back(legacy_event(moment, name_of(moment, {}), node, thread.first != 0));
    }
  }
  return lists;
}

}  // namespace hawser::trace
