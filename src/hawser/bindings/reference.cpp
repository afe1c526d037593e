#include "hawser/bindings/reference.h"

#include <pybind11/stl.h>
#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <atomic>
#include <sstream>

#include "hawser/bindings/bind_autograd.h"
#include "hawser/bindings/bind_node.h"
#include "hawser/bindings/future.h"
#include "hawser/bindings/imports.h"
#include "hawser/bindings/serving.h"
#include "hawser/bindings/torch_bridge.h"
#include "hawser/node/kept_value.h"
#include "hawser/node/script_reference.h"

namespace py = pybind11;
namespace rpc = torch::distributed::rpc;

namespace hawser::bindings {
namespace {

rpc::GloballyUniqueId global_id(std::uint64_t on, std::uint64_t local) {
  return {static_cast<rpc::worker_id_t>(refs::rank_of(on)), static_cast<rpc::local_id_t>(local)};
}

// How the call that creates a value ends. Told by a thread that reads the network.
class CreationEnd {
 public:
  using Then = UniqueFunction<void(const std::optional<Error>&)>;

  // `habit`: of the function that makes the value; may be null.
  explicit CreationEnd(NodeCore::Habit* habit) : habit_(habit) {}
  ~CreationEnd() {
    Then* const then = then_.load(std::memory_order_acquire);
    if (then != taken()) delete then;
  }
  CreationEnd(const CreationEnd&) = delete;

  // With the interpreter lock, while there is the node.
  bool is_expected_to_bring_copy() const { return habit_ && habit_->brings_copies(); }
  void learn() {
    if (habit_ && ended_.happened()) habit_->learn(!copy_.empty());
  }

  void happened(const agent::Answer& answer) {
    error_ = answer.error;
    if (!answer.error && answer.payload.value.size() <= kMostConstantBytes) {
      copy_.assign(reinterpret_cast<const char*>(answer.payload.value.data()),
                   answer.payload.value.size());
    }
    ended_.set();
    const std::unique_ptr<Then> then(then_.exchange(taken(), std::memory_order_acq_rel));
    if (then) (*then)(error_);
  }
  // Set once.
  void when_happened(Then then) {
    auto kept = std::make_unique<Then>(std::move(then));
    Then* none = nullptr;
    if (then_.compare_exchange_strong(none, kept.get(), std::memory_order_acq_rel)) {
      kept.release();
    } else {
      (*kept)(error_);
    }
  }

  Event& ended() { return ended_; }
  // Once it has ended: a copy of the value, as it travels. Empty if none came along.
  const std::string& copy() const { return copy_; }

 private:
  // In the place of `then_` when it has happened: nobody is called any more.
  static Then* taken() {
    static Then mark;
    return &mark;
  }

  NodeCore::Habit* const habit_;
  Event ended_;
  std::string copy_;  // constant once it has ended, as is the error
  std::optional<Error> error_;
  std::atomic<Then*> then_{nullptr};  // there may be many references, and few are asked: no lock
};

}  // namespace

// What Python holds.
class Reference : public rpc::PyRRef {
 public:
  Reference(std::weak_ptr<NodeCore> core, std::shared_ptr<RefHandle> handle)
      : rpc::PyRRef(c10::make_intrusive<ScriptReference>(handle, nullptr)),
        core_(std::move(core)),
        handle_(std::move(handle)) {}

  const std::shared_ptr<RefHandle>& handle() const { return handle_; }
  std::shared_ptr<NodeCore> shared_core() const {
    auto core = core_.lock();
    if (!core) throw Error(ErrorKind::Invalid, "the node of this reference is closed");
    return core;
  }

  std::shared_ptr<CreationEnd> creation;  // null if somebody else has created the value
  py::object future;                      // of the creation, once asked for
  py::object kind = py::none();           // a future of the value's type, once asked for
  py::object profiling_future = py::none();

