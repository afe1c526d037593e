#include "hawser/bindings/torch_bridge.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <unordered_map>

#include "hawser/node/function_table.h"
#include "hawser/tensor/operators.h"
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

Stack read_stack(PayloadReader& in) {
  const auto inside = in.nest();
  Stack stack;
  const std::size_t count = in.tuple();
  for (std::size_t i = 0; i < count; ++i) stack.push_back(read_ivalue(in));
  return stack;
}

// The stack as the schema declares it: element types of containers do not travel.
void fit(Stack& stack, const c10::FunctionSchema& schema) {
  for (std::size_t i = 0; i < stack.size() && i < schema.arguments().size(); ++i) {
    auto fitting = tensor::converted(stack[i], schema.arguments()[i].type());
    if (fitting) stack[i] = std::move(*fitting);
  }
  schema.checkAndNormalizeInputs(stack);
}

// Replies when the future of a script is there; it may be a future again (an async script).
void answer_when_done(const CallContext& context, c10::intrusive_ptr<c10::ivalue::Future> future) {
  future->addCallback([context](c10::ivalue::Future& done) {
    try {
      if (done.hasError()) std::rethrow_exception(done.exception_ptr());
      c10::IValue value = done.value();
      if (value.isFuture()) return answer_when_done(context, value.toFuture());
      detail::answer(context, std::move(value));
    } catch (...) {
      context.fail(remote_error(std::current_exception()));
    }
  });
}

// Operators of the script interpreter that the dispatcher does not know: aten::add.int and the
// like.
constexpr std::string_view kInterpreted = "op:";

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

void run_interpreted(std::string_view name, const CallContext& context) {
  // A peer that may run operators may not therefore write files.
  if (!name.starts_with("aten::") || name.starts_with("aten::save")) {
    throw detail::BadRequest{
        Error(ErrorKind::Refused, std::string(name) + " cannot be called by another node")};
  }
  const auto symbol = c10::Symbol::fromQualString(std::string(name.substr(0, name.find('.'))));
  for (const auto& candidate : torch::jit::getAllOperatorsFor(symbol)) {
    if (full_name(candidate->schema()) != name) continue;
    PayloadReader reader(context.call()->payload());
    Stack stack = read_stack(reader);
    reader.finish();
    fit(stack, candidate->schema());
    candidate->getOperation()(stack);
    if (stack.size() != 1) throw std::runtime_error(std::string(name) + " has not one result");
    return detail::answer(context, std::move(stack.front()));
  }
  throw detail::BadRequest{
      Error(ErrorKind::Invalid, "no operator '" + std::string(name) + "' here")};
}

void run_script(torch::jit::CompilationUnit& scripts, const CallContext& context) {
  const std::string name(context.call()->call().function);
  if (name.starts_with(kInterpreted)) {
    return run_interpreted(std::string_view(name).substr(kInterpreted.size()), context);
  }
  torch::jit::Function* const function = scripts.find_function(c10::QualifiedName(name));
  if (!function) {
    throw detail::BadRequest{Error(ErrorKind::Invalid, "no script function '" + name + "' here")};
  }
  PayloadReader reader(context.call()->payload());
  Stack stack = read_stack(reader);
  const bool async_script = reader.boolean();
  reader.finish();
  fit(stack, function->getSchema());
  auto future = function->runAsync(stack);
  if (async_script) {
    const auto& returns = function->getSchema().returns();
    if (returns.size() != 1 || returns[0].type()->kind() != c10::TypeKind::FutureType) {
      throw std::runtime_error("Async functions must return an IValue of Future type, but got " +
                               (returns.empty() ? "None" : returns[0].type()->annotation_str()));
    }
  }
  answer_when_done(context, std::move(future));
}

// All script functions of this process. Kept: asking Python each time takes as long as a call. Not
// a static of the function (see imports.h).
std::shared_ptr<torch::jit::CompilationUnit>* known_scripts = nullptr;

const std::shared_ptr<torch::jit::CompilationUnit>& python_scripts() {
  if (!known_scripts) {
    auto* const found =
        new std::shared_ptr<torch::jit::CompilationUnit>(torch::jit::get_python_cu());
    if (!known_scripts) known_scripts = found;
  }
  return *known_scripts;
}

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

WrittenCall write_operator_call(const std::string& name, PyObject* args, PyObject* kwargs) {
  auto [chosen, stack] =
      torch::jit::getOpWithStack(overloads(name), as_args(args), as_kwargs(kwargs));
  const std::string chosen_name = full_name(chosen->schema());
  PayloadWriter out;
  write_stack(out, std::move(stack));
  if (chosen->isC10Op()) return {wire::TargetKind::Operator, chosen_name, out.finish()};
  WrittenCall call{wire::TargetKind::Script, std::string(kInterpreted) + chosen_name, out.finish()};
  call.label = name;
  return call;
}

WrittenCall write_script_call(const std::string& qualified_name, bool async_script, PyObject* args,
                              PyObject* kwargs) {
  const auto function = python_scripts()->find_function(c10::QualifiedName(qualified_name));
  if (!function) {
    throw std::runtime_error("there is no script function '" + qualified_name + "'");
  }
  const py::args given = as_args(args);
  Stack stack = torch::jit::createStackForSchema(
      function->getSchema(), torch::jit::tuple_slice(given), as_kwargs(kwargs), std::nullopt);
  PayloadWriter out;
  write_stack(out, std::move(stack));
  out.boolean(async_script);
  return {wire::TargetKind::Script, qualified_name, out.finish()};
}

NodeOptions::FindFunction script_functions() {
  auto scripts = python_scripts();
  auto functions = std::make_shared<FunctionTable>(
      [scripts](const CallContext& context) { run_script(*scripts, context); });
  return [functions](std::string_view name) { return functions->find(name); };
}

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
