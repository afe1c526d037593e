#include "hawser/bindings/bind_trace.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/profiler_legacy.h>

#include <thread>

#include "hawser/bindings/guarded.h"
#include "hawser/trace/torch_profilers.h"

namespace py = pybind11;

namespace hawser::bindings {
namespace {

std::uint32_t wants_of(bool shapes, bool memory) {
  return wire::kTraceRanges | (shapes ? wire::kTraceShapes : 0u) |
         (memory ? wire::kTraceMemory : 0u);
}

// torch's events have no place for that.
void warn_of_missing(std::uint64_t calls, std::uint64_t events) {
  if (calls == 0 && events == 0) return;
  const std::string text = "the profile is not complete: " + std::to_string(calls) + " calls and " +
                           std::to_string(events) + " events did not fit";
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) throw py::error_already_set();
}

// A recording of the thread that begins it; that thread ends it, too.
class ThreadRecorder {
 public:
  ThreadRecorder(const std::string& name, std::optional<std::uint32_t> rank, bool shapes,
                 bool memory)
      : recorder_(std::make_shared<trace::Recorder>(wants_of(shapes, memory) | wire::kTraceTimeline,
                                                    trace::this_process(name, rank),
                                                    trace::kRoomInProfile)) {}

  // One that was never ended stays with its thread, if that is another.
  ~ThreadRecorder() {
    if (std::this_thread::get_id() != thread_) static_cast<void>(recording_.release());
  }

  void begin() {
    if (recording_) throw std::runtime_error("the recording has begun already");
    thread_ = std::this_thread::get_id();
    recording_ = std::make_unique<trace::Recording>(recorder_);
  }
  void end() {
    if (std::this_thread::get_id() != thread_) {
      throw std::runtime_error("a profile is of the thread that began it, and ends there");
    }
    recording_.reset();
  }

  py::dict take() {
    const trace::Recorded recorded = recorder_->take();
    py::list processes, events;
    for (const wire::TraceProcess& process : recorded.processes) {
      processes.append(
          py::make_tuple(process.name, process.pid, process.node, process.clock_error_ns));
    }
    for (const wire::TraceEvent& event : recorded.events) {
      events.append(py::make_tuple(static_cast<int>(event.kind), event.scope, event.process,
                                   event.thread, event.name, event.start_ns, event.end_ns,
                                   event.call, event.begun_ns, event.done_ns, event.bytes,
                                   event.shapes, event.received, event.sent, event.pass));
    }
    py::dict out;
    out["processes"] = std::move(processes);
    out["events"] = std::move(events);
    out["dropped"] = recorded.dropped;
    return out;
  }

 private:
  const std::shared_ptr<trace::Recorder> recorder_;
  std::thread::id thread_;
  std::unique_ptr<trace::Recording> recording_;
};

}  // namespace

void bind_trace(py::module_& module, py::class_<NodeCore, std::shared_ptr<NodeCore>>& node) {
  node.def(
          "begin_serving_profile",
          [](NodeCore& core, const torch::profiler::impl::ProfilerConfig& config) {
            core.node().begin_serving_profile(trace::wants_of(config));
          },
          py::arg("config"))
      .def("end_serving_profile",
           [](NodeCore& core) {
             return guarded(&core, [&] {
               const auto served = core.node().end_serving_profile();
               std::vector<std::vector<trace::LegacyEvents>> calls;
               std::uint64_t dropped_events = 0;
               for (const auto& call : served.calls) {
                 calls.push_back(trace::as_legacy_profile(call.recorded, call.begun_ns));
                 dropped_events += call.recorded.dropped;
               }
               warn_of_missing(served.dropped, dropped_events);
               return calls;
             });
           })
      .def_property_readonly("rank", [](NodeCore& core) -> std::optional<std::int32_t> {
        const std::int32_t rank = core.node().process().node;
        return rank < 0 ? std::nullopt : std::optional(rank);
      });
  py::class_<ThreadRecorder>(module, "Recorder")
      .def(py::init<const std::string&, std::optional<std::uint32_t>, bool, bool>(),
           py::arg("name"), py::arg("rank"), py::arg("shapes") = false, py::arg("memory") = false)
      .def("begin", &ThreadRecorder::begin)
      .def("end", &ThreadRecorder::end)
      .def("take", &ThreadRecorder::take);
}

}  // namespace hawser::bindings
