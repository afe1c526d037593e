#pragma once

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hawser/autograd/ids.h"
#include "hawser/tensor/graph_tie.h"

// The two ends of a message in the graph of autograd. Forward, tensors go from a send function to
// the recv function of the same number on another node; backward, their gradients come back.
namespace hawser::engine {

using autograd::ContextId;
using autograd::MessageId;
using Tensors = std::vector<at::Tensor>;

// Where gradients of sent tensors enter the graph: its inputs are passed on to what made the
// tensors. Without state, so that several passes may run it at once.
class SendFunction final : public torch::autograd::Node {
 public:
  explicit SendFunction(const Tensors& sent);

  std::string name() const override { return "torch::distributed::autograd::SendRpcBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
};

// Where gradients of received tensors leave the graph.
class RecvFunction final : public torch::autograd::Node {
 public:
  // Of a message with that many tensors that require a gradient.
  RecvFunction(ContextId context, MessageId message, std::size_t tensors);

  ContextId context() const { return context_; }
  MessageId message() const { return message_; }

  std::string name() const override { return "torch::distributed::autograd::RecvRpcBackward"; }
  // Gives them to the pass that runs it; throws when it is run by anything else, which would lose
  // them.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  const ContextId context_;
  const MessageId message_;
};

class ReceivedHistory final : public tensor::History {
 public:
  explicit ReceivedHistory(c10::intrusive_ptr<RecvFunction> function)
      : function_(std::move(function)) {}
  void attach(const at::Tensor& tensor, std::uint32_t which) override;

 private:
  const c10::intrusive_ptr<RecvFunction> function_;
};

// For a payload that is read where it was written: its tensors stay in the graph they are in. Null
// for null.
std::shared_ptr<tensor::History> continued_here(const std::shared_ptr<wire::GraphTie>& written);

}  // namespace hawser::engine
