#include "hawser/bindings/bind_node.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "hawser/bindings/bind_autograd.h"
#include "hawser/bindings/bind_trace.h"
#include "hawser/bindings/future.h"
#include "hawser/bindings/guarded.h"
#include "hawser/bindings/node_core.h"
#include "hawser/bindings/reference.h"
#include "hawser/engine/current_context.h"
#include "hawser/node/c10d_store.h"

namespace py = pybind11;

namespace hawser::bindings {
namespace {

// ------------------------------------------------------------------------------- times

// 0 is without limit.
Duration duration_of(double seconds, const char* what) {
  if (std::isnan(seconds) || seconds < 0) {
    throw Error(ErrorKind::Invalid,
                std::string(what) + " must not be negative; 0 is without limit");
  }
  const double most = std::chrono::duration<double>(std::chrono::hours(24 * 365 * 100)).count();
  if (seconds == 0 || seconds > most) return kForever;
  const auto exact = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  return std::max(exact, Duration(1));
}

}  // namespace

std::optional<Duration> timeout_of(PyObject* seconds) {
  if (!seconds || seconds == Py_None) return std::nullopt;
  const double value = PyFloat_AsDouble(seconds);
  if (value == -1.0 && PyErr_Occurred()) throw PythonErrorSet{};
  return duration_of(value, "a timeout");
}

namespace {

// Set by hawser.deadline: when it ends, in seconds of time.monotonic(), which is steady_clock.
PyObject* deadline_variable() {
  static PyObject* const variable = PyContextVar_New("hawser_deadline", nullptr);
  return variable;
}

std::optional<Duration> left_of_deadline() {
  PyObject* found = nullptr;
  if (PyContextVar_Get(deadline_variable(), nullptr, &found) != 0) throw PythonErrorSet{};
  if (!found) return std::nullopt;
  const Object ends = Object::taken(found);
  if (ends.get() == Py_None) return std::nullopt;
  const double at = PyFloat_AsDouble(ends.get());
  if (at == -1.0 && PyErr_Occurred()) throw PythonErrorSet{};
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  return duration_of(std::max(at - now.count(), 1e-9), "a deadline");  // over is not without limit
}

}  // namespace

std::optional<Duration> limited_timeout_of(PyObject* seconds) {
  const auto timeout = timeout_of(seconds);
  const auto left = left_of_deadline();
  return timeout && left ? std::min(*timeout, *left) : left ? left : timeout;
}

namespace {

// ------------------------------------------------------------------------------- calls
//
// call() and start() are METH_FASTCALL: pybind11's own dispatch would be a tenth of a call.

struct CallRequest {
  std::string_view to;
  PyObject* function = nullptr;
  PyObject* args = nullptr;
  PyObject* kwargs = nullptr;
  PyObject* timeout = nullptr;
};

CallRequest parse_call(PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static constexpr const char* kNames[] = {"to", "function", "args", "kwargs", "timeout"};
  constexpr Py_ssize_t kMost = 5;
  PyObject* values[kMost] = {};
  if (count > kMost) {
    PyErr_Format(PyExc_TypeError, "expected at most %zd arguments, got %zd", kMost, count);
    throw PythonErrorSet{};
  }
  std::copy(given, given + count, values);
  const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names, i);
    Py_ssize_t at = 0;
    while (at < kMost && PyUnicode_CompareWithASCIIString(name, kNames[at]) != 0) ++at;
    if (at == kMost || values[at]) {
      PyErr_Format(PyExc_TypeError, "unexpected argument %R", name);
      throw PythonErrorSet{};
    }
    values[at] = given[count + i];
  }
  CallRequest request{{}, values[1], values[2], values[3], values[4]};
  if (!values[0] || !request.function) {
    PyErr_SetString(PyExc_TypeError, "a call needs the name of a node and a function");
    throw PythonErrorSet{};
  }
  if (!PyUnicode_Check(values[0])) {
    PyErr_Format(PyExc_TypeError, "the name of a node must be a str, not %s",
                 Py_TYPE(values[0])->tp_name);
    throw PythonErrorSet{};
  }
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(values[0], &size);
  if (!text) throw PythonErrorSet{};
  request.to = {text, static_cast<std::size_t>(size)};
  return request;
}

