#include "hawser/optim/rules.h"

#include <ATen/ops/maximum.h>

#include <cmath>

namespace hawser::optim {
namespace {

bool fits(const at::Tensor& parameter, const at::Tensor& gradient) {
  return !parameter.is_complex() && gradient.scalar_type() == parameter.scalar_type() &&
         gradient.device() == parameter.device() && gradient.sizes() == parameter.sizes();
}

}  // namespace

bool applies(const Sgd& rule, const at::Tensor& parameter, const at::Tensor& gradient,
             const SgdState& state) {
  const bool plain = rule.momentum == 0 && rule.weight_decay == 0;
  return fits(parameter, gradient) && (plain || gradient.layout() == at::kStrided) &&
         (rule.momentum == 0 || state.momentum_buffer.defined());
}

bool applies(const Adam& rule, const at::Tensor& parameter, const at::Tensor& gradient,
             const AdamState& state) {
  return fits(parameter, gradient) && gradient.layout() == at::kStrided && state.step.defined() &&
         state.exp_avg.defined() && state.exp_avg_sq.defined() &&
         (!rule.amsgrad || state.max_exp_avg_sq.defined());
}

void apply(const Sgd& rule, const at::Tensor& parameter, const at::Tensor& gradient,
           const SgdState& state) {
  at::Tensor direction = rule.maximize ? gradient.neg() : gradient;
  if (rule.weight_decay != 0) direction = direction.add(parameter, rule.weight_decay);
  if (rule.momentum != 0) {
    const at::Tensor& buffer = state.momentum_buffer;
    buffer.mul_(rule.momentum).add_(direction, 1 - rule.dampening);
    direction = rule.nesterov ? direction.add(buffer, rule.momentum) : buffer;
  }
  parameter.add_(direction, -rule.lr);
}

void apply(const Adam& rule, const at::Tensor& parameter, const at::Tensor& gradient,
           const AdamState& state) {
  at::Tensor direction = rule.maximize ? gradient.neg() : gradient;
  state.step.add_(1);
  if (rule.weight_decay != 0) {
    if (rule.decoupled_weight_decay) {
      parameter.mul_(1 - rule.lr * rule.weight_decay);
    } else {
      direction = direction.add(parameter, rule.weight_decay);
    }
  }
  state.exp_avg.lerp_(direction, 1 - rule.beta1);
  state.exp_avg_sq.mul_(rule.beta2).addcmul_(direction, direction, 1 - rule.beta2);

  const double step = state.step.item<double>();
  const double correction1 = 1 - std::pow(rule.beta1, step);
  const double correction2 = 1 - std::pow(rule.beta2, step);
  at::Tensor second_moment = state.exp_avg_sq;
  if (rule.amsgrad) {
    second_moment = state.max_exp_avg_sq;
    at::maximum_out(second_moment, second_moment, state.exp_avg_sq);
  }
  const at::Tensor divisor = second_moment.sqrt().div(std::pow(correction2, 0.5)).add_(rule.eps);
  parameter.addcdiv_(state.exp_avg, divisor, -(rule.lr / correction1));
}

}  // namespace hawser::optim
