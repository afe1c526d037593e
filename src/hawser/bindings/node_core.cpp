#include "hawser/bindings/node_core.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>

#include "hawser/base/log.h"
#include "hawser/bindings/bind_node.h"
#include "hawser/bindings/future.h"
#include "hawser/bindings/imports.h"
#include "hawser/bindings/logging.h"
#include "hawser/bindings/reference.h"
#include "hawser/bindings/serving.h"
#include "hawser/bindings/target.h"
#include "hawser/bindings/torch_bridge.h"
#include "hawser/node/function_table.h"
#include "hawser/node/scripts.h"

namespace hawser::bindings {
namespace {

void set_item(const Object& dict, const char* key, const Object& value) {
  if (PyDict_SetItemString(dict.get(), key, value.get()) != 0) throw PythonErrorSet{};
}

}  // namespace

// ------------------------------------------------------------------------------- NodeCore

namespace {
// Never destroyed: nodes may be closed while the process exits.
Guarded<std::vector<std::weak_ptr<NodeCore>>>& open_nodes() {
  static auto* const nodes = new Guarded<std::vector<std::weak_ptr<NodeCore>>>;
  return *nodes;
}
}  // namespace

void close_all_nodes() {
  std::vector<std::weak_ptr<NodeCore>> nodes;
  nodes.swap(*open_nodes().lock());
  for (const auto& each : nodes) {
    if (const auto core = each.lock()) core->node().close();
  }
}

std::shared_ptr<NodeCore> core_of(const Node& node) {
  auto nodes = open_nodes().lock();
  for (const auto& each : *nodes) {
    auto core = each.lock();
    if (core && &core->node() == &node) return core;
  }
  throw Error(ErrorKind::Invalid, "the node is closed");
}

std::shared_ptr<NodeCore> NodeCore::start(NodeOptions options, Trust trust, Hooks hooks,
                                          Served served) {
  {
    const WithGil gil;
    imports();
    log_to_python();
    options.scripts = trust == Trust::Full
                          ? python_scripts()
                          : python_scripts(script::Program::RegisteredClasses::Unknown);
  }
  if (trust == Trust::Functions && !options.operators) options.operators = {"aten::*"};
  std::shared_ptr<NodeCore> core(
      new NodeCore(trust, std::move(hooks), options.record_reference_origins, options.scripts));
  auto functions =
      std::make_shared<FunctionTable>([weak = std::weak_ptr(core)](const CallContext& context) {
        if (const auto alive = weak.lock()) return run_python(alive, nullptr, context);
        throw Error(ErrorKind::Invalid, "the node is closed");
      });
  if (trust == Trust::Full) {
    options.finders[wire::TargetKind::Python] = [functions](std::string_view name) {
      return functions->find(name);
    };
  }
  options.call_method = [weak = std::weak_ptr(core)](const CallContext& context,
                                                     const c10::IValue& value,
                                                     std::string_view method) {
    if (const auto alive = weak.lock()) return run_method(alive, context, value, method);
    throw Error(ErrorKind::Invalid, "the node is closed");
  };
  for (auto& [name, function] : served) {
    options.functions.push_back(core->served_function(std::move(name), std::move(function)));
  }
  core->node_ = std::make_unique<Node>(std::move(options));
  {
    auto nodes = open_nodes().lock();
    std::erase_if(*nodes, [](const auto& each) { return each.expired(); });
    nodes->push_back(core);
  }
  return core;
}

// Closing joins threads that may be waiting for the interpreter lock.
NodeCore::~NodeCore() {
  if (!node_) return;
  if (PyGILState_Check()) {
    const WithoutGil no_gil;
    node_.reset();
  } else {
    node_.reset();
  }
}

Picklers NodeCore::picklers() const {
  return {.own = imports().default_pickler,
          .custom = hooks_.pickler.get(),
          .may_read = trust_ == Trust::Full,
          .core = this};
}

WrittenCall NodeCore::write_call(PyObject* function, PyObject* args, PyObject* kwargs) const {
  std::shared_ptr<RefHandle> on;
  Target target;
  if (const BoundMethod* const method = method_of(function)) {
    target = {wire::TargetKind::Method, method->name};
    on = method->on;
    if (target.name.empty()) return {target.kind, {}, {}, std::move(on)};
  } else {
    target = target_of(function);
  }
  if (args == Py_None) args = nullptr;
  if (kwargs == Py_None) kwargs = nullptr;
  switch (target.kind) {
    case wire::TargetKind::Operator:
      return write_operator_call(target.name, args, kwargs);
    case wire::TargetKind::Script:
      return write_script_call(target.name, target.async_script, args, kwargs);
    default:
      break;
  }
  const Object positional =
      args ? Object::taken(PySequence_Tuple(args)) : Object::taken(PyTuple_New(0));
  const bool has_keywords = kwargs && PyObject_IsTrue(kwargs) == 1;
  const bool by_value = target.kind == wire::TargetKind::Python && target.name == kByValue;
  const Picklers picklers = this->picklers();
  if (!by_value && !picklers.custom) {
    PayloadWriter out;
    if (write_plain(out, positional.get()) && (!has_keywords || write_plain(out, kwargs))) {
      return {target.kind, target.name, out.finish(), std::move(on)};
    }
  }
  PyObject* const keywords = has_keywords ? kwargs : Py_None;
  const Object whole = by_value
                           ? Object::taken(PyTuple_Pack(3, function, positional.get(), keywords))
                           : Object::taken(PyTuple_Pack(2, positional.get(), keywords));
  // A tuple of plain data must not be taken for plain arguments.
  WrittenCall call{target.kind, target.name, write_pickled(whole.get(), picklers), std::move(on)};
  if (by_value) call.label = shown_name(function);
  return call;
}

std::shared_ptr<Function> NodeCore::served_function(std::string name, AnywhereObject function) {
  auto kept = std::make_shared<AnywhereObject>(std::move(function));
  return std::make_shared<Function>(std::move(name), "(...)",
                                    [core = weak_from_this(), kept](const CallContext& context) {
                                      if (const auto alive = core.lock())
                                        return run_python(alive, kept->get(), context);
                                      throw Error(ErrorKind::Invalid, "the node is closed");
                                    });
}

NodeCore::Habit* NodeCore::habit_of(std::string_view function) {
  constexpr std::size_t kMostKnown = 10'000;
  if (function == kByValue) return nullptr;
  const auto known = habits_.find(function);
  if (known != habits_.end()) return &known->second;
  return habits_.size() < kMostKnown ? &habits_[std::string(function)] : nullptr;
}

void NodeCore::serve(std::string name, PyObject* function) {
  node_->serve_function(served_function(std::move(name), AnywhereObject(Object::shared(function))));
}

void NodeCore::serve_method(PyTypeObject* type, std::string name) {
  methods_.emplace_back(AnywhereObject(Object::shared(reinterpret_cast<PyObject*>(type))),
                        std::move(name));
}

bool NodeCore::may_call(PyObject* value, std::string_view method) const {
  if (trust_ == Trust::Full) return true;
  const WithGil gil;
  return std::any_of(methods_.begin(), methods_.end(), [&](const auto& served) {
    const auto& [type, name] = served;
    return name == method && PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(type.get()));
  });
}