// Null, with the error set, for an object whose __init__ has not run.
NodeCore* core_of(PyObject* self) {
  auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  auto* const core = instance->simple_layout
                         ? static_cast<NodeCore*>(instance->simple_value_holder[0])
                         : py::cast<NodeCore*>(py::handle(self));
  if (!core) {
    PyErr_SetString(PyExc_RuntimeError, "the node has not been started");
    throw PythonErrorSet{};
  }
  return core;
}

WrittenCall written(const NodeCore& core, const CallRequest& request) {
  const std::int64_t called_ns = trace::stamp();
  WrittenCall call = core.write_call(request.function, request.args, request.kwargs);
  call.called_ns = called_ns;
  return call;
}

Object call_and_wait(NodeCore& core, const CallRequest& request) {
  const auto timeout = limited_timeout_of(request.timeout);
  return run_written(core, {.to = request.to, .timeout = timeout}, written(core, request));
}

}  // namespace

Object run_written(NodeCore& core, const CallOptions& options, WrittenCall&& written) {
  written.style = trace::CallStyle::Sync;
  auto call = std::make_shared<PendingCall>(core.shared_from_this(), written.returns);
  UniqueFunction<void()> canceller;
  {
    const WithoutGil no_gil;
    canceller = core.node().call_written(
        options, std::move(written),
        [call](agent::Answer&& answer) { call->set_answer(std::move(answer)); });
    // The usual case in one go: the answer comes before there is reason to look for signals.
    core.node().scheduler()->wait(call->mutable_answered(),
                                  Deadline::after(SteadyClock(), std::chrono::milliseconds(50)));
  }
  try {
    call->wait();
  } catch (const PythonErrorSet&) {
    const WithoutGil no_gil;
    canceller();
    throw;
  }
  return call->read();
}

namespace {

template <Object (*act)(NodeCore&, const CallRequest&)>
PyObject* fast_call(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  NodeCore* core = nullptr;
  try {
    core = core_of(self);
    const engine::ContextScope scope(context_of_python());
    return act(*core, parse_call(given, count, names)).release();
  } catch (...) {
    set_python_error(core);
    return nullptr;
  }
}

Object start(NodeCore& core, const CallRequest& request) {
  const auto timeout = limited_timeout_of(request.timeout);
  return start_call(core.shared_from_this(), {.to = request.to, .timeout = timeout},
                    written(core, request), Object::shared(request.args));
}

Object remote(NodeCore& core, const CallRequest& request) {
  const auto timeout = limited_timeout_of(request.timeout);
  return create_reference(core, {.to = request.to, .timeout = timeout}, written(core, request));
}

Object notify(NodeCore& core, const CallRequest& request) {
  if (request.timeout) throw Error(ErrorKind::Invalid, "nobody waits for a notice: no timeout");
  WrittenCall written = core.write_call(request.function, request.args, request.kwargs);
  const WithoutGil no_gil;
  core.node().notify_written(request.to, std::move(written));
  return Object::shared(Py_None);
}

PyMethodDef kFastMethods[] = {
    {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(fast_call<call_and_wait>)),
     METH_FASTCALL | METH_KEYWORDS,
     "call($self, to, function, args=None, kwargs=None, timeout=None)\n--\n\nCalls and waits."},
    {"start", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(fast_call<start>)),
     METH_FASTCALL | METH_KEYWORDS,
     "start($self, to, function, args=None, kwargs=None, timeout=None)\n--\n\nCalls; returns a "
     "Future."},
    {"remote", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(fast_call<remote>)),
     METH_FASTCALL | METH_KEYWORDS,
     "remote($self, to, function, args=None, kwargs=None, timeout=None)\n--\n\nCalls; the result "
     "stays there. Returns a reference to it."},
    {"notify", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(fast_call<notify>)),
     METH_FASTCALL | METH_KEYWORDS,
     "notify($self, to, function, args=None, kwargs=None)\n--\n\nCalls without an answer."},
};

// ------------------------------------------------------------------------------- the node

AnywhereObject hook_of(const py::object& value) {
  return value.is_none() ? AnywhereObject() : AnywhereObject(Object::shared(value.ptr()));
}

