#include "hawser/script/operators.h"

#include <ATen/core/function.h>
#include <ATen/core/function_schema.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hawser/base/guarded.h"

namespace hawser::script {
namespace {

using c10::AliasAnalysisKind;
using torch::distributed::rpc::WorkerInfo;
using torch::jit::Node;

using torch::jit::Operation;

constexpr double kUnsetTimeout = -1;

// One operator, and what it is to become.
struct Replacement {
  std::string schema;  // only a name where the operator takes anything: "prim::rpc_async"
  AliasAnalysisKind alias_analysis;
  // Makes what runs one use of the operator in a script; `stock` is what torch would run.
  std::function<Operation(const Node* use, Operation stock)> make;
};

// Seconds as scripts give them: -1 for the node's own limit, 0 for none.
std::optional<Duration> timeout_of(double seconds) {
  if (seconds == kUnsetTimeout) return std::nullopt;
  TORCH_CHECK(seconds >= 0, "a timeout cannot be negative, except -1 for the default: ", seconds);
  const std::chrono::duration<double> limit(seconds);
  if (seconds == 0 || limit > std::chrono::hours(24 * 365 * 100)) return Duration::max();
  return std::max(std::chrono::duration_cast<Duration>(limit), Duration(1));
}

// ------------------------------------------------------------------------------- calls

std::string name_of(const c10::IValue& destination) {
  if (destination.isString()) return destination.toStringRef();
  return destination.toCustomClass<WorkerInfo>()->name_;
}

// Takes `count` values: destination, function, and as far as they are given the arguments in a
// tuple, the keywords in a dict, and the time limit.
OutgoingCall take_call(const Host& host, Stack& stack, std::size_t count) {
  std::vector<c10::IValue> given = torch::jit::pop(stack, count);
  OutgoingCall call{.to = name_of(given[0]),
                    .function = given[1].toStringRef(),
                    .payload = {},
                    .returns = nullptr,
                    .timeout = std::nullopt};
  const torch::jit::Function& function = host.program().get(call.function);
  const c10::FunctionSchema& schema = function.getSchema();
  TORCH_CHECK(schema.returns().size() == 1, schema, " has not one result");
  call.returns = schema.returns()[0].type();
  Stack positional;
  if (count > 2) positional = std::move(given[2]).toTuple()->elements().vec();
  std::unordered_map<std::string, c10::IValue> keywords;
  if (count > 3) {
    for (const auto& entry : given[3].toGenericDict()) {
      keywords.emplace(entry.key().toStringRef(), entry.value());
    }
  }
  if (count > 4) call.timeout = timeout_of(given[4].toScalar().toDouble());
  given.clear();
  call.payload = write_call(complete_stack(schema, std::move(positional), keywords),
                            /*asynchronous=*/false);
  return call;
}

// One of the three ways to call, as an operator.
template <class Act>
Replacement calling(std::string name, FindHost find, Act act) {
  return {std::move(name), AliasAnalysisKind::INTERNAL_SPECIAL_CASE,
          [find, act](const Node* use, Operation stock) -> Operation {
            const std::size_t count = use->inputs().size();
            return [find, act, count, stock = std::move(stock)](Stack& stack) mutable {
              Host* const host = find();
              if (!host) return stock(stack);
              stack.push_back(act(*host, take_call(*host, stack, count)));
            };
          }};
}

// ------------------------------------------------------------------------------- references

// What a script takes the result to be.
c10::TypePtr declared_by(const Node* use) {
  return use && use->outputs().size() == 1 ? use->output()->type() : nullptr;
}

// An operator on the reference that is `depth` below the top of the stack. Those of torch's own
// are left to torch's own operator.
template <class Act>
Replacement on_reference(std::string schema, std::size_t depth, Act act) {
  return {std::move(schema), AliasAnalysisKind::FROM_SCHEMA,
          [depth, act](const Node* use, Operation stock) -> Operation {
            return [depth, act, declared = declared_by(use),
                    stock = std::move(stock)](Stack& stack) mutable {
              const auto rref = stack[stack.size() - 1 - depth].toRRef();
              auto* const reference = dynamic_cast<Reference*>(rref.get());
              if (!reference) return stock(stack);
              c10::IValue result = act(*reference, stack, declared);
              torch::jit::drop(stack, depth + 1);
              stack.push_back(std::move(result));
            };
          }};
}

// ------------------------------------------------------------------------------- autograd

// `act` takes its arguments from the stack, and puts its result there.
template <class Act>
Replacement with_host(std::string schema, AliasAnalysisKind alias_analysis, FindHost find,
                      Act act) {
  return {std::move(schema), alias_analysis,
          [find, act](const Node*, Operation stock) -> Operation {
            return [find, act, stock = std::move(stock)](Stack& stack) mutable {
              Host* const host = find();
              if (!host) return stock(stack);
              act(*host, stack);
            };
          }};
}

void get_gradients(Host& host, Stack& stack) {
  stack.push_back(host.gradients(torch::jit::pop(stack).toInt()));
}

void run_backward(Host& host, Stack& stack) {
  const bool retain_graph = torch::jit::pop(stack).toBool();
  const auto roots = torch::jit::pop(stack).toTensorVector();
  host.backward(torch::jit::pop(stack).toInt(), roots, retain_graph);
}

std::vector<Replacement> all(FindHost find) {
  return {
      calling("prim::rpc_async", find,
              [](Host& host, OutgoingCall&& call) -> c10::IValue {
                return host.call(std::move(call));
              }),
      calling("prim::rpc_sync", find,
              [](Host& host, OutgoingCall&& call) -> c10::IValue {
                return host.call_and_wait(std::move(call));
              }),
      calling("prim::rpc_remote", find,
              [](Host& host, OutgoingCall&& call) -> c10::IValue {
                return host.create(std::move(call));
              }),
      // Torch's own has a limit of 60 s here, whatever that of the node is.
      on_reference("aten::to_here(RRef(t) self, float timeout=-1.0) -> t(*)", 1,
                   [](Reference& reference, Stack& stack, const c10::TypePtr& declared) {
                     return reference.to_here(timeout_of(stack.back().toDouble()), declared);
                   }),
      on_reference("aten::local_value(RRef(t) self) -> t(*)", 0,
                   [](Reference& reference, Stack&, const c10::TypePtr& declared) {
                     TORCH_CHECK(reference.isOwner(),
                                 "Can't call RRef.local_value() on a non-owner RRef.");
                     return reference.local_value(declared);
                   }),
      on_reference("aten::is_owner(RRef(t) self) -> bool", 0,
                   [](Reference& reference, Stack&, const c10::TypePtr&) -> c10::IValue {
                     return reference.isOwner();
                   }),
      on_reference("aten::owner(RRef(t) self) -> __torch__.torch.classes.dist_rpc.WorkerInfo", 0,
                   [](Reference& reference, Stack&, const c10::TypePtr&) -> c10::IValue {
                     return c10::make_intrusive<WorkerInfo>(reference.ownerName(),
                                                            reference.owner());
                   }),
      on_reference("aten::owner_name(RRef(t) self) -> str", 0,
                   [](Reference& reference, Stack&, const c10::TypePtr&) -> c10::IValue {
                     return reference.ownerName();
                   }),
      on_reference("aten::confirmed_by_owner(RRef(t) self) -> bool", 0,
                   [](Reference& reference, Stack&, const c10::TypePtr&) -> c10::IValue {
                     return reference.confirmedByOwner();
                   }),
      with_host("aten::get_gradients(int context_id) -> Dict(Tensor, Tensor)",
                AliasAnalysisKind::FROM_SCHEMA, find, get_gradients),
      // It has no result: nothing less keeps it from being optimised away.
      with_host(
          "aten::dist_backward(int context_id, Tensor[] roots, bool retain_graph=False) -> ()",
          AliasAnalysisKind::CONSERVATIVE, find, run_backward),
  };
}

// ------------------------------------------------------------------------------- the registry

// What has been replaced, by the name of the operator. For the whole process, as torch's own
// registry is, which takes nothing but a plain function; never destroyed.
struct Replaced {
  Replacement by;
  std::shared_ptr<torch::jit::Operator> stock;  // null without Python: libtorch alone has none

