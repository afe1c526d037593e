#include "hawser/script/program.h"

#include <ATen/core/function.h>
#include <ATen/core/function_schema.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "hawser/base/error.h"
#include "hawser/tensor/operators.h"

namespace hawser::script {
namespace {

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

c10::IValue as_declared(const c10::IValue& value, const c10::Argument& argument,
                        const c10::FunctionSchema& schema) {
  auto converted = tensor::converted(value, argument.type());
  TORCH_CHECK(converted, schema.name(), "() expected a value of type '",
              argument.type()->repr_str(), "' for argument '", argument.name(), "' but got '",
              value.type()->repr_str(), "'. Declaration: ", schema);
  return *std::move(converted);
}

// Element types of containers and references do not travel.
void fit(Stack& stack, const c10::FunctionSchema& schema) {
  for (std::size_t i = 0; i < stack.size() && i < schema.arguments().size(); ++i) {
    auto fitting = tensor::converted(stack[i], schema.arguments()[i].type());
    if (fitting) stack[i] = *std::move(fitting);
  }
  schema.checkAndNormalizeInputs(stack);
}

void check_returns_future(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  TORCH_CHECK(returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::FutureType,
              "Async functions must return an IValue of Future type, but got ",
              returns.empty() ? "None" : returns[0].type()->annotation_str());
}

// Names in annotations mean the classes of a program.
class NamesOf final : public torch::jit::Resolver {
 public:
  explicit NamesOf(const Program& program) : program_(program) {}
  c10::TypePtr resolveType(const std::string& name, const torch::jit::SourceRange&) override {
    return program_.find_type(name);
  }