// {"fail": [kind, ...], "delay": {kind: seconds}, "times": how often each message fails}
transport::Faults read_faults(const py::dict& given) {
  transport::Faults faults;
  for (const auto& kind : py::cast<std::vector<std::string>>(given["fail"])) {
    faults.fail.insert(kind);
  }
  for (const auto& [kind, seconds] : py::cast<std::map<std::string, double>>(given["delay"])) {
    faults.delay[kind] =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
  faults.times = py::cast<int>(given["times"]);
  return faults;
}

std::shared_ptr<NodeCore> start_node(
    const std::string& name, const std::string& rendezvous, const py::object& store,
    std::optional<std::uint32_t> rank, std::optional<std::uint32_t> world_size,
    const std::vector<std::string>& transports, double call_timeout, double rendezvous_timeout,
    std::size_t max_threads, const std::string& trust,
    const std::optional<std::vector<std::string>>& operators, const std::string& address,
    const std::vector<std::string>& interfaces, std::uint16_t port,
    const std::string& advertised_host, const std::string& token, const std::string& token_file,
    const std::optional<std::map<std::string, std::string>>& tls, double spin_us,
    double heartbeat_interval, double suspect_after, double lost_after,
    const std::map<std::string, py::function>& functions, bool record_reference_origins,
    const std::optional<py::dict>& faults, const py::object& describe_exception,
    const py::object& make_exception) {
  return guarded(nullptr, [&] {
    NodeOptions options;
    options.name = name;
    options.rendezvous = rendezvous;
    if (!store.is_none()) {
      options.store = use_store(py::cast<c10::intrusive_ptr<c10d::Store>>(store));
    }
    options.rank = rank;
    options.world_size = world_size;
    options.transports = transports;
    options.call_timeout = duration_of(call_timeout, "call_timeout");
    options.rendezvous_timeout = duration_of(rendezvous_timeout, "rendezvous_timeout");
    options.limits.max_threads = max_threads;
    options.operators = operators;
    options.address = address;
    for (const std::string& each : interfaces) {
      options.interfaces += (options.interfaces.empty() ? "" : ",") + each;
    }
    options.port = port;
    options.advertised_host = advertised_host;
    options.token = token;
    options.token_file = token_file;
    if (tls) {
      TlsOptions files;
      for (const auto& [key, value] : *tls) {
        if (key == "ca_file") {
          files.ca_file = value;
        } else if (key == "certificate_file") {
          files.certificate_file = value;
        } else if (key == "key_file") {
          files.key_file = value;
        } else if (key == "peer_name") {
          files.peer_name = value;
        } else {
          throw Error(ErrorKind::Invalid, "tls: unknown key '" + key +
                                              "' (ca_file, certificate_file, key_file, peer_name)");
        }
      }
      options.tls = std::move(files);
    }
    options.spin_limit =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::micro>(spin_us));
    options.failure_detector = {
        .heartbeat_interval = duration_of(heartbeat_interval, "heartbeat_interval"),
        .suspect_after = duration_of(suspect_after, "suspect_after"),
        .lost_after = duration_of(lost_after, "lost_after")};
    options.record_reference_origins = record_reference_origins;
    if (faults) options.faults = read_faults(*faults);
    if (trust != "full" && trust != "functions") {
      throw Error(ErrorKind::Invalid, "trust must be 'full' or 'functions', got '" + trust + "'");
    }
    NodeCore::Hooks hooks;
    hooks.describe_exception = hook_of(describe_exception);
    hooks.make_exception = hook_of(make_exception);
    NodeCore::Served served;
    for (const auto& [served_name, function] : functions) {
      served.emplace_back(served_name, AnywhereObject(Object::shared(function.ptr())));
    }
    const WithoutGil no_gil;
    return NodeCore::start(std::move(options),
                           trust == "full" ? NodeCore::Trust::Full : NodeCore::Trust::Functions,
                           std::move(hooks), std::move(served));
  });
}

// What blocks in C++ and cannot be interrupted there is asked for in slices.
template <class F>
auto in_slices(NodeCore& core, double seconds, F attempt) {
  return guarded(&core, [&] {
    const Deadline deadline = Deadline::after(SteadyClock(), duration_of(seconds, "timeout"));
    for (;;) {
      const TimePoint now = std::chrono::steady_clock::now();
      const Duration slice =
          std::min<Duration>(deadline.remaining(now), std::chrono::milliseconds(50));
      try {
        const WithoutGil no_gil;
        return attempt(std::max(slice, Duration(1)));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::Timeout) throw;
        if (deadline.passed(std::chrono::steady_clock::now())) throw;
      }
      if (PyErr_CheckSignals() != 0) throw PythonErrorSet{};
    }
  });
}

