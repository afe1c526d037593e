#include "hawser/trace/call_record.h"

#include <torch/csrc/profiler/orchestration/observer.h>
#include <unistd.h>

#include <atomic>

namespace hawser::trace {
namespace {

// Unique among the processes of a world, as far as anybody can tell.
std::uint64_t next_call_id() {
  static std::atomic<std::uint64_t> next{(static_cast<std::uint64_t>(wall_ns()) << 20) ^
                                         (static_cast<std::uint64_t>(::getpid()) << 44)};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::string_view name_of(CallStyle style) {
  switch (style) {
    case CallStyle::Sync:
      return "rpc_sync";
    case CallStyle::Async:
      return "rpc_async";
    case CallStyle::AsyncScript:
      return "rpc_async_jit";
    case CallStyle::Remote:
      return "rpc_remote";
    case CallStyle::Backward:
      return "backward";
  }
  return {};
}

// As a person would name it: without overload, without module.
std::string_view shown_name(const CallNames& names) {
  if (!names.label.empty()) return names.label;
  const std::string_view function = names.function;
  if (names.target == wire::TargetKind::Operator) return function.substr(0, function.find('.'));
  if (names.target == wire::TargetKind::Python) return function.substr(function.find(':') + 1);
  return function;
}

bool is_fetch(const CallNames& names) {
  return names.target == wire::TargetKind::Method && names.function.empty();
}

}  // namespace

// All of them sit in one list of libtorch, which is empty for most threads.
bool is_watched() {
  if (!c10::ThreadLocalDebugInfo::current()) return false;
  return Recorder::current() || torch::profiler::impl::ProfilerStateBase::get(/*global=*/false);
}

std::string key_of(const CallNames& names, TorchProfiler profiler) {
  std::string key;
  if (is_fetch(names)) {
    key.append("to_here#(").append(names.from).append(")->(").append(names.to).append(")");
    return key;
  }
  const bool in_short = profiler == TorchProfiler::Kineto && names.style != CallStyle::Backward;
  key.append(in_short ? "rpc" : name_of(names.style)).append("#");
  key.append(shown_name(names)).append("(").append(names.from).append(" -> ");
  key.append(names.to).append(")");
  return key;
}

CallRecord::CallRecord(const CallNames& names, wire::TraceProcess self, std::int64_t called_ns,
                       std::size_t request_bytes)
    : self_(std::move(self)), to_(names.to), request_bytes_(request_bytes) {
  const Recorder* const recorder = Recorder::current();
  note_.call = next_call_id();
  note_.record = (recorder ? recorder->wanted() : 0) | wants_of_torch_profiler();
  // Reading a value is not an activity of its own where the value is.
  if (is_fetch(names)) note_.record &= wire::kTraceTimeline;
  row_.name = key_of(names, active_torch_profiler());
  row_.thread = static_cast<std::uint32_t>(at::RecordFunction::currentThreadId());
  row_.is_async = names.style != CallStyle::Sync;
  written_ns_ = wall_ns();
  row_.start_ns = called_ns ? called_ns : written_ns_;
  note_.sent_at_ns = written_ns_;
}

std::optional<wire::TraceNote> CallRecord::note() const {
  if (note_.record == 0) return std::nullopt;
  return note_;
}

void CallRecord::end(std::optional<wire::TraceReport>&& report, PeerClocks& clocks) {
  row_.end_ns = wall_ns();
  PeerClocks::Offset offset;
  if (report) {
    clocks.learn(to_, written_ns_, report->received_at_ns, report->answered_at_ns, row_.end_ns);
    offset = clocks.offset_of(to_);
    translate(*report, offset);
  }
  const at::ThreadLocalStateGuard as_called(state_);
  const wire::TraceReport* const told = report ? &*report : nullptr;
  if (Recorder* const recorder = Recorder::current()) {
    wire::TraceEvent event;
    event.kind = wire::TraceEventKind::Call;
    event.scope = static_cast<std::uint8_t>(at::RecordScope::USER_SCOPE);
    event.thread = row_.thread;
    event.name = row_.name;
    event.start_ns = row_.start_ns;
    event.end_ns = row_.end_ns;
    event.call = note_.call;
    event.begun_ns = written_ns_;
    event.bytes = static_cast<std::int64_t>(request_bytes_);
    recorder->add_call(event, told, offset.ns);
  }
  switch (active_torch_profiler()) {
    case TorchProfiler::Legacy:
      return tell_legacy(row_, told, self_.node);
    case TorchProfiler::Kineto:
      return tell_kineto(row_, told);
    case TorchProfiler::None:
      return;
  }
}

}  // namespace hawser::trace