void NodeCore::check_may_call(PyObject* value, std::string_view method) const {
  if (may_call(value, method)) return;
  throw Error(ErrorKind::Refused, "this node serves no method '" + std::string(method) + "' of a " +
                                      Py_TYPE(value)->tp_name + " (trust=\"functions\")");
}

Object NodeCore::exception_for(const Error& error, wire::ReceivedPayload& payload) const {
  const ErrorDetails& known = error.details();
  const Object details = Object::taken(PyDict_New());
  if (!known.node.empty()) set_item(details, "node", as_text(known.node));
  if (!known.function.empty()) set_item(details, "function", as_text(known.function));
  if (known.budget) {
    set_item(details, "budget",
             Object::taken(PyFloat_FromDouble(static_cast<double>(known.budget->count()) / 1e6)));
  }
  if (!known.remote_type.empty()) set_item(details, "remote_type", as_text(known.remote_type));
  if (!known.remote_traceback.empty()) {
    set_item(details, "remote_traceback", as_text(known.remote_traceback));
  }
  if (trust_ == Trust::Full && !payload.value.empty()) {
    PayloadReader in(payload);
    if (in.peek() == wire::Tag::Bytes || in.peek() == wire::Tag::Blob) {
      const auto bytes = in.bytes();
      set_item(details, "pickled",
               Object::taken(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes.data()),
                                                       static_cast<Py_ssize_t>(bytes.size()))));
    }
  }
  const Object kind = as_text(std::string(to_string(error.kind())));
  const Object message = as_text(error.message());
  PyObject* const hook = hooks_.make_exception.get();
  return Object::taken(PyObject_CallFunctionObjArgs(
      hook ? hook : imports().make_exception, kind.get(), message.get(), details.get(), nullptr));
}

