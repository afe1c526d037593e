#include "hawser/bindings/torch_bridge.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <unordered_map>

#include "hawser/bindings/reference.h"
#include "hawser/script/program.h"
#include "hawser/tensor/value_codec.h"

namespace torch::jit::detail {
// pybind_utils.h calls it inline, libtorch_python does not export it. It infers types of process
// groups and the like, which nobody sends.
std::optional<InferredType> _tryToInferTypeImpl(py::handle) { return std::nullopt; }
}  // namespace torch::jit::detail

namespace hawser::bindings {
namespace {

namespace py = pybind11;
using torch::jit::Stack;

py::args as_args(PyObject* args) {
  return args ? py::reinterpret_steal<py::args>(PySequence_Tuple(args)) : py::args();
}
py::kwargs as_kwargs(PyObject* kwargs) {
  return kwargs && kwargs != Py_None ? py::reinterpret_borrow<py::kwargs>(kwargs) : py::kwargs();
}

void write_stack(PayloadWriter& out, Stack stack) {
  const auto inside = out.nest();
  out.tuple(stack.size());
  for (c10::IValue& value : stack) write_ivalue(out, std::move(value));
}

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

c10::TypePtr result_type(const c10::FunctionSchema& schema) {
  return schema.returns().size() == 1 ? schema.returns()[0].type() : nullptr;
}

// Kept: asking Python each time takes as long as a call. Not a static of the function (see
// imports.h).
std::shared_ptr<const script::Program>* known_scripts = nullptr;

// Those of the dispatcher first: tensors are what calls are about. Remembered, under the
// interpreter lock; what torch calls by its own names is registered when it is imported.
const std::vector<std::shared_ptr<torch::jit::Operator>>& overloads(const std::string& name) {
  static auto* const known =
      new std::unordered_map<std::string, std::vector<std::shared_ptr<torch::jit::Operator>>>;
  const auto found = known->find(name);
  if (found != known->end()) return found->second;
  auto candidates = torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name));
  std::stable_partition(candidates.begin(), candidates.end(),
                        [](const auto& candidate) { return candidate->isC10Op(); });
  return known->emplace(name, std::move(candidates)).first->second;
}

}  // namespace

std::shared_ptr<const script::Program> python_scripts(
    script::Program::RegisteredClasses registered) {
  // Python compiles functions with the interpreter lock.
  const auto look_up = [](const std::function<void()>& look) {
    const WithGil gil;
    look();
  };
  return std::make_shared<script::Program>(torch::jit::get_python_cu(), look_up, registered);
}

const std::shared_ptr<const script::Program>& python_scripts() {
  if (!known_scripts) {
    auto* const found = new std::shared_ptr<const script::Program>(
        python_scripts(script::Program::RegisteredClasses::Known));
    if (!known_scripts) known_scripts = found;
  }
  return *known_scripts;
}

WrittenCall write_operator_call(const std::string& name, PyObject* args, PyObject* kwargs) {
  auto [chosen, stack] =
      torch::jit::getOpWithStack(overloads(name), as_args(args), as_kwargs(kwargs));
  const std::string chosen_name = full_name(chosen->schema());
  c10::TypePtr returns = result_type(chosen->schema());
  PayloadWriter out;
  write_stack(out, std::move(stack));
  if (chosen->isC10Op()) {
    return {wire::TargetKind::Operator, chosen_name, out.finish(), nullptr, std::move(returns)};
  }
  WrittenCall call{wire::TargetKind::Script, std::string(script::kInterpreted) + chosen_name,
                   out.finish(), nullptr, std::move(returns)};
  call.label = name;
  return call;
}

