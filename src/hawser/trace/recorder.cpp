#include "hawser/trace/recorder.h"

#include <c10/core/Allocator.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "hawser/trace/argument_shapes.h"
#include "hawser/trace/peer_clocks.h"

namespace hawser::trace {
namespace {

constexpr std::string_view kSlotName = "hawser.recorder";
const c10::DebugInfoKind kSlot(&kSlotName);

struct OpenRange final : at::ObserverContext {
  std::shared_ptr<Recorder> recorder;
  std::int64_t start_ns = 0;
  std::vector<std::int64_t> shapes;
};

std::unique_ptr<at::ObserverContext> begin_range(const at::RecordFunction& function) {
  // The operators with which Python opens and closes a scope are not of interest; the scope is.
  if (std::string_view(function.name()).starts_with("profiler::_record_function")) return nullptr;
  Recorder* const recorder = Recorder::current();
  if (!recorder) return nullptr;
  auto range = std::make_unique<OpenRange>();
  range->recorder = recorder->shared_from_this();
  if (recorder->wanted() & wire::kTraceShapes) range->shapes = shapes_of_arguments(function);
  range->start_ns = wall_ns();
  return range;
}

void end_range(const at::RecordFunction& function, at::ObserverContext* opened) {
  if (!opened) return;
  auto& range = *static_cast<OpenRange*>(opened);
  wire::TraceEvent event;
  event.end_ns = wall_ns();
  event.start_ns = range.start_ns;
  event.scope = static_cast<std::uint8_t>(function.scope());
  event.thread = static_cast<std::uint32_t>(function.threadId());
  event.name = function.name();
  event.shapes = std::move(range.shapes);
  range.recorder->add(std::move(event));
}

// Where it is, libtorch keeps the arguments of operators for all observers.
std::unique_ptr<at::ObserverContext> look_at_arguments(const at::RecordFunction&) {
  return nullptr;
}

// Sits where libtorch looks for the profiler that wants to know about memory.
class MemoryWatch final : public torch::profiler::impl::ProfilerStateBase {
 public:
  MemoryWatch()
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(
            torch::profiler::impl::ProfilerState::CPU, false, true)) {}

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    Recorder* const recorder = Recorder::current();
    if (!recorder || !device.is_cpu()) return;
    wire::TraceEvent event;
    event.kind = wire::TraceEventKind::Memory;
    event.thread = static_cast<std::uint32_t>(at::RecordFunction::currentThreadId());
    event.start_ns = event.end_ns = wall_ns();
    event.bytes = bytes;
    recorder->add(std::move(event));
  }
};

// Where the process is, or now is, in the list; nothing when that is full.
std::optional<std::uint16_t> place_of(Recorded& recorded, const wire::TraceProcess& process) {
  auto& known = recorded.processes;
  const auto found = std::find_if(known.begin(), known.end(), [&](const wire::TraceProcess& each) {
    return each.pid == process.pid && each.name == process.name;
  });
  if (found != known.end()) return static_cast<std::uint16_t>(found - known.begin());
  if (known.size() >= wire::kMaxTraceProcesses) return std::nullopt;
  known.push_back(process);
  return static_cast<std::uint16_t>(known.size() - 1);
}

}  // namespace

std::int64_t wall_ns() { return c10::getTime(); }

wire::TraceProcess this_process(std::string node, std::optional<std::uint32_t> rank) {
  return {.name = std::move(node),
          .pid = static_cast<std::uint32_t>(::getpid()),
          .node = rank ? static_cast<std::int32_t>(*rank) : -1,
          .clock_error_ns = 0};
}

Recorder::Recorder(std::uint32_t wants, wire::TraceProcess self, Room room)
    : wants_(wants),
      begun_ns_(wall_ns()),
      self_(std::move(self)),
      room_(room),
      wanted_(wants),
      content_(empty()) {}

Recorder::Content Recorder::empty() const {
  Content content;
  content.recorded.processes.push_back(self_);
  content.clocks.emplace_back();
  return content;
}

Recorder* Recorder::current() {
  return static_cast<Recorder*>(c10::ThreadLocalDebugInfo::get(kSlot));
}

bool Recorder::has_room(Content& content, const wire::TraceEvent& event, std::size_t prefix) const {
  constexpr std::size_t kFields = 112;
  const std::size_t bytes =
      kFields + prefix + event.name.size() + sizeof(std::int64_t) * event.shapes.size();
  if (content.recorded.events.size() >= room_.events || content.bytes + bytes > room_.bytes) {
    ++content.recorded.dropped;
    return false;
  }
  content.bytes += bytes;
  return true;
}

bool Recorder::wants(const wire::TraceEvent& event) const {
  switch (event.kind) {
    case wire::TraceEventKind::Range:
      return wants(wire::kTraceRanges);
    case wire::TraceEventKind::Memory:
      return wants(wire::kTraceMemory);
    case wire::TraceEventKind::Call:
    case wire::TraceEventKind::Service:
    case wire::TraceEventKind::Part:
      return wants(wire::kTraceTimeline);
  }
  return false;
}

void Recorder::add(wire::TraceEvent&& event) {
  if (outer_) outer_->add(wire::TraceEvent(event));
  keep(std::move(event));
}