// ------------------------------------------------------------------------------- PendingCall

bool has_named_type(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return false;
    case c10::TypeKind::ClassType:
    case c10::TypeKind::InterfaceType:
    case c10::TypeKind::EnumType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::UnionType:
      return true;
    case c10::TypeKind::TupleType:
      if (type.castRaw<c10::TupleType>()->schema()) return true;
      break;
    default:
      break;
  }
  const auto parts = type.containedTypes();
  return std::any_of(parts.begin(), parts.end(),
                     [](const c10::TypePtr& part) { return has_named_type(*part); });
}

bool PendingCall::wait(Duration patience) {
  if (answered_.happened()) return true;
  return wait_interruptibly(*core_->node().scheduler(), answered_,
                            Deadline::after(SteadyClock(), patience));
}

Object PendingCall::read() {
  if (answer_.error) {
    const Object exception = core_->exception_for(*answer_.error, answer_.payload);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
    throw PythonErrorSet{};
  }
  if (answer_.payload.value.empty()) return Object::shared(Py_None);  // the end of a creation
  if (declared_ && has_named_type(*declared_)) return python_of(*core_, read_for_script());
  PayloadReader in(answer_.payload);
  Object value = read_value(in, core_->picklers());
  in.finish();
  return value;
}

c10::IValue PendingCall::read_for_script() {
  return core_->node().scripts().program().read_result(answer_.payload, declared_);
}

bool wait_interruptibly(Scheduler& scheduler, Event& event, Deadline deadline) {
  return wait_interruptibly([&](Deadline until) { return scheduler.wait(event, until); }, deadline);
}

bool wait_interruptibly(const std::function<bool(Deadline)>& wait, Deadline deadline) {
  constexpr Duration kBetweenLooks = std::chrono::milliseconds(50);
  const bool sees_signals = PyThread_get_thread_ident() == imports().main_thread;
  for (;;) {
    const Deadline next =
        sees_signals ? std::min(deadline, Deadline::after(SteadyClock(), kBetweenLooks)) : deadline;
    bool happened = false;
    {
      const WithoutGil no_gil;
      happened = wait(next);
    }
    if (happened) return true;
    if (sees_signals) pass_on_log();
    if (PyErr_CheckSignals() != 0) throw PythonErrorSet{};
    if (deadline.passed(std::chrono::steady_clock::now())) return false;
  }
}

void set_python_error(const NodeCore* core) {
  try {
    throw;
  } catch (const Error& error) {
    try {
      wire::ReceivedPayload nothing;
      const Object exception =
          core ? core->exception_for(error, nothing)
               : Object::taken(PyObject_CallFunction(imports().make_exception, "sO{}",
                                                     std::string(to_string(error.kind())).c_str(),
                                                     as_text(error.message()).get()));
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
    } catch (const PythonErrorSet&) {
    }
  } catch (...) {
    translate_current_exception();
  }
}

}  // namespace hawser::bindings