Deadline deadline_of(NodeCore& core, double timeout) {
  return guarded(&core,
                 [&] { return Deadline::after(SteadyClock(), duration_of(timeout, "timeout")); });
}

// Lets go, and waits as Node::await_release does.
bool release_references(NodeCore& core, Deadline deadline) {
  return guarded(&core, [&] {
    {
      const WithoutGil no_gil;
      core.node().release_references();
    }
    return wait_interruptibly(
        [&](Deadline until) {
          return core.node().await_release(until.remaining(std::chrono::steady_clock::now()));
        },
        deadline);
  });
}

py::object seconds_or_none(const std::optional<Duration>& duration) {
  if (!duration) return py::none();
  return py::float_(std::chrono::duration<double>(*duration).count());
}

py::dict inspect(NodeCore& core) {
  const NodeReport report = guarded(&core, [&] {
    const WithoutGil no_gil;
    return core.node().inspect();
  });
  py::dict out;
  out["name"] = report.name;
  out["incarnation"] = report.incarnation;
  out["endpoints"] = report.endpoints;
  out["unavailable"] = report.unavailable;
  py::list peers;
  for (const auto& peer : report.peers) {
    py::dict entry;
    entry["name"] = peer.name;
    entry["state"] = peer.state;
    entry["incarnation"] = peer.incarnation;
    entry["transport"] = peer.transport;
    entry["choice"] = peer.choice;
    entry["round_trip"] = seconds_or_none(peer.round_trip);
    entry["since_heard"] = seconds_or_none(peer.since_heard);
    entry["bytes_sent"] = peer.traffic.bytes_sent;
    entry["bytes_received"] = peer.traffic.bytes_received;
    entry["frames_sent"] = peer.traffic.frames_sent;
    entry["frames_received"] = peer.traffic.frames_received;
    entry["outgoing"] = peer.outgoing;
    entry["incoming"] = peer.incoming;
    entry["put_aside"] = peer.put_aside;
    entry["waiting"] = peer.waiting;
    peers.append(std::move(entry));
  }
  out["peers"] = std::move(peers);
  py::list calls;
  for (const auto& call : report.calls) {
    py::dict entry;
    entry["id"] = number(call.id);
    entry["function"] = call.function;
    entry["peer"] = call.peer;
    entry["age"] = std::chrono::duration<double>(call.age).count();
    entry["remaining"] = seconds_or_none(call.remaining);
    entry["incoming"] = call.incoming;
    calls.append(std::move(entry));
  }
  out["calls"] = std::move(calls);
  py::dict crew;
  crew["threads"] = report.crew.threads;
  crew["running"] = report.crew.running;
  crew["parked"] = report.crew.parked;
  crew["queued"] = report.crew.queued;
  crew["tasks_run"] = report.crew.tasks_run;
  crew["refused"] = report.crew.refused;
  out["crew"] = std::move(crew);
  py::dict memory;
  memory["lent"] = report.memory.lent;
  memory["kept"] = report.memory.kept;
  memory["adopted"] = report.memory.adopted;
  memory["shared"] = report.memory.shared;
  memory["to_send"] = report.memory.to_send;
  out["memory"] = std::move(memory);
  out["connections_turned_away"] = report.connections_turned_away;
  out["shutdown_waits_for"] = report.shutdown_waits_for;
  out["functions"] = report.functions;
  py::dict autograd;
  autograd["contexts"] = report.autograd.contexts;
  autograd["passes"] = report.autograd.passes;
  out["autograd"] = std::move(autograd);
  if (const auto gil = measured_gil_waits()) {
    out["gil_wait_us"] = std::chrono::duration<double, std::micro>(gil->average).count();
    out["gil_waits"] = gil->count;
  }
  return out;
}

py::list list_references(NodeCore& core) {
  const std::vector<RefReport> reports = guarded(&core, [&] {
    const WithoutGil no_gil;
    return core.node().refs();
  });
  py::list out;
  for (const RefReport& report : reports) {
    py::dict entry;
    entry["id"] = report.id;
    entry["owner"] = report.owner;
    entry["mine"] = report.mine;
    entry["state"] = report.state;
    entry["type"] = report.type;
    entry["made_by"] = report.made_by;
    entry["bytes"] = report.bytes;
    entry["holders"] = report.holders;
    entry["handles"] = report.handles;
    entry["age"] = std::chrono::duration<double>(report.age).count();
    entry["origin"] = report.origin;
    out.append(std::move(entry));
  }
  return out;
}

