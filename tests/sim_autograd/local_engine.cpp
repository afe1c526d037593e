#include "sim_autograd/local_engine.h"

#include <utility>

namespace hawser::autograd::simulation {

using Kind = Function::Kind;

LocalEngine::LocalEngine(const Graph& graph, std::vector<Value> roots,
                         std::map<MessageId, FunctionNumber> awaited)
    : graph_(graph), awaited_(std::move(awaited)) {
  std::set<FunctionNumber> seen;
  for (const Value& root : roots) {
    ++dependencies_[root.function];
    count_dependencies(root.function, seen);
  }
  for (const auto& [message, send] : awaited_) count_dependencies(send, seen);
  for (const Value& root : roots) give(root, 1);
}

// Iterative: graphs may be deep.
void LocalEngine::count_dependencies(FunctionNumber start, std::set<FunctionNumber>& seen) {
  std::vector<FunctionNumber> next;
  if (seen.insert(start).second) next.push_back(start);
  while (!next.empty()) {
    const FunctionNumber number = next.back();
    next.pop_back();
    for (const auto& input : graph_.at(number).inputs) {
      ++dependencies_[input.value.function];
      if (seen.insert(input.value.function).second) next.push_back(input.value.function);
    }
  }
}

void LocalEngine::give(const Value& value, Gradient gradient) {
  auto& slots = gradients_[value.function];
  slots.resize(graph_.at(value.function).slots);
  slots[value.slot] += gradient;
  if (--dependencies_[value.function] == 0) ready_.push_back(value.function);
}

void LocalEngine::deliver(MessageId send, std::vector<Gradient> gradients) {
  const FunctionNumber number = awaited_.at(send);
  awaited_.erase(send);
  gradients_[number] = std::move(gradients);
  ready_.push_back(number);
}

std::optional<LocalEngine::Out> LocalEngine::step(std::size_t which) {
  const FunctionNumber number = ready_[which];
  ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(which));
  const std::vector<Gradient> slots = std::move(gradients_[number]);
  const Function& function = graph_.at(number);
  switch (function.kind) {
    case Kind::Leaf:
      collected_[number] += slots[0];
      break;
    case Kind::Sum:
      for (const auto& input : function.inputs) give(input.value, input.factor * slots[0]);
      break;
    case Kind::Send:
      for (std::size_t i = 0; i < slots.size(); ++i) give(function.inputs[i].value, slots[i]);
      break;
    case Kind::Recv:
      return Out{number, slots};
  }
  return std::nullopt;
}

std::set<FunctionNumber> reachable_recvs(const Graph& graph,
                                         const std::vector<FunctionNumber>& from) {
  std::set<FunctionNumber> seen(from.begin(), from.end()), recvs;
  std::vector<FunctionNumber> next(seen.begin(), seen.end());
  while (!next.empty()) {
    const FunctionNumber number = next.back();
    next.pop_back();
    if (graph.at(number).kind == Kind::Recv) recvs.insert(number);
    for (const auto& input : graph.at(number).inputs) {
      if (seen.insert(input.value.function).second) next.push_back(input.value.function);
    }
  }
  return recvs;
}

}  // namespace hawser::autograd::simulation