  Operation stock_operation(const Node* use) const {
    if (stock) return stock->getOperation(use);
    return [](Stack&) {
      throw Error(ErrorKind::Invalid, "there is no node in this process that scripts could use");
    };
  }
};
Guarded<std::unordered_map<c10::Symbol, Replaced>>& replaced() {
  static auto* const known = new Guarded<std::unordered_map<c10::Symbol, Replaced>>;
  return *known;
}

Operation make_operation(const Node* use) {
  const Replaced found = replaced().lock()->at(use->kind());
  return found.by.make(use, found.stock_operation(use));
}

// The operator must have no overloads.
void replace_operator(Replacement replacement) {
  const std::string schema = replacement.schema;
  const std::string name = schema.substr(0, schema.find('('));
  const auto symbol = c10::Symbol::fromQualString(name);
  const auto alias_analysis = replacement.alias_analysis;
  const auto& present = torch::jit::getAllOperatorsFor(symbol);
  TORCH_CHECK(present.size() <= 1, "expected one operator ", name, ", found ", present.size());
  const auto stock = present.empty() ? nullptr : present.front();
  replaced().lock()->insert_or_assign(symbol, Replaced{std::move(replacement), stock});
  if (stock) torch::jit::deregisterOperator(stock->schema());
  torch::jit::registerOperator(name == schema
                                   ? torch::jit::Operator(symbol, make_operation, alias_analysis)
                                   : torch::jit::Operator(schema, make_operation, alias_analysis));
}

}  // namespace

void replace_operators(FindHost find) {
  static std::once_flag once;
  std::call_once(once, [find] {
    const torch::distributed::rpc::RegisterWorkerInfoOnce known_to_scripts;
    for (Replacement& replacement : all(find)) replace_operator(std::move(replacement));
  });
}

}  // namespace hawser::script