 private:
  const std::weak_ptr<NodeCore> core_;
  const std::shared_ptr<RefHandle> handle_;
};

namespace {

PyTypeObject* reference_type = nullptr;  // set once, at import
PyTypeObject* torch_type = nullptr;      // the base of it
PyTypeObject* method_type = nullptr;

thread_local SentReferences* sent = nullptr;
thread_local ReceivedReferences* received = nullptr;

// Runs what may throw anything of hawser's; Python sees its exceptions.
template <class F>
auto guarded(const Reference& reference, F function) {
  try {
    return function();
  } catch (const PythonErrorSet&) {
    throw py::error_already_set();
  } catch (const Error&) {
    std::shared_ptr<NodeCore> core;
    try {
      core = reference.shared_core();
    } catch (const Error&) {  // the exceptions of a node that is gone are hawser's own
    }
    set_python_error(core.get());
    throw py::error_already_set();
  }
}

std::shared_ptr<NodeCore> current_core() {
  const Object node = Object::taken(PyObject_CallNoArgs(imports().current_node));
  return py::cast<std::shared_ptr<NodeCore>>(py::handle(node.get()));
}

// The line of the program, not of this package, that is being run.
std::string origin_of(const NodeCore& core) {
  if (!core.records_origins()) return {};
  Object frame = Object::shared(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  const auto as_frame = [&] { return reinterpret_cast<PyFrameObject*>(frame.get()); };
  const auto is_own = [&] {
    const Object globals = Object::taken(PyFrame_GetGlobals(as_frame()));
    PyObject* const module = PyDict_GetItemString(globals.get(), "__name__");
    const char* const name = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : "";
    return name && std::string_view(name).starts_with("hawser.");
  };
  while (frame && is_own()) {
    PyObject* const caller = reinterpret_cast<PyObject*>(PyFrame_GetBack(as_frame()));
    frame = caller ? Object::taken(caller) : Object();
  }
  if (!frame) return {};
  const Object kept = Object::taken(reinterpret_cast<PyObject*>(PyFrame_GetCode(as_frame())));
  const auto* const code = reinterpret_cast<PyCodeObject*>(kept.get());
  return std::string(PyUnicode_AsUTF8(code->co_filename)) + ":" +
         std::to_string(PyFrame_GetLineNumber(as_frame())) + " in " +
         PyUnicode_AsUTF8(code->co_name);
}

std::shared_ptr<Reference> wrapped(std::weak_ptr<NodeCore> core,
                                   std::shared_ptr<RefHandle> handle) {
  return std::make_shared<Reference>(std::move(core), std::move(handle));
}

std::string qualified_name(const py::handle& type) {
  return py::cast<std::string>(py::handle(imports().qualified_name)(type));
}

// What scripts take the value to be, where that has a name. A script module is known to scripts
// elsewhere by its interface only, so that must be given.
std::string script_type(const py::object& value, const py::object& hint) {
  const auto module = torch::jit::as_module(value);
  if (!module) {
    TORCH_CHECK(hint.is_none(),
                "type_hint should only be specified when the RRef being created contains a "
                "ScriptModule.");
    const py::handle type(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
    return py::handle(imports().script_class)(type).is_none() ? "" : qualified_name(type);
  }
  TORCH_CHECK(!hint.is_none(),
              "The RRef being created contains a ScriptModule, must provide its ModuleInterface "
              "type hint. ");
  std::string name = qualified_name(hint);
  const c10::TypePtr interface =
      torch::jit::get_python_cu()->get_interface(c10::QualifiedName(name));
  std::ostringstream why_not;
  TORCH_CHECK(interface && module->type()->isSubtypeOfExt(*interface, &why_not),
              module->type()->repr_str(), " is not a subtype of the type hint: ", name,
              ", did you pass a valid interface type?\n", why_not.str());
  return name;
}

// Belongs to `node`, or where that is None to the one that is current.
std::shared_ptr<Reference> keep_here(const py::object& value, const py::object& hint,
                                     const py::object& node) {
  std::string type = script_type(value, hint);
  try {
    const auto core = node.is_none() ? current_core() : py::cast<std::shared_ptr<NodeCore>>(node);
    auto kept = std::make_shared<KeptObject>(core, Object::shared(value.ptr()), std::move(type));
    const std::string origin = origin_of(*core);
    std::shared_ptr<RefHandle> handle;
    {
      const WithoutGil no_gil;
      handle = core->node().keep(std::move(kept), origin);
    }
    return wrapped(core, std::move(handle));
  } catch (const PythonErrorSet&) {
    throw py::error_already_set();
  } catch (const Error&) {
    set_python_error(nullptr);
    throw py::error_already_set();
  }
}

// It was released, by the program or with the node.
bool is_deleted(const Reference& reference) {
  if (reference.handle()->released()) return true;
  try {
    return reference.shared_core()->node().closed();
  } catch (const Error&) {
    return true;
  }
}

std::string describe(const Reference& reference) {
  const RefHandle& handle = *reference.handle();
  std::ostringstream text;
  const auto id = global_id(handle.id().on, handle.id().local);
  if (handle.is_owner()) {
    text << "OwnerRRef(" << id << ")";
  } else {
    text << "UserRRef(RRefId = " << id
         << ", ForkId = " << global_id(handle.fork()->on, handle.fork()->local) << ")";
  }
  return text.str();
}

// ------------------------------------------------------------------------------- the value

Object read_copy(const NodeCore& core, Kept& value) {
  wire::Payload payload;
  {
    const WithoutGil no_gil;
    payload = value.copy();
  }
  wire::ReceivedPayload local;
  local.value = {payload.value.data(), payload.value.size()};
  local.tensors = std::move(payload.tensors);
  local.segments = std::move(payload.segments);
  local.held = std::move(payload.held);
  PayloadReader in(local);
  Object object = read_value(in, core.picklers());
  in.finish();
  return object;
}

[[noreturn]] void raise_failure(const NodeCore& core, const KeptFailure& failure) {
  wire::ReceivedPayload payload;
  payload.value = {failure.payload.value.data(), failure.payload.value.size()};
  payload.segments = failure.payload.segments;
  const Object exception = core.exception_for(failure.error, payload);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
  throw PythonErrorSet{};
}

// Throws Error(Timeout): no longer than the call being served.
Object local_value(const Reference& reference, Duration timeout) {
  const auto core = reference.shared_core();
  References& references = core->node().references();
  struct Arrival {
    Event there;
    Found found;
  };
  const auto arrival = std::make_shared<Arrival>();
  std::uint64_t waiter = 0;
  {
    const WithoutGil no_gil;
    waiter = references.when_there(*reference.handle(), [arrival](Found found) {
      arrival->found = std::move(found);
      arrival->there.set();
    });
  }
  if (!arrival->there.happened()) {
    Deadline deadline = Deadline::after(SteadyClock(), timeout);
    if (const CallContext* serving = current_call()) {
      deadline = std::min(deadline, serving->deadline());
    }
    const auto stop_waiting = [&] {
      const WithoutGil no_gil;
      references.stop_waiting(reference.handle()->id(), waiter);
    };
    bool is_there = false;
    try {
      is_there = wait_interruptibly(*core->node().scheduler(), arrival->there, deadline);
    } catch (const PythonErrorSet&) {
      stop_waiting();
      throw;
    }
    if (!is_there) {
      stop_waiting();
      throw Error(ErrorKind::Timeout, "the value does not exist yet");
    }
  }
  const Found& found = arrival->found;
  if (found.failure) raise_failure(*core, *found.failure);
  if (const auto* object = dynamic_cast<KeptObject*>(found.value.get())) {
    return Object::shared(object->object());
  }
  if (const auto* kept = dynamic_cast<KeptValue<c10::IValue>*>(found.value.get())) {
    return python_of(*core, *kept->value());
  }
  try {
    return read_copy(*core, *found.value);
  } catch (const KeptFailure& failure) {
    raise_failure(*core, failure);
  }
}

Object read_along(const NodeCore& core, const std::string& copy) {
  wire::ReceivedPayload payload;
  payload.value = std::as_bytes(std::span(copy));
  PayloadReader in(payload);
  Object object = read_value(in, core.picklers());
  in.finish();
  return object;
}

// The value, if a copy of it has come along with the answer to the call that made it, or is
// expected to in a moment. Null when the owner has to be asked: also where somebody else wants to
// see that, as profiles do.
Object copy_along(NodeCore& core, const Reference& reference) {
  CreationEnd* const creation = reference.creation.get();
  if (!creation || current_call() || engine::current_context() || trace::is_watched()) return {};
  if (!creation->ended().happened() && !creation->is_expected_to_bring_copy()) return {};
  if (creation->ended().happened() && creation->copy().empty()) return {};
  {
    const WithoutGil no_gil;
    if (reference.handle()->error()) return {};
    // Nobody is woken for that answer (LEISURE-1): who would sleep asks.
    if (!core.node().look_on(creation->ended()) || creation->copy().empty()) return {};
  }
  return read_along(core, creation->copy());
}

Object fetch(NodeCore& core, const Reference& reference, std::optional<Duration> limit) {
  Object value = copy_along(core, reference);
  if (!value) {
    value = run_written(core, {.to = reference.handle()->owner(), .timeout = limit},
                        {wire::TargetKind::Method, {}, {}, reference.handle()});
  }
  if (reference.creation) reference.creation->learn();
  return value;
}

// to_here(timeout=-1). METH_FASTCALL, as the calls of a node are.
PyObject* to_here(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const Reference* reference = nullptr;
  std::shared_ptr<NodeCore> core;
  try {
    reference = &py::cast<const Reference&>(py::handle(self));
    const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    if (count + named > 1 || (named == 1 && PyUnicode_CompareWithASCIIString(
                                                PyTuple_GET_ITEM(names, 0), "timeout") != 0)) {
      PyErr_SetString(PyExc_TypeError, "to_here() takes a timeout, and nothing else");
      return nullptr;
    }
    PyObject* const timeout = count + named == 1 ? given[0] : nullptr;
    const bool is_number = timeout && (PyFloat_Check(timeout) || PyLong_Check(timeout));
    const bool unset = is_number && PyFloat_AsDouble(timeout) == -1.0 && !PyErr_Occurred();
    const auto limit = limited_timeout_of(unset ? nullptr : timeout);
    if (reference->handle()->is_owner()) {
      core = reference->shared_core();
      return local_value(*reference, limit.value_or(kForever)).release();
    }
    if (is_deleted(*reference)) {
      throw Error(ErrorKind::Invalid, describe(*reference) +
                                          " has been deleted. Cannot call to_here() on it after "
                                          "deletion.");
    }
    core = reference->shared_core();
    const engine::ContextScope scope(context_of_python());
    return fetch(*core, *reference, limit).release();
  } catch (...) {
    set_python_error(core.get());
    return nullptr;
  }
}

PyMethodDef kToHere = {
    "to_here", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(to_here)),
    METH_FASTCALL | METH_KEYWORDS,
    "to_here($self, timeout=-1.0)\n--\n\nA copy of the value, or the value itself on its owner. "
    "Waits until it exists."};

py::object to_python(Object object) { return py::reinterpret_steal<py::object>(object.release()); }

// ------------------------------------------------------------------------------- its creation

py::object creation_future(Reference& reference) {
  if (reference.future) return reference.future;
  const auto [future, settle] = make_future(reference.shared_core());
  if (reference.creation) {
    reference.creation->when_happened([settle = settle](const std::optional<Error>& error) {
      agent::Answer answer;
      answer.error = error;
      settle(std::move(answer));
    });
  } else {
    settle(agent::Answer{});
  }
  reference.future = to_python(future);
  return reference.future;
}

// ------------------------------------------------------------------------------- pickling

std::size_t pickled_index(const Reference& reference) {
  SentReferences* const table = SentReferences::current();
  if (!table) {
    throw std::runtime_error(
        "Can not pickle rref in python pickler, rref can only be pickled when using RPC");
  }
  return table->add(reference.handle());
}

py::tuple reduce(const Reference& reference, const py::object& read) {
  return py::make_tuple(read, py::make_tuple(pickled_index(reference)));
}

py::object unreduce(std::size_t index) {
  ReceivedReferences* const table = ReceivedReferences::current();
  if (!table) {
    throw std::runtime_error(
        "Can not unpickle rref in python pickler, rref can only be unpickled when using RPC");
  }
  return py::reinterpret_borrow<py::object>(table->at(index).get());
}

// Whoever receives a reference in a call of the original finds it confirmed. Here the call does not
// wait for that, so who asks does.
bool confirmed_by_owner(const Reference& reference) {
  const auto core = reference.shared_core();
  RefHandle& handle = *reference.handle();
  std::shared_ptr<Event> answered;
  {
    const WithoutGil no_gil;
    if (handle.received()) answered = core->node().references().answer_of_owner(handle);
  }
  if (answered) {
    wait_interruptibly(*core->node().scheduler(), *answered,
                       Deadline::after(SteadyClock(), core->node().call_timeout()));
  }
  const WithoutGil no_gil;
  return handle.confirmed();
}

}  // namespace

// ------------------------------------------------------------------------------- tables

SentReferences::SentReferences() : outer_(std::exchange(sent, this)) {}
SentReferences::~SentReferences() { sent = outer_; }
SentReferences* SentReferences::current() { return sent; }
std::size_t SentReferences::add(std::shared_ptr<RefHandle> handle) {
  handles_.push_back(std::move(handle));
  return handles_.size() - 1;
}

ReceivedReferences::ReceivedReferences() : outer_(std::exchange(received, this)) {}
ReceivedReferences::~ReceivedReferences() { received = outer_; }
ReceivedReferences* ReceivedReferences::current() { return received; }
const Object& ReceivedReferences::at(std::size_t index) const {
  if (index >= references_.size()) {
    throw Error(ErrorKind::Invalid, "malformed value: no reference " + std::to_string(index));
  }
  return references_[index];
}

// ------------------------------------------------------------------------------- for others

Object wrap_reference(const NodeCore& core, std::shared_ptr<RefHandle> handle) {
  return Object::taken(
      py::cast(wrapped(const_cast<NodeCore&>(core).weak_from_this(), std::move(handle)))
          .release()
          .ptr());
}

std::shared_ptr<RefHandle> handle_of(PyObject* object) {
  if (PyObject_TypeCheck(object, reference_type)) {
    return py::cast<Reference&>(py::handle(object)).handle();
  }
  // What a script has returned is an object of torch's own class.
  if (Py_TYPE(object) != torch_type) return nullptr;
  const auto rref = py::cast<rpc::PyRRef&>(py::handle(object)).toIValue().toRRef();
  return std::static_pointer_cast<RefHandle>(carried_by(*rref));
}

const BoundMethod* method_of(PyObject* function) {
  if (Py_TYPE(function) != method_type) return nullptr;
  return py::cast<const BoundMethod*>(py::handle(function));
}

Object create_reference(NodeCore& core, const CallOptions& options, WrittenCall&& call) {
  auto end = std::make_shared<CreationEnd>(core.habit_of(call.function));
  std::string origin = origin_of(core);
  std::string type = call.returns ? call.returns->annotation_str() : std::string();
  std::shared_ptr<RefHandle> handle;
  {
    const WithoutGil no_gil;
    handle = core.node().create_written(
        options, std::move(call), std::move(type),
        [end](const agent::Answer& answer) { end->happened(answer); }, std::move(origin));
  }
  auto reference = wrapped(core.weak_from_this(), std::move(handle));
  reference->creation = std::move(end);
  if (trace::is_watched()) reference->profiling_future = creation_future(*reference);
  return Object::taken(py::cast(std::move(reference)).release().ptr());
}

void bind_reference(py::module_& module) {
  module.attr("NOT_CREATED") = py::str(kNotCreated.data(), kNotCreated.size());
  module.def("_received_reference", &unreduce, py::arg("index"));
  const py::object read = module.attr("_received_reference");

  py::class_<BoundMethod> method(module, "Method");
  method
      .def(py::init([](const Reference& reference, std::string name) {
             return BoundMethod{reference.handle(), std::move(name)};
           }),
           py::arg("reference"), py::arg("name"))
      .def_readonly("name", &BoundMethod::name)
      .def("__call__", [](const BoundMethod&, const py::args&, const py::kwargs&) {
        throw py::type_error("a method of a remote value is called through a node");
      });
  method_type = reinterpret_cast<PyTypeObject*>(method.ptr());

  py::class_<Reference, rpc::PyRRef, std::shared_ptr<Reference>> type(module, "PyRRef");
  type.def(py::init(&keep_here), py::arg("value"), py::arg("type_hint") = py::none(), py::kw_only(),
           py::arg("_node") = py::none())
      .def("is_owner", [](const Reference& self) { return self.handle()->is_owner(); })
      .def("confirmed_by_owner",
           [](const Reference& self) {
             return guarded(self, [&] { return confirmed_by_owner(self); });
           })
      .def("owner_name", [](const Reference& self) { return self.handle()->owner(); })
      .def("_local_value",
           [](const Reference& self) {
             return guarded(self, [&] { return to_python(local_value(self, kForever)); });
           })
      .def("_get_future",
           [](Reference& self) { return guarded(self, [&] { return creation_future(self); }); })
      .def("release",
           [](const Reference& self) {
             const WithoutGil no_gil;
             self.handle()->release();
           })
      .def_property_readonly("deleted", &is_deleted)
      .def("_raise_if_failed",
           [](const Reference& self) {
             guarded(self, [&] {
               const WithoutGil no_gil;
               if (const auto error = self.handle()->error()) throw *error;
             });
           })
      .def_property_readonly(
          "_node",
          [](const Reference& self) { return guarded(self, [&] { return self.shared_core(); }); })
      .def_readwrite("_kind", &Reference::kind)
      .def_readwrite("_profiling_future", &Reference::profiling_future)
      .def("_ids",
           [](const Reference& self) {
             const RefHandle& handle = *self.handle();
             const auto fork =
                 handle.fork().value_or(refs::ForkId{handle.id().on, handle.id().local});
             return py::make_tuple(refs::rank_of(handle.id().on), handle.id().local,
                                   refs::rank_of(fork.on), fork.local);
           })
      .def("_pickled_index", &pickled_index)
      .def("__reduce__", [read](const Reference& self) { return reduce(self, read); })
      .def("__reduce_ex__", [read](const Reference& self, int) { return reduce(self, read); })
      .def("__str__", &describe)
      .def("__repr__", &describe);
  reference_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  torch_type = reference_type->tp_base;
  module.def("_own_reference", [](const py::object& other) -> py::object {
    const auto handle = handle_of(other.ptr());
    if (!handle) return py::none();
    try {
      return to_python(wrap_reference(*core_of(handle->references().node()), handle));
    } catch (const Error&) {
      set_python_error(nullptr);
      throw py::error_already_set();
    }
  });
  type.attr(kToHere.ml_name) =
      py::reinterpret_steal<py::object>(PyDescr_NewMethod(reference_type, &kToHere));
}

}  // namespace hawser::bindings
