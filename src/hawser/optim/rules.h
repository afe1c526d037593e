#pragma once

#include <ATen/core/Tensor.h>

#include <variant>

// What optimizers of torch do to one parameter in a step: the same operations in the same order as
// torch's own, in Python, uses for single tensors. So the results agree to the last bit, and it
// does not matter which of the two a step takes.
namespace hawser::optim {

struct Sgd {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

struct Adam {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  bool decoupled_weight_decay = false;  // what AdamW does
};

using Rule = std::variant<Sgd, Adam>;

// What the optimizer keeps of a parameter, changed in place by every step. Undefined where a rule
// has no use for it, or before the first step.
struct SgdState {
  at::Tensor momentum_buffer;
};
struct AdamState {
  at::Tensor step;  // a number
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor max_exp_avg_sq;
};

// Whether `apply` can do it: it begins no state, and leaves complex numbers, unusual sparse
// gradients, and mistakes, to torch.
bool applies(const Sgd& rule, const at::Tensor& parameter, const at::Tensor& gradient,
             const SgdState& state);
bool applies(const Adam& rule, const at::Tensor& parameter, const at::Tensor& gradient,
             const AdamState& state);

// Without gradients being recorded.
void apply(const Sgd& rule, const at::Tensor& parameter, const at::Tensor& gradient,
           const SgdState& state);
void apply(const Adam& rule, const at::Tensor& parameter, const at::Tensor& gradient,
           const AdamState& state);

}  // namespace hawser::optim