WrittenCall write_script_call(const std::string& qualified_name, bool async_script, PyObject* args,
                              PyObject* kwargs) {
  const auto function = python_scripts()->find(qualified_name);
  if (!function) {
    throw std::runtime_error("there is no script function '" + qualified_name + "'");
  }
  const c10::FunctionSchema& schema = function->getSchema();
  const py::args given = as_args(args);
  Stack stack = torch::jit::createStackForSchema(schema, torch::jit::tuple_slice(given),
                                                 as_kwargs(kwargs), std::nullopt);
  c10::TypePtr returns = result_type(schema);
  if (async_script && returns && returns->kind() == c10::TypeKind::FutureType) {
    returns = returns->castRaw<c10::FutureType>()->getElementType();
  }
  return {wire::TargetKind::Script, qualified_name,
          script::write_call(std::move(stack), async_script), nullptr, std::move(returns)};
}

// ------------------------------------------------------------------------------- values

namespace {

bool has_plain_elements(const c10::Type& element) {
  switch (element.kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::StringType:
      return true;
    default:
      return false;
  }
}

Object list_of(const NodeCore& core, const c10::IValue& value) {
  Object list = Object::taken(PyList_New(0));
  for (const c10::IValue& element : value.toListRef()) {
    const Object item = python_of(core, element);
    if (PyList_Append(list.get(), item.get()) != 0) throw PythonErrorSet{};
  }
  return list;
}

Object tuple_of(const NodeCore& core, const c10::IValue& value) {
  const auto& elements = value.toTupleRef().elements();
  Object tuple = Object::taken(PyTuple_New(static_cast<Py_ssize_t>(elements.size())));
  for (std::size_t i = 0; i < elements.size(); ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                     python_of(core, elements[i]).release());
  }
  return tuple;
}

Object dict_of(const NodeCore& core, const c10::IValue& value) {
  Object dict = Object::taken(PyDict_New());
  for (const auto& entry : value.toGenericDict()) {
    const Object key = python_of(core, entry.key());
    const Object item = python_of(core, entry.value());
    if (PyDict_SetItem(dict.get(), key.get(), item.get()) != 0) throw PythonErrorSet{};
  }
  return dict;
}

}  // namespace

Object python_of(const NodeCore& core, const c10::IValue& value) {
  if (value.isRRef()) {
    if (const auto carried = carried_by(*value.toRRef())) {
      return wrap_reference(core, std::static_pointer_cast<RefHandle>(carried));
    }
  }
  if (value.isList() && !has_plain_elements(*value.toList().elementType())) {
    return list_of(core, value);
  }
  if (value.isTuple() && !value.toTupleRef().type()->schema()) return tuple_of(core, value);
  if (value.isGenericDict()) return dict_of(core, value);
  return Object::taken(torch::jit::toPyObject(value).release().ptr());
}

c10::IValue script_module_of(PyObject* object) {
  const auto module = torch::jit::as_module(py::reinterpret_borrow<py::object>(object));
  return module ? module->_ivalue() : c10::IValue();
}

c10::IValue script_value_of(PyObject* object, const c10::TypePtr& declared) {
  const py::handle handle(object);
  try {
    const bool by_name = declared && (declared->kind() == c10::TypeKind::ClassType ||
                                      declared->kind() == c10::TypeKind::InterfaceType);
    if (by_name) return torch::jit::toIValue(handle, declared);
    if (c10::IValue module = script_module_of(object); !module.isNone()) return module;
    const c10::InferredType inferred = torch::jit::tryToInferType(handle);
    if (inferred.success()) return torch::jit::toIValue(handle, inferred.type());
    if (declared) return torch::jit::toIValue(handle, declared);
    throw Error(ErrorKind::Invalid, std::string("scripts cannot use a ") +
                                        Py_TYPE(object)->tp_name + ": " + inferred.reason());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // a Python error, too
    throw Error(ErrorKind::Invalid, std::string("scripts cannot use a ") +
                                        Py_TYPE(object)->tp_name + ": " + error.what());
  }
}

// ------------------------------------------------------------------------------- exceptions

void translate_current_exception() {
  try {
    throw;
  } catch (const PythonErrorSet&) {
    // It is set.
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (torch::PyTorchError& error) {
    PyErr_SetString(error.python_type(), error.what());
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "something that is not a std::exception was thrown");
  }
}

}  // namespace hawser::bindings
