#include "sim_autograd/graph.h"

#include <utility>

namespace hawser::autograd::simulation {

FunctionNumber Graph::add(Function function) {
  functions_.push_back(std::move(function));
  return functions_.size() - 1;
}

FunctionNumber Graph::leaf(const Party& on) {
  return add({.kind = Function::Kind::Leaf, .on = on});
}

FunctionNumber Graph::sum(const Party& on, ContextId context, std::vector<Function::Input> terms) {
  return add(
      {.kind = Function::Kind::Sum, .on = on, .context = context, .inputs = std::move(terms)});
}

FunctionNumber Graph::send(const Party& on, ContextId context, const std::vector<Value>& values) {
  Function function{.kind = Function::Kind::Send, .on = on, .context = context};
  for (const Value& value : values) function.inputs.push_back({value, 1});
  function.slots = values.size();
  return add(std::move(function));
}

FunctionNumber Graph::recv(const Party& on, ContextId context, FunctionNumber sent_by) {
  return add({.kind = Function::Kind::Recv,
              .on = on,
              .context = context,
              .sent_by = sent_by,
              .slots = at(sent_by).slots});
}

Graph::Backward Graph::backward(const std::vector<Value>& roots) const {
  Backward result;
  std::map<FunctionNumber, std::vector<Gradient>> gradients;
  const auto add_to = [&](const Value& value, Gradient gradient) {
    auto& slots = gradients[value.function];
    slots.resize(at(value.function).slots);
    slots[value.slot] += gradient;
  };
  for (const Value& root : roots) add_to(root, 1);
  while (!gradients.empty()) {
    const auto [number, slots] = *gradients.rbegin();
    gradients.erase(number);
    result.reached.insert(number);
    const Function& function = at(number);
    switch (function.kind) {
      case Function::Kind::Leaf:
        result.leaves[number] += slots[0];
        break;
      case Function::Kind::Sum:
        for (const auto& input : function.inputs) add_to(input.value, input.factor * slots[0]);
        break;
      case Function::Kind::Send:
        for (std::size_t i = 0; i < slots.size(); ++i) add_to(function.inputs[i].value, slots[i]);
        break;
      case Function::Kind::Recv:
        for (std::size_t i = 0; i < slots.size(); ++i) add_to({function.sent_by, i}, slots[i]);
        break;
    }
  }
  return result;
}

}  // namespace hawser::autograd::simulation
