#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>

#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hawser/tensor/operator_rule.h"
#include "hawser/tensor/value_codec.h"
#include "hawser/wire/message.h"

namespace c10 {
struct FunctionSchema;
}
namespace torch::jit {
struct CompilationUnit;
struct Function;
struct Operator;
}  // namespace torch::jit

namespace hawser::script {

using Stack = std::vector<c10::IValue>;

// Where a script goes on after it has waited, and where what it forks runs.
using Launcher = std::function<void(std::function<void()>)>;

// A call that has been read and can be started.
struct Invocation {
  torch::jit::Function* function = nullptr;  // or, where that is null:
  std::shared_ptr<torch::jit::Operator> op{};
  Stack stack{};
  bool asynchronous = false;  // the function returns a future, whose value is the result
};

// The functions and classes of a compilation unit, as calls name them: what a node runs for others
// (NodeOptions::scripts) and what scripts on this node can call elsewhere.
//
//   auto unit = std::make_shared<torch::jit::CompilationUnit>();
//   unit->define(c10::QualifiedName("model"), source, torch::jit::nativeResolver(), nullptr);
//   hawser::Node node({.name = "worker", ..., .scripts = std::make_shared<Program>(unit)});
//
// Thread-safe. What has been looked up is remembered: functions must not be removed from the unit.
class Program final : public NamedTypes {
 public:
  // Runs a look-up in the unit. Where functions may be compiled at the same time, it keeps that
  // from happening meanwhile.
  using LookUp = std::function<void(const std::function<void()>&)>;

  // Classes that C++ libraries have registered (torch::class_). Everybody who may send a value can
  // make an instance of one that has a __setstate__, and call its methods, all of which were
  // written for this process alone.
  enum class RegisteredClasses { Known, Unknown };

  explicit Program(std::shared_ptr<torch::jit::CompilationUnit> unit, LookUp look_up = nullptr,
                   RegisteredClasses registered = RegisteredClasses::Known);

  torch::jit::Function* find(const std::string& qualified_name) const;  // or null
  // Throws what libtorch throws: "attempted to get undefined function ...".
  torch::jit::Function& get(const std::string& qualified_name) const;
  c10::NamedTypePtr find_type(const std::string& qualified_name) const override;
  // Of an annotation such as "List[Tensor]"; null for what is none.
  c10::TypePtr parse_type(const std::string& annotation) const;

  // Reads a call of that name: arguments are fitted to the schema. Throws Error for what is wrong
  // with the request itself, and what libtorch throws when the arguments do not fit. `rule` is for
  // operators (kInterpreted).
  Invocation read(std::string_view name, wire::ReceivedPayload& payload,
                  const tensor::OperatorRule& rule) const;

  // The value as the script that asked for it declares it.
  c10::IValue read_result(wire::ReceivedPayload& payload, const c10::TypePtr& declared) const;

 private:
  Invocation read_interpreted(std::string_view name, PayloadReader& in,
                              const tensor::OperatorRule& rule) const;
  Stack read_stack(PayloadReader& in) const;

  const std::shared_ptr<torch::jit::CompilationUnit> unit_;
  const LookUp look_up_;
  const RegisteredClasses registered_;
  mutable std::shared_mutex mutex_;
  mutable std::unordered_map<std::string, torch::jit::Function*> functions_;
};

// Runs it here, as far as it goes without waiting. The result, or a future of it; throws what it
// raised.
c10::IValue start(Invocation&& invocation, const Launcher& launcher);

// ------ the other side ------

// Operators of the script interpreter that the dispatcher does not know (aten::add.int and the
// like) travel as script functions under this prefix.
inline constexpr std::string_view kInterpreted = "op:";

// The stack of a call: positional arguments, then keywords, then defaults. Throws what libtorch
// throws for its own functions, with the schema in the message.
Stack complete_stack(const c10::FunctionSchema& schema, Stack positional,
                     const std::unordered_map<std::string, c10::IValue>& keywords);

// Has positional arguments be of the types that the function declares, which the compiler of
// scripts and torch's bindings have seen to for theirs. Throws as complete_stack() does.
void fit_types(const c10::FunctionSchema& schema, Stack& positional);

wire::Payload write_call(Stack&& stack, bool asynchronous);

}  // namespace hawser::script
