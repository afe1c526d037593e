#include "hawser/engine/functions.h"

#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

#include "hawser/base/error.h"
#include "hawser/engine/local_pass.h"

namespace hawser::engine {

using torch::autograd::variable_list;

SendFunction::SendFunction(const Tensors& sent) {
  for (const at::Tensor& tensor : sent) {
    add_next_edge(torch::autograd::impl::gradient_edge(tensor));
  }
}

variable_list SendFunction::apply(variable_list&& gradients) { return std::move(gradients); }

RecvFunction::RecvFunction(ContextId context, MessageId message, std::size_t tensors)
    : context_(context), message_(message) {
  for (std::size_t i = 0; i < tensors; ++i) add_input_metadata(undefined_input());
}

variable_list RecvFunction::apply(variable_list&& gradients) {
  // The sender's side goes on with what it gets, so where nothing has come it gets zeros.
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto& expected = input_metadata(i);
    if (!gradients[i].defined() && !expected.was_default_constructed()) {
      gradients[i] = expected.zeros_like();
    }
  }
  gradients.resize(num_inputs());
  LocalPass::running()->send(*this, std::move(gradients));
  return {};
}

namespace {

class LocalHistory final : public tensor::History {
 public:
  explicit LocalHistory(const Tensors& originals) : originals_(originals) {}
  void attach(const at::Tensor& tensor, std::uint32_t which) override {
    torch::autograd::impl::set_gradient_edge(
        tensor, torch::autograd::impl::gradient_edge(originals_.at(which)));
  }

 private:
  const Tensors originals_;
};

}  // namespace

std::shared_ptr<tensor::History> continued_here(const std::shared_ptr<wire::GraphTie>& written) {
  if (!written) return nullptr;
  return std::make_shared<LocalHistory>(
      static_cast<const tensor::Differentiable&>(*written).tensors);
}

void ReceivedHistory::attach(const at::Tensor& tensor, std::uint32_t which) {
  if (which >= function_->num_inputs()) {
    throw Error(ErrorKind::Invalid, "malformed value: more gradients than announced");
  }
  // It cannot be assigned to.
  auto& metadata = function_->mutable_input_metadata(which);
  std::destroy_at(&metadata);
  std::construct_at(&metadata, tensor);
  torch::autograd::impl::set_gradient_edge(tensor, {function_, which});
}

}  // namespace hawser::engine
