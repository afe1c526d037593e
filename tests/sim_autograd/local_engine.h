#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "hawser/autograd/actions.h"
#include "sim_autograd/graph.h"

namespace hawser::autograd::simulation {

// What torch's engine does for the local part of one pass: runs each function once, when all that
// it depends on has run. A step at a time; what comes first is for the caller to draw.
class LocalEngine {
 public:
  // Gradients that leave the node: of this recv function.
  struct Out {
    FunctionNumber recv = 0;
    std::vector<Gradient> gradients;
  };

  LocalEngine(const Graph& graph, std::vector<Value> roots,
              std::map<MessageId, FunctionNumber> awaited);

  bool is_awaited(MessageId send) const { return awaited_.contains(send); }
  void deliver(MessageId send, std::vector<Gradient> gradients);

  bool can_step() const { return !ready_.empty(); }
  std::size_t ready() const { return ready_.size(); }
  FunctionNumber peek(std::size_t which) const { return ready_[which]; }
  std::optional<Out> step(std::size_t which);
  bool ended() const { return ready_.empty() && awaited_.empty(); }

  const std::map<FunctionNumber, Gradient>& collected() const { return collected_; }

 private:
  void count_dependencies(FunctionNumber number, std::set<FunctionNumber>& seen);
  void give(const Value& value, Gradient gradient);

  const Graph& graph_;
  std::map<MessageId, FunctionNumber> awaited_;
  std::map<FunctionNumber, std::size_t> dependencies_;
  std::map<FunctionNumber, std::vector<Gradient>> gradients_;
  std::vector<FunctionNumber> ready_;
  std::map<FunctionNumber, Gradient> collected_;
};

// The recv functions that can be reached in the local graph from these functions.
std::set<FunctionNumber> reachable_recvs(const Graph& graph,
                                         const std::vector<FunctionNumber>& from);

}  // namespace hawser::autograd::simulation
