#include "hawser/bindings/serving.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/module_python.h>

#include "hawser/bindings/bind_node.h"
#include "hawser/bindings/future.h"
#include "hawser/bindings/imports.h"
#include "hawser/bindings/reference.h"
#include "hawser/bindings/target.h"
#include "hawser/bindings/torch_bridge.h"
#include "hawser/node/kept_value.h"

namespace hawser::bindings {
namespace {

std::string as_string(PyObject* text) {
  Py_ssize_t size = 0;
  const Object encoded =
      Object::taken(PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace"));
  char* data = nullptr;
  if (PyBytes_AsStringAndSize(encoded.get(), &data, &size) != 0) throw PythonErrorSet{};
  return std::string(data, static_cast<std::size_t>(size));
}

// What a handler raised, on its way to the caller.
struct Raised {
  Error error;
  wire::Payload payload;
};

Raised describe(const NodeCore& core, PyObject* exception) {
  PyObject* const hook = const_cast<NodeCore&>(core).hooks().describe_exception.get();
  try {
    const Object described = Object::taken(never_unwound([&] {
      return PyObject_CallOneArg(hook ? hook : imports().describe_exception, exception);
    }));
    PyObject *type = nullptr, *message = nullptr, *traceback = nullptr, *pickled = nullptr;
    if (!PyArg_ParseTuple(described.get(), "UUUO", &type, &message, &traceback, &pickled)) {
      throw PythonErrorSet{};
    }
    ErrorDetails details;
    details.remote_type = as_string(type);
    details.remote_traceback = as_string(traceback);
    PayloadWriter out;
    if (PyBytes_Check(pickled)) {
      out.bytes(std::span(reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(pickled)),
                          static_cast<std::size_t>(PyBytes_GET_SIZE(pickled))));
    } else {
      out.null();
    }
    return {Error(ErrorKind::Remote, as_string(message), std::move(details)), out.finish()};
  } catch (const PythonErrorSet&) {
    // The exception could not even be described.
    const Object second = take_raised();
    return {Error(ErrorKind::Remote, std::string("raised ") + Py_TYPE(exception)->tp_name +
                                         ", and describing it raised " +
                                         Py_TYPE(second.get())->tp_name),
            {}};
  }
}

// ------------------------------------------------------------------------------- serving

struct Arguments {
  Object function;
  Object args;
  Object kwargs;
};

// What write_call() wrote.
Arguments read_arguments(const CallContext& context, const Picklers& picklers) {
  const std::string_view name = context.call()->call().function;
  const bool python = context.call()->call().target == wire::TargetKind::Python;
  PayloadReader in(context.call()->payload());
  Arguments read;
  if (!in.at_end() && in.peek() == wire::Tag::Tuple) {
    read.args = read_value(in, picklers);
    if (!in.at_end()) read.kwargs = read_value(in, picklers);
  } else {
    const Object whole = read_value(in, picklers);
    const bool by_value = python && name == kByValue;
    PyObject *function = nullptr, *args = nullptr, *kwargs = nullptr;
    if (by_value ? !PyArg_ParseTuple(whole.get(), "OO!O", &function, &PyTuple_Type, &args, &kwargs)
                 : !PyArg_ParseTuple(whole.get(), "O!O", &PyTuple_Type, &args, &kwargs)) {
      throw PythonErrorSet{};
    }
    read.function = Object::shared(function);
    read.args = Object::shared(args);
    read.kwargs = Object::shared(kwargs == Py_None ? nullptr : kwargs);
  }
  in.finish();
  if (read.kwargs && !PyDict_Check(read.kwargs.get())) {
    throw Error(ErrorKind::Invalid, "malformed call: its keywords are no dict");
  }
  if (python && !read.function) read.function = find_python_function(name);
  return read;
}

bool is_async_execution(PyObject* function) {
  if (PyFunction_Check(function)) {
    PyObject* const attributes = reinterpret_cast<PyFunctionObject*>(function)->func_dict;
    return attributes && PyDict_GetItemString(attributes, "_wrapped_async_rpc_function");
  }
  PyObject* const marked = PyObject_GetAttrString(function, "_wrapped_async_rpc_function");
  if (!marked) PyErr_Clear();
  Py_XDECREF(marked);
  return marked != nullptr;
}

void reply_with(NodeCore& core, const CallContext& context, Object result);
void fail_with_raised(const NodeCore& core, const CallContext& context);

// The function's result is the future's.
void reply_when_done(const std::shared_ptr<NodeCore>& core, const CallContext& context,
                     PyObject* future) {
  when_torch_future_done(future, [core, context](PyObject* value) {
    if (value) return reply_with(*core, context, Object::shared(value));
    fail_with_raised(*core, context);
  });
}

void fail_with_raised(const NodeCore& core, const CallContext& context) {
  const Object raised = take_raised();
  Raised described = describe(core, raised.get());
  const WithoutGil no_gil;
  context.fail(std::move(described.error), std::move(described.payload));
}

void reply_with(NodeCore& core, const CallContext& context, Object result) {
  context.function_returned();
  try {
    if (context.keeps_result()) {
      auto kept = std::make_shared<KeptObject>(core.shared_from_this(), std::move(result));
      const WithoutGil no_gil;
      return context.keep(std::move(kept));
    }
    const engine::ContextScope scope(context.autograd_context());
    wire::Payload payload = write_value(result.get(), core.picklers());
    result = Object();
    const WithoutGil no_gil;
    context.reply(std::move(payload));
  } catch (const PythonErrorSet&) {
    fail_with_raised(core, context);
  } catch (const Error& error) {  // a tensor that cannot be sent
    context.fail(remote_error(std::make_exception_ptr(error)));
  }
}

// Runs the function that `choose` puts in place with the arguments of the call, and answers it.
template <class Choose>
void run(const std::shared_ptr<NodeCore>& core, const CallContext& context, Choose choose) {
  const WithGil gil;
  try {
    Arguments call = read_arguments(context, core->picklers());
    choose(call.function);
    const bool async_execution = is_async_execution(call.function.get());
    Object result = Object::taken(never_unwound(
        [&] { return PyObject_Call(call.function.get(), call.args.get(), call.kwargs.get()); }));
    if (async_execution) {
      if (!is_torch_future(result.get())) {
        PyErr_Format(PyExc_RuntimeError,
                     "Functions decorated with @rpc.async_function must return a "
                     "torch.futures.Future object, but got %s",
                     Py_TYPE(result.get())->tp_name);
        throw PythonErrorSet{};
      }
      return reply_when_done(core, context, result.get());
    }
    if (PyCoro_CheckExact(result.get())) {
      const Object info = Object::taken(call_info(context));
      const Object future = Object::taken(
          PyObject_CallFunctionObjArgs(imports().run_coroutine, result.get(), info.get(), nullptr));
      return reply_when_done(core, context, future.get());
    }
    call = Arguments();  // a tensor that is handed straight back then has one owner
    reply_with(*core, context, std::move(result));
  } catch (const PythonErrorSet&) {
    fail_with_raised(*core, context);
  } catch (const Error& error) {  // while reading the request
    throw detail::BadRequest{error};
  }
}

}  // namespace

void run_python(const std::shared_ptr<NodeCore>& core, PyObject* served,
                const CallContext& context) {
  run(core, context, [&](Object& function) {
    if (served) function = Object::shared(served);
  });
}

void run_method(const std::shared_ptr<NodeCore>& core, const CallContext& context,
                const c10::IValue& value, std::string_view method) {
  run(core, context, [&](Object& function) {
    const Object object = python_of(*core, value);
    core->check_may_call(object.get(), method);
    const Object name = as_text(method);
    function = Object::taken(PyObject_GetAttr(object.get(), name.get()));
  });
}

// ------------------------------------------------------------------------------- kept objects

namespace {

// As it travels; empty unless it is small and never changes.
std::string constant_copy_of(PyObject* object, const Picklers& picklers) {
  const PyTypeObject* const type = Py_TYPE(object);
  const bool sized = type == &PyUnicode_Type || type == &PyBytes_Type;
  const bool constant = sized || object == Py_None || type == &PyLong_Type ||
                        type == &PyFloat_Type || type == &PyBool_Type;
  if (!constant || picklers.custom) return {};
  if (sized && PyObject_Size(object) > static_cast<Py_ssize_t>(kMostConstantBytes)) return {};
  PayloadWriter out;
  if (!write_plain(out, object)) return {};
  const wire::Payload copy = out.finish();
  if (copy.value.size() > kMostConstantBytes || !copy.segments.empty()) return {};
  return std::string(reinterpret_cast<const char*>(copy.value.data()), copy.value.size());
}

}  // namespace

KeptObject::KeptObject(const std::shared_ptr<NodeCore>& core, Object object,
                       std::string script_type)
    : core_(core),
      constant_(constant_copy_of(object.get(), core->picklers())),
      object_(std::move(object)),
      script_type_(std::move(script_type)),
      share_(share_of(object_.get())) {}

std::string KeptObject::type_name() const {
  if (!script_type_.empty()) return script_type_;
  const WithGil gil;
  return Py_TYPE(object_.get())->tp_name;
}

std::size_t KeptObject::bytes() const {
  const WithGil gil;
  if (THPVariable_Check(object_.get())) return THPVariable_Unpack(object_.get()).nbytes();
  const Object size = Object::taken(PyObject_CallOneArg(imports().size_of, object_.get()));
  return PyLong_AsSize_t(size.get());
}

wire::Payload KeptObject::copy() {
  const auto core = core_.lock();
  if (!core) throw Error(ErrorKind::Invalid, "the node is closed");
  const WithGil gil;
  // What was made known to scripts as a module stays one: those elsewhere know its interface only.
  if (!script_type_.empty() && torch::jit::as_module(pybind11::handle(object_.get()))) {
    return write_kept(script_value_of(object_.get(), nullptr));
  }
  try {
    return write_value(object_.get(), core->picklers());
  } catch (const PythonErrorSet&) {
    const Object raised = take_raised();
    Raised described = describe(*core, raised.get());
    throw KeptFailure{std::move(described.error), std::move(described.payload)};
  }
}

c10::IValue KeptObject::script_value(const c10::TypePtr& declared) {
  const WithGil gil;
  return script_value_of(object_.get(), declared);
}

// Where Python's own methods may not be called: a script module has some that are scripts.
void KeptObject::call_script(const NodeCore& core, const CallContext& context,
                             std::string_view method) {
  std::shared_ptr<c10::IValue> module;
  try {
    const WithGil gil;
    module = std::make_shared<c10::IValue>(script_module_of(object_.get()));
    if (module->isNone()) core.check_may_call(object_.get(), method);
  } catch (const Error& error) {
    throw detail::BadRequest{error};
  }
  KeptValue<c10::IValue>(std::move(module)).call(context, method);
}

void KeptObject::call(const CallContext& context, std::string_view method) {
  const auto core = core_.lock();
  if (!core) throw Error(ErrorKind::Invalid, "the node is closed");
  if (!core->may_call(object_.get(), method)) return call_script(*core, context, method);
  if (share_ && share_->answer(*core, context, method)) return;
  run(core, context, [&](Object& function) {
    const Object name = as_text(method);
    function = Object::taken(PyObject_GetAttr(object_.get(), name.get()));
  });
}

}  // namespace hawser::bindings
