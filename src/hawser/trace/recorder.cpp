#include "hawser/trace/recorder.h"

#include <c10/core/Allocator.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "hawser/trace/argument_shapes.h"

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
  if (recorder->wants(wire::kTraceShapes)) range->shapes = shapes_of_arguments(function);
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

// Sits where libtorch looks for the profiler that wants to know about memory.
class MemoryWatch final : public torch::profiler::impl::ProfilerStateBase {
 public:
  explicit MemoryWatch(std::shared_ptr<Recorder> recorder)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(
            torch::profiler::impl::ProfilerState::CPU, false, true)),
        recorder_(std::move(recorder)) {}

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    wire::TraceEvent event;
    event.kind = wire::TraceEventKind::Memory;
    event.thread = static_cast<std::uint32_t>(at::RecordFunction::currentThreadId());
    event.start_ns = event.end_ns = wall_ns();
    event.bytes = bytes;
    recorder_->add(std::move(event));
  }

 private:
  const std::shared_ptr<Recorder> recorder_;
};

// Where the process is, or now is, in the list; nothing when that is full.
std::optional<std::uint16_t> place_of(Recorded& recorded, const wire::TraceProcess& process) {
  auto& known = recorded.processes;
  const auto found = std::find_if(known.begin(), known.end(), [&](const wire::TraceProcess& each) {
    return each.pid == process.pid && each.name == process.name;
  });
  if (found != known.end()) {
    // Every call makes it more exact, and hardly ever changes what was assumed before.
    found->clock_error_ns = std::min(found->clock_error_ns, process.clock_error_ns);
    return static_cast<std::uint16_t>(found - known.begin());
  }
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
    : wants_(wants), begun_ns_(wall_ns()), self_(std::move(self)), room_(room) {
  content_.lock()->recorded.processes.push_back(self_);
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

void Recorder::add(wire::TraceEvent&& event) {
  if (outer_) outer_->add(wire::TraceEvent(event));
  if (event.kind == wire::TraceEventKind::Range && !wants(wire::kTraceRanges)) return;
  if (event.kind == wire::TraceEventKind::Memory && !wants(wire::kTraceMemory)) return;
  if (event.kind == wire::TraceEventKind::Part && !wants(wire::kTraceTimeline)) return;
  auto content = content_.lock();
  if (has_room(*content, event, 0)) content->recorded.events.push_back(std::move(event));
}

void Recorder::add(const wire::TraceReport& report, std::string_view prefix) {
  if (outer_) outer_->add(report, prefix);
  auto content = content_.lock();
  Recorded& recorded = content->recorded;
  std::vector<std::optional<std::uint16_t>> places;
  for (const wire::TraceProcess& process : report.processes) {
    places.push_back(place_of(recorded, process));
  }
  recorded.dropped += report.dropped;
  for (const wire::TraceEvent& each : report.events) {
    const auto place = places[each.process];
    if (!place) {
      ++recorded.dropped;
      continue;
    }
    if (!has_room(*content, each, prefix.size())) continue;
    wire::TraceEvent& event = recorded.events.emplace_back(each);
    event.process = *place;
    if (!prefix.empty()) event.name.insert(0, prefix);
  }
}

Recorded Recorder::take() {
  Content fresh;
  fresh.recorded.processes.push_back(self_);
  return std::exchange(*content_.lock(), std::move(fresh)).recorded;
}

Recording::Recording(const std::shared_ptr<Recorder>& recorder) {
  Recorder* const outer = Recorder::current();
  for (Recorder* fed = outer; fed; fed = fed->outer_.get()) {
    if (fed == recorder.get()) return;
  }
  if (outer && !recorder->outer_) recorder->outer_ = outer->shared_from_this();
  here_.emplace(kSlot, recorder);
  if (!outer) {
    callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin_range, end_range)
                                               .needsInputs(recorder->wants(wire::kTraceShapes)));
  }
  if (recorder->wants(wire::kTraceMemory) &&
      !c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE)) {
    memory_.emplace(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<MemoryWatch>(recorder));
  }
}

Recording::~Recording() {
  if (callback_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(callback_);
}

}  // namespace hawser::trace
