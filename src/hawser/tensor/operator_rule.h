#pragma once

#include <set>
#include <string>
#include <vector>

namespace c10 {
struct FunctionSchema;
}

namespace hawser::tensor {

// Which of libtorch's operators a node runs for others. A value; safe to share once made.
//
// Kernels are written for arguments that a program gives them, not for those of an attacker. A node
// that cannot trust its peers should name the operators that it needs.
class OperatorRule {
 public:
  // Any, except those that open files.
  OperatorRule() = default;
  // Only these: "aten::add" is that operator with all its overloads; "aten::*" are the public ones
  // of a namespace, see is_public(). Throws Error(Invalid) for what is neither.
  explicit OperatorRule(const std::vector<std::string>& allowed);

  // Throws Error(Refused).
  void check(const c10::FunctionSchema& schema) const;

 private:
  bool allows(const c10::FunctionSchema& schema) const;

  bool any_ = true;
  std::set<std::string, std::less<>> names_;
  std::set<std::string, std::less<>> namespaces_;
};

// What `namespace::*` means: the operator computes its results from its arguments, and nothing
// else. Those that work for their side effects have no result; names of libtorch's internals, which
// leave checks to their callers, begin with '_'. Of the rest, these are left out: what opens files,
// returns memory as it was found, packs pointers into tensors, lets the caller turn checks off, or
// goes to other nodes.
bool is_public(const c10::FunctionSchema& schema);

}  // namespace hawser::tensor
