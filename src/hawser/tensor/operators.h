#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hawser/base/guarded.h"
#include "hawser/tensor/operator_rule.h"

// Calling libtorch's own operators by name, without Python: "aten::add", or "aten::add.Tensor" to
// name the overload. The caller chooses the overload and fills in the defaults, so that what
// travels is complete and an error is found before anything is sent.
namespace hawser::tensor {

struct MatchedOperator {
  std::string name;                // with its overload: "aten::add.Tensor"
  std::vector<c10::IValue> stack;  // every argument of the schema, converted to its type
};

// Knows which overloads there are. Thread-safe.
class OperatorCatalog {
 public:
  using Keywords = std::map<std::string, c10::IValue, std::less<>>;

  // The overload that takes these arguments with the fewest conversions, then with the fewest
  // defaults. Converted are: int to float or complex, a single number to a list of fixed length
  // (int[2] stride), a tuple to a list, and, for the arithmetic operators only and only if nothing
  // else fits, a number to a tensor.
  // Throws Error(Invalid), listing the overloads and what is wrong with each, when none fits or
  // two fit equally well; or when there is no such operator.
  MatchedOperator match(std::string_view name, const std::vector<c10::IValue>& args,
                        const Keywords& keywords = {});

 private:
  // Overload names of an operator. Looked up anew when unknown: libraries register operators at
  // any time.
  std::vector<std::string> overloads(const std::string& name);

  Guarded<std::unordered_map<std::string, std::vector<std::string>>> known_;
};

// Runs an operator on a complete stack and returns its results. The stack may come from a peer: it
// is checked against the schema. Throws Error(Invalid) if it does not fit or there is no such
// operator, Error(Refused) if the rule does not allow it; what the operator itself throws passes
// through.
std::vector<c10::IValue> run_operator(std::string_view name, std::vector<c10::IValue> stack,
                                      const OperatorRule& rule);

// The value as a `type`, with the conversions above (numbers do not become tensors); nothing when
// it is not one. Lists get the element type, which they may have lost on the way.
std::optional<c10::IValue> converted(c10::IValue value, const c10::TypePtr& type);

}  // namespace hawser::tensor
