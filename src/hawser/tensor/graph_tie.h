#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "hawser/wire/message.h"

// How tensors that travel stay in the graph of autograd. Both count only the tensors of a payload
// that require a gradient, in the order in which the payload describes them.
namespace hawser::tensor {

// Of a payload to be sent.
struct Differentiable final : wire::GraphTie {
  explicit Differentiable(std::vector<at::Tensor> the_tensors) : tensors(std::move(the_tensors)) {}
  const std::vector<at::Tensor> tensors;
};

// Of a payload that was received.
class History : public wire::GraphTie {
 public:
  // `tensor` is new, and has no history yet.
  virtual void attach(const at::Tensor& tensor, std::uint32_t which) = 0;
};

}  // namespace hawser::tensor