void Recorder::keep(wire::TraceEvent&& event) {
  if (!wants(event)) return;
  if (!wants(wire::kTraceShapes)) event.shapes.clear();
  auto content = content_.lock();
  if (has_room(*content, event, 0)) content->recorded.events.push_back(std::move(event));
}

void Recorder::add_call(const wire::TraceEvent& call, const wire::TraceReport* report,
                        std::int64_t clock_offset_ns) {
  if (outer_) outer_->add_call(call, report, clock_offset_ns);
  wire::TraceEvent event = call;
  const bool timeline = wants(wire::kTraceTimeline);
  if (!timeline) {
    event.kind = wire::TraceEventKind::Range;
    event.call = 0;
    event.begun_ns = event.bytes = 0;
  }
  keep(std::move(event));
  if (!report) return;
  keep(*report, timeline ? std::string() : call.name + std::string(kRemoteOp), clock_offset_ns);
}

void Recorder::keep(const wire::TraceReport& report, std::string_view prefix,
                    std::int64_t clock_offset_ns) {
  auto content = content_.lock();
  Recorded& recorded = content->recorded;
  struct Place {
    std::uint16_t process;
    std::int64_t later_ns;
  };
  std::vector<std::optional<Place>> places;
  for (const wire::TraceProcess& process : report.processes) {
    const auto at = place_of(recorded, process);
    if (!at) {
      places.emplace_back();
      continue;
    }
    content->clocks.resize(recorded.processes.size());
    // The first is the callee; it has translated what it was told about the others.
    const auto offset = places.empty() ? std::optional(clock_offset_ns) : std::nullopt;
    places.push_back(Place{*at, later_by(*content, *at, process.clock_error_ns, offset)});
  }
  recorded.dropped += report.dropped;
  for (const wire::TraceEvent& each : report.events) {
    if (!wants(each)) continue;
    const auto& place = places[each.process];
    if (!place) {
      ++recorded.dropped;
      continue;
    }
    if (!has_room(*content, each, prefix.size())) continue;
    wire::TraceEvent& event = recorded.events.emplace_back(each);
    event.process = place->process;
    move(event, place->later_ns);
    if (!prefix.empty()) event.name.insert(0, prefix);
    if (!wants(wire::kTraceShapes)) event.shapes.clear();
  }
}

// By how much the events that follow have to be moved to be where those before are.
std::int64_t Recorder::later_by(Content& content, std::uint16_t process, std::int64_t error_ns,
                                std::optional<std::int64_t> offset_ns) {
  if (process == 0 && offset_ns) return *offset_ns;  // we have called ourselves
  Clock& clock = content.clocks[process];
  std::vector<wire::TraceEvent>& events = content.recorded.events;
  const std::int64_t now = wall_ns();
  if (offset_ns && clock.stretch && now - clock.stretch->begun_ns <= kClockValid_ns) {
    Stretch& stretch = *clock.stretch;
    const std::int64_t apart = *offset_ns - stretch.offset_ns;
    if (std::abs(apart) <= error_ns + stretch.error_ns) {
      if (error_ns >= stretch.error_ns) return apart;
      for (std::size_t i = stretch.first_event; apart != 0 && i < events.size(); ++i) {
        if (events[i].process == process) move(events[i], -apart);
      }
      stretch.offset_ns = *offset_ns;
      stretch.error_ns = error_ns;
      return 0;
    }
  }
  if (const auto over = std::exchange(clock.stretch, std::nullopt)) {
    clock.error_before_ns = std::max(clock.error_before_ns, over->error_ns);
  }
  if (offset_ns) {
    clock.stretch = Stretch{events.size(), now, *offset_ns, error_ns};
  } else {
    clock.error_before_ns = std::max(clock.error_before_ns, error_ns);
  }
  return 0;
}

Recorded Recorder::take() {
  Content content = std::exchange(*content_.lock(), empty());
  for (std::size_t i = 0; i < content.clocks.size(); ++i) {
    const Clock& clock = content.clocks[i];
    content.recorded.processes[i].clock_error_ns =
        std::max(clock.error_before_ns, clock.stretch ? clock.stretch->error_ns : 0);
  }
  return std::move(content.recorded);
}

Recording::Recording(const std::shared_ptr<Recorder>& recorder) {
  Recorder* const outer = Recorder::current();
  for (Recorder* fed = outer; fed; fed = fed->outer_.get()) {
    if (fed == recorder.get()) return;
  }
  if (outer && !recorder->outer_) {
    recorder->outer_ = outer->shared_from_this();
    recorder->wanted_ |= outer->wanted_;
  }
  here_.emplace(kSlot, recorder);
  const bool shapes = recorder->wants(wire::kTraceShapes);
  if (!outer) {
    callback_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(begin_range, end_range).needsInputs(shapes));
  } else if (shapes && !(outer->wanted_ & wire::kTraceShapes)) {
    callback_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback(look_at_arguments).needsInputs(true));
  }
  if (recorder->wants(wire::kTraceMemory) &&
      !c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE)) {
    memory_.emplace(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<MemoryWatch>());
  }
}

Recording::~Recording() {
  if (callback_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(callback_);
}

}  // namespace hawser::trace