 private:
  const Program& program_;
};

}  // namespace

Program::Program(std::shared_ptr<torch::jit::CompilationUnit> unit, LookUp look_up,
                 RegisteredClasses registered)
    : unit_(std::move(unit)), look_up_(std::move(look_up)), registered_(registered) {
  if (!unit_) throw Error(ErrorKind::Invalid, "a program needs a compilation unit");
}

torch::jit::Function* Program::find(const std::string& qualified_name) const {
  {
    const std::shared_lock lock(mutex_);
    const auto known = functions_.find(qualified_name);
    if (known != functions_.end()) return known->second;
  }
  torch::jit::Function* found = nullptr;
  const auto look = [&] {
    found = unit_->find_function(c10::QualifiedName(qualified_name));
    if (found) found->ensure_defined();
  };
  look_up_ ? look_up_(look) : look();
  if (!found) return nullptr;
  const std::unique_lock lock(mutex_);
  functions_.emplace(qualified_name, found);
  return found;
}

torch::jit::Function& Program::get(const std::string& qualified_name) const {
  if (torch::jit::Function* const found = find(qualified_name)) return *found;
  return unit_->get_function(c10::QualifiedName(qualified_name));
}

c10::NamedTypePtr Program::find_type(const std::string& qualified_name) const {
  c10::NamedTypePtr found;
  const auto look = [&] { found = unit_->get_type(c10::QualifiedName(qualified_name)); };
  look_up_ ? look_up_(look) : look();
  if (found || registered_ == RegisteredClasses::Unknown) return found;
  return torch::getCustomClass(qualified_name);
}

c10::TypePtr Program::parse_type(const std::string& annotation) const {
  if (annotation.empty()) return nullptr;
  if (c10::TypePtr named = find_type(annotation)) return named;
  try {
    return torch::jit::ScriptTypeParser(std::make_shared<NamesOf>(*this)).parseType(annotation);
  } catch (const std::exception&) {
    return nullptr;
  }
}

Stack Program::read_stack(PayloadReader& in) const {
  const auto inside = in.nest();
  Stack stack;
  const std::size_t count = in.tuple();
  stack.reserve(std::min<std::size_t>(count, 64));
  for (std::size_t i = 0; i < count; ++i) stack.push_back(read_ivalue(in, this));
  return stack;
}

Invocation Program::read(std::string_view name, wire::ReceivedPayload& payload,
                         const tensor::OperatorRule& rule) const {
  PayloadReader in(payload);
  if (name.starts_with(kInterpreted)) {
    return read_interpreted(name.substr(kInterpreted.size()), in, rule);
  }
  Invocation invocation{.function = find(std::string(name))};
  if (!invocation.function) {
    // As libtorch says it.
    throw Error(ErrorKind::Invalid, "attempted to get undefined function " +
                                        c10::QualifiedName(std::string(name)).name() + ": no '" +
                                        std::string(name) + "' here");
  }
  invocation.stack = read_stack(in);
  invocation.asynchronous = in.boolean();
  in.finish();
  const c10::FunctionSchema& schema = invocation.function->getSchema();
  fit(invocation.stack, schema);
  if (invocation.asynchronous) check_returns_future(schema);
  return invocation;
}

Invocation Program::read_interpreted(std::string_view name, PayloadReader& in,
                                     const tensor::OperatorRule& rule) const {
  const auto refused = [&] {
    return Error(ErrorKind::Refused, std::string(name) + " cannot be called by another node");
  };
  // The others, prim::..., are parts of the interpreter.
  if (!name.starts_with("aten::")) throw refused();
  const auto symbol = c10::Symbol::fromQualString(std::string(name.substr(0, name.find('.'))));
  for (const auto& candidate : torch::jit::getAllOperatorsFor(symbol)) {
    if (full_name(candidate->schema()) != name) continue;
    rule.check(candidate->schema());
    // Without a result it would be run for what it does to this thread or process.
    if (candidate->schema().returns().size() != 1) throw refused();
    Invocation invocation{.op = candidate, .stack = read_stack(in)};
    in.finish();
    fit(invocation.stack, candidate->schema());
    return invocation;
  }
  throw Error(ErrorKind::Invalid, "no operator '" + std::string(name) + "' here");
}

c10::IValue Program::read_result(wire::ReceivedPayload& payload,
                                 const c10::TypePtr& declared) const {
  PayloadReader in(payload);
  c10::IValue value = read_ivalue(in, this);
  in.finish();
  if (!declared) return value;
  auto fitting = tensor::converted(value, declared);
  return fitting ? *std::move(fitting) : value;
}

c10::IValue start(Invocation&& invocation, const Launcher& launcher) {
  if (invocation.op) {
    invocation.op->getOperation()(invocation.stack);
    return std::move(invocation.stack.front());
  }
  auto future = invocation.function->runAsync(invocation.stack, launcher);
  if (!future->completed()) return future;
  if (future->hasError()) std::rethrow_exception(future->exception_ptr());
  return future->value();
}

Stack complete_stack(const c10::FunctionSchema& schema, Stack positional,
                     const std::unordered_map<std::string, c10::IValue>& keywords) {
  const auto& arguments = schema.arguments();
  TORCH_CHECK(positional.size() <= arguments.size(), schema.name(), "() expected at most ",
              arguments.size(), " argument(s) but received ", positional.size(),
              " argument(s). Declaration: ", schema);
  Stack stack = std::move(positional);
  std::size_t used = 0;
  for (std::size_t i = stack.size(); i < arguments.size(); ++i) {
    const c10::Argument& argument = arguments[i];
    const auto keyword = keywords.find(argument.name());
    if (keyword == keywords.end()) {
      TORCH_CHECK(argument.default_value(), schema.name(), "() is missing value for argument '",
                  argument.name(), "'. Declaration: ", schema);
      stack.push_back(*argument.default_value());
      continue;
    }
    stack.push_back(as_declared(keyword->second, argument, schema));
    ++used;
  }
  if (used != keywords.size()) {
    std::vector<std::string> names;
    names.reserve(keywords.size());
    for (const auto& [name, value] : keywords) names.push_back(name);
    TORCH_CHECK(false, schema.findErrorInKwargs(names), " Declaration: ", schema);
  }
  return stack;
}

void fit_types(const c10::FunctionSchema& schema, Stack& positional) {
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < positional.size() && i < arguments.size(); ++i) {
    positional[i] = as_declared(positional[i], arguments[i], schema);
  }
}

wire::Payload write_call(Stack&& stack, bool asynchronous) {
  PayloadWriter out;
  const auto inside = out.nest();
  out.tuple(stack.size());
  for (c10::IValue& value : stack) write_ivalue(out, std::move(value));
  out.boolean(asynchronous);
  return out.finish();
}

}  // namespace hawser::script
