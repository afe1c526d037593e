#pragma once

#include <vector>

#include "hawser/node/node.h"

namespace hawser::autograd {

// Of that node's leaves in that context, in which it has taken part. For handlers:
//   gradients(call.node(), *call.autograd_context())
hawser::Gradients gradients(const Node& node, ContextId context);

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
    node_.run_backward(id_, roots, options);
  }
  // Of this node's leaves, by leaf.
  hawser::Gradients gradients() const { return autograd::gradients(node_, id_); }

 private:
  Node& node_;
  const ContextId id_;
};

}  // namespace hawser::autograd
