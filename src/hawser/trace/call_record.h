#pragma once

#include <ATen/ThreadLocalState.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "hawser/trace/peer_clocks.h"
#include "hawser/trace/torch_profilers.h"

namespace hawser::trace {

// How a call is made, as profiles show it. Backward: it is a message of a backward pass.
enum class CallStyle { Sync, Async, AsyncScript, Remote, Backward };

// Whether a profiler of any kind wants to know what this thread does. Costs nanoseconds.
bool is_watched();
// The time, if somebody wants to know it; else 0.
inline std::int64_t stamp() { return is_watched() ? wall_ns() : 0; }

// A call, for who wants to read about it.
struct CallNames {
  CallStyle style = CallStyle::Async;
  wire::TargetKind target = wire::TargetKind::Function;
  std::string_view function{};  // as on the wire
  std::string_view label{};     // instead of it, if the wire has none
  std::string_view from{};
  std::string_view to{};
};

// "rpc_async#f(a -> b)". Kineto shows all styles of calls as "rpc#f(a -> b)": the original shows it
// none, and its tests hold that no row there is about "sync" or "async". The fetching of a value is
// "to_here#(a)->(b)", and "backward#gradients(a -> b)" is a message of a backward pass.
std::string key_of(const CallNames& names, TorchProfiler profiler);

// One call of a thread that is being profiled, until its answer is there.
//
//   TRACE-1  What a call did is shown under its name, to those who watched when it was made,
//            whatever else the thread does meanwhile and whichever thread gets the answer. A call
//            that fails leaves nothing behind.
class CallRecord {
 public:
  // `self` is the process that calls; `called_ns` is when, before the request was written; 0: now.
  CallRecord(const CallNames& names, wire::TraceProcess self, std::int64_t called_ns,
             std::size_t request_bytes);

  // What to ask of the callee; nothing if there is nobody to record anything for.
  std::optional<wire::TraceNote> note() const;
  // The answer is there, with or without a report. By any thread, once.
  void end(std::optional<wire::TraceReport>&& report, PeerClocks& clocks);

 private:
  const wire::TraceProcess self_;
  const std::string to_;
  CallRow row_;
  wire::TraceNote note_;
  std::int64_t written_ns_;
  std::size_t request_bytes_;
  const at::ThreadLocalState state_;  // of who called: the profilers are found there
};

}  // namespace hawser::trace