template <AnywhereObject NodeCore::Hooks::*hook>
void bind_hook(py::class_<NodeCore, std::shared_ptr<NodeCore>>& type, const char* name) {
  type.def_property(
      name,
      [](NodeCore& core) {
        PyObject* const set = (core.hooks().*hook).get();
        return set ? py::reinterpret_borrow<py::object>(set) : py::object(py::none());
      },
      [](NodeCore& core, const py::object& value) { core.hooks().*hook = hook_of(value); });
}

// ------------------------------------------------------------------------------- being called

struct CallInfo {
  CallContext context;

  void on_cancel(const py::function& callback) const {
    auto kept = std::make_shared<AnywhereObject>(Object::shared(callback.ptr()));
    context.on_cancel([kept] {
      const WithGil gil;
      PyObject* const done = PyObject_CallNoArgs(kept->get());
      if (!done) PyErr_WriteUnraisable(kept->get());
      Py_XDECREF(done);
    });
  }
};

}  // namespace

PyObject* call_info(const CallContext& context) {
  return py::cast(CallInfo{context}).release().ptr();
}

void bind_node(py::module_& module) {
  py::class_<NodeCore, std::shared_ptr<NodeCore>> type(module, "Node");
  type.def(py::init(&start_node), py::kw_only(), py::arg("name"), py::arg("rendezvous") = "",
           py::arg("store") = py::none(), py::arg("rank") = py::none(),
           py::arg("world_size") = py::none(),
           py::arg("transports") = std::vector<std::string>{"shm", "tcp"},
           py::arg("call_timeout") = 60.0, py::arg("rendezvous_timeout") = 300.0,
           py::arg("max_threads") = 128, py::arg("trust") = "full",
           py::arg("operators") = py::none(), py::arg("address") = "",
           py::arg("interfaces") = std::vector<std::string>(), py::arg("port") = 0,
           py::arg("advertised_host") = "", py::arg("token") = "", py::arg("token_file") = "",
           py::arg("tls") = py::none(), py::arg("spin_us") = 50.0,
           py::arg("heartbeat_interval") = 1.0, py::arg("suspect_after") = 2.0,
           py::arg("lost_after") = 10.0,
           py::arg("functions") = std::map<std::string, py::function>(),
           py::arg("record_reference_origins") = false, py::arg("faults") = py::none(),
           py::arg("describe_exception") = py::none(), py::arg("make_exception") = py::none())
      .def_property_readonly("name", [](NodeCore& core) { return core.node().name(); })
      .def_property_readonly("closed", [](NodeCore& core) { return core.node().closed(); })
      .def(
          "serve",
          [](NodeCore& core, std::string name, const py::function& function) {
            guarded(&core, [&] { core.serve(std::move(name), function.ptr()); });
          },
          py::arg("name"), py::arg("function"))
      .def(
          "serve_method",
          [](NodeCore& core, const py::type& kind, std::string name) {
            core.serve_method(reinterpret_cast<PyTypeObject*>(kind.ptr()), std::move(name));
          },
          py::arg("kind"), py::arg("name"))
      .def(
          "withdraw",
          [](NodeCore& core, const std::string& name) {
            return guarded(&core, [&] { return core.node().withdraw(name); });
          },
          py::arg("name"))
      .def(
          "members",
          [](NodeCore& core, double timeout) {
            return in_slices(core, timeout,
                             [&](Duration slice) { return core.node().members(slice); });
          },
          py::arg("timeout") = 0.0)
      .def(
          "look_up",
          [](NodeCore& core, const std::string& name) {
            return guarded(&core, [&] {
              const WithoutGil no_gil;
              return core.node().look_up(name);
            });
          },
          py::arg("name"))
      .def(
          "connect",
          [](NodeCore& core, const std::string& to, double timeout) {
            in_slices(core, timeout, [&](Duration slice) {
              core.node().connect(to, slice);
              return true;
            });
          },
          py::arg("to"), py::arg("timeout") = 60.0)
      .def(
          "rank_of",
          [](NodeCore& core, const std::string& name) {
            return guarded(&core, [&] {
              const WithoutGil no_gil;
              return core.node().rank_of(name);
            });
          },
          py::arg("name"))
      .def(
          "shutdown",
          [](NodeCore& core, double timeout) {
            if (core.node().closed()) return;
            const Deadline deadline = deadline_of(core, timeout);
            in_slices(core, timeout, [&](Duration slice) {
              core.node().depart(slice);
              return true;
            });
            release_references(
                core, std::min(deadline, Deadline::after(SteadyClock(), Node::kReleasePatience)));
            const WithoutGil no_gil;
            core.node().report_leaks();
            core.node().close();
          },
          py::arg("timeout") = 0.0)
      .def(
          "depart",
          [](NodeCore& core, double timeout) {
            in_slices(core, timeout, [&](Duration slice) {
              core.node().depart(slice);
              return true;
            });
          },
          py::arg("timeout") = 0.0)
      .def(
          "release_references",
          [](NodeCore& core, double timeout) {
            return release_references(core, deadline_of(core, timeout));
          },
          py::arg("timeout"))
      .def("refs", &list_references)
      .def("count_refs",
           [](NodeCore& core) {
             const RefCounts counts = [&] {
               const WithoutGil no_gil;
               return core.node().references().count();
             }();
             py::dict out;
             out["values"] = counts.values;
             out["shared"] = counts.shared;
             out["forks"] = counts.forks;
             out["held"] = counts.held;
             out["creating"] = counts.creating;
             out["unsettled"] = counts.unsettled;
             return out;
           })
      .def("ref_leaks",
           [](NodeCore& core) {
             const WithoutGil no_gil;
             return core.node().references().describe_leaks();
           })
      .def(
          "close",
          [](NodeCore& core, double patience) {
            return guarded(&core, [&] {
              const Duration wait = duration_of(patience, "patience");
              const WithoutGil no_gil;
              return core.node().close(wait);
            });
          },
          py::arg("patience") = 5.0)
      .def("inspect", &inspect)
      .def("inspect_text",
           [](NodeCore& core) {
             return guarded(&core, [&] {
               const WithoutGil no_gil;
               return core.node().inspect().to_text();
             });
           })
      .def(
          "set_call_timeout",
          [](NodeCore& core, double seconds) {
            guarded(&core,
                    [&] { core.node().set_call_timeout(duration_of(seconds, "call_timeout")); });
          },
          py::arg("seconds"));
  bind_autograd(module, type);
  bind_trace(module, type);
  bind_hook<&NodeCore::Hooks::pickler>(type, "pickler");
  bind_hook<&NodeCore::Hooks::describe_exception>(type, "describe_exception");
  bind_hook<&NodeCore::Hooks::make_exception>(type, "make_exception");
  for (PyMethodDef& method : kFastMethods) {
    auto* const python_type = reinterpret_cast<PyTypeObject*>(type.ptr());
    type.attr(method.ml_name) =
        py::reinterpret_steal<py::object>(PyDescr_NewMethod(python_type, &method));
  }

  py::class_<CallInfo>(module, "CallInfo")
      .def_property_readonly("caller", [](const CallInfo& info) { return info.context.caller(); })
      .def_property_readonly("cancelled",
                             [](const CallInfo& info) { return info.context.cancelled(); })
      .def_property_readonly(
          "remaining",
          [](const CallInfo& info) -> py::object {
            const Deadline deadline = info.context.deadline();
            if (deadline.is_never()) return py::none();
            return seconds_or_none(deadline.remaining(std::chrono::steady_clock::now()));
          })
      .def("on_cancel", &CallInfo::on_cancel, py::arg("callback"));
  py::list kinds;
  for (const std::string_view kind : transport::all_message_kinds()) {
    kinds.append(py::str(kind.data(), kind.size()));
  }
  module.attr("MESSAGE_KINDS") = py::tuple(kinds);
  module.attr("deadline") = py::reinterpret_borrow<py::object>(deadline_variable());
  module.def("measure_gil_waits", &measure_gil_waits, py::arg("enabled"));
  module.def("close_all", &close_all_nodes, py::call_guard<py::gil_scoped_release>());
  module.def("current_call", []() -> py::object {
    const CallContext* const serving = current_call();
    return serving ? py::cast(CallInfo{*serving}) : py::object(py::none());
  });
}

}  // namespace hawser::bindings
