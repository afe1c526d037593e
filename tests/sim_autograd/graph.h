#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "hawser/autograd/ids.h"

namespace hawser::autograd::simulation {

// A function of the graph of the whole world. Numbers grow in the order in which functions are
// made, so no function depends on a higher number.
using FunctionNumber = std::uint64_t;
using Gradient = std::uint64_t;  // integers: sums are exact in any order

// One result of a function.
struct Value {
  FunctionNumber function = 0;
  std::size_t slot = 0;
  auto operator<=>(const Value&) const = default;
};

struct Function {
  enum class Kind { Leaf, Sum, Send, Recv };
  struct Input {
    Value value;
    Gradient factor = 1;
  };
  Kind kind = Kind::Leaf;
  Party on;                     // where it lives
  ContextId context{};          // of all but leaves
  std::vector<Input> inputs{};  // Sum: weighted terms; Send: what is sent, by slot
  FunctionNumber sent_by = 0;   // Recv: the send function at the other end
  std::size_t slots = 1;
};

// What was computed, as if it had been on one node: it knows which function depends on which, and
// nothing of messages, contexts and passes.
class Graph {
 public:
  FunctionNumber leaf(const Party& on);
  FunctionNumber sum(const Party& on, ContextId context, std::vector<Function::Input> terms);
  FunctionNumber send(const Party& on, ContextId context, const std::vector<Value>& values);
  FunctionNumber recv(const Party& on, ContextId context, FunctionNumber sent_by);

  const Function& at(FunctionNumber number) const { return functions_[number]; }
  std::size_t size() const { return functions_.size(); }

  struct Backward {
    std::map<FunctionNumber, Gradient> leaves;
    std::set<FunctionNumber> reached;
  };
  // The gradient of the sum of these values.
  Backward backward(const std::vector<Value>& roots) const;

 private:
  FunctionNumber add(Function function);
  std::vector<Function> functions_{1};  // 0: none
};

}  // namespace hawser::autograd::simulation
