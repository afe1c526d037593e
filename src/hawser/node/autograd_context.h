#pragma once

#include <vector>

#include "hawser/node/node.h"

namespace hawser::autograd {

// One forward computation over several nodes, and its gradients. While it lives, calls that this
// thread makes belong to it, with whatever they lead to elsewhere.
//
//   hawser::autograd::Context context(node);
//   at::Tensor loss = node.call<at::Tensor>("worker", "forward", x).get().sum();
//   context.backward({loss});
//   for (const auto& entry : context.gradients()) update(entry.key(), entry.value());
//
// Gradients are never added to `.grad`. Each node has those of its own leaves, until the context
// ends. Of one thread; there is at most one at a time on it.
class Context {
 public:
  explicit Context(Node& node);
  ~Context();
  Context(const Context&) = delete;

  ContextId id() const { return id_; }

  // Throws Error: what a function raised on any node (ErrorDetails::node), a node that was lost,
  // Timeout. Nothing has been added to any gradient then, and it may be tried again.
  void backward(const std::vector<at::Tensor>& roots, BackwardOptions options = {}) {
    node_.backward(id_, roots, options).get();
  }
  // Of this node's leaves, by leaf.
  hawser::Gradients gradients() const;

 private:
  Node& node_;
  const ContextId id_;
};

}  // namespace hawser::autograd
