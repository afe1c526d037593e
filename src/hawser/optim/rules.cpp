#include "hawser/optim/rules.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/maximum.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace hawser::optim {
namespace {

bool fits(const Change& change) {
  const auto& [parameter, gradient] = change;
  return !parameter.is_complex() && gradient.scalar_type() == parameter.scalar_type() &&
         gradient.device() == parameter.device() && gradient.sizes() == parameter.sizes();
}

bool fits_densely(const Change& change) {
  return fits(change) && change.gradient.layout() == at::kStrided;
}

bool are_there(std::initializer_list<at::Tensor> states) {
  return std::ranges::all_of(states, &at::Tensor::defined);
}

// What the parameter would be moved against, if it were not for the rule.
at::Tensor direction_of(const Change& change, bool maximize, double weight_decay) {
  const at::Tensor direction = maximize ? change.gradient.neg() : change.gradient;
  return weight_decay == 0 ? direction : direction.add(change.parameter, weight_decay);
}

}  // namespace

// ------------------------------------------------------------------------------- SGD

bool applies(const Sgd& rule, const Change& change, const Sgd::State& state) {
  const bool plain = rule.momentum == 0 && rule.weight_decay == 0;
  return (plain ? fits(change) : fits_densely(change)) &&
         (rule.momentum == 0 || state.momentum_buffer.defined());
}

void apply(const Sgd& rule, const Change& change, const Sgd::State& state) {
  at::Tensor direction = direction_of(change, rule.maximize, rule.weight_decay);
  if (rule.momentum != 0) {
    const at::Tensor& buffer = state.momentum_buffer;
    buffer.mul_(rule.momentum).add_(direction, 1 - rule.dampening);
    direction = rule.nesterov ? direction.add(buffer, rule.momentum) : buffer;
  }
  change.parameter.add_(direction, -rule.lr);
}

// ------------------------------------------------------------------------------- Adam, AdamW

bool applies(const Adam& rule, const Change& change, const Adam::State& state) {
  return fits_densely(change) && are_there({state.step, state.exp_avg, state.exp_avg_sq}) &&
         (!rule.amsgrad || state.max_exp_avg_sq.defined());
}

void apply(const Adam& rule, const Change& change, const Adam::State& state) {
  const bool decoupled = rule.decoupled_weight_decay;
  state.step.add_(1);
  if (decoupled && rule.weight_decay != 0) {
    change.parameter.mul_(1 - rule.lr * rule.weight_decay);
  }
  const at::Tensor direction =
      direction_of(change, rule.maximize, decoupled ? 0 : rule.weight_decay);
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
  change.parameter.addcdiv_(state.exp_avg, divisor, -(rule.lr / correction1));
}

// ------------------------------------------------------------------------------- Adamax

bool applies(const Adamax&, const Change& change, const Adamax::State& state) {
  return fits_densely(change) && are_there({state.step, state.exp_avg, state.exp_inf});
}

void apply(const Adamax& rule, const Change& change, const Adamax::State& state) {
  at::Tensor norm = state.exp_inf;
  state.step.add_(1);
  const at::Tensor direction = direction_of(change, rule.maximize, rule.weight_decay);
  state.exp_avg.lerp_(direction, 1 - rule.beta1);
  at::maximum_out(norm, norm.mul_(rule.beta2), direction.abs().add_(rule.eps));
  const double correction = 1 - std::pow(rule.beta1, state.step.item<double>());
  change.parameter.addcdiv_(state.exp_avg, norm, -(rule.lr / correction));
}

// ------------------------------------------------------------------------------- Adagrad

bool applies(const Adagrad& rule, const Change& change, const Adagrad::State& state) {
  const bool sparse = rule.weight_decay == 0 && change.gradient.layout() == at::kSparse;
  return (sparse ? fits(change) : fits_densely(change)) && are_there({state.step, state.sum});
}

void apply(const Adagrad& rule, const Change& change, const Adagrad::State& state) {
  state.step.add_(1);
  const double rate = rule.lr / (1 + (state.step.item<double>() - 1) * rule.lr_decay);
  const at::Tensor direction = direction_of(change, rule.maximize, rule.weight_decay);
  if (direction.layout() == at::kStrided) {
    state.sum.addcmul_(direction, direction, 1);
    change.parameter.addcdiv_(direction, state.sum.sqrt().add_(rule.eps), -rate);
    return;
  }
  const at::Tensor rows = direction.coalesce();  // each once: their squares are not added
  const auto at_rows = [&](const at::Tensor& values) {
    return at::_sparse_coo_tensor_unsafe(rows._indices(), values, rows.sizes());
  };
  state.sum.add_(at_rows(rows._values().pow(2)));
  const at::Tensor divisor = state.sum.sparse_mask(rows)._values().sqrt_().add_(rule.eps);
  change.parameter.add_(at_rows(rows._values().div(divisor)), -rate);
}

// ------------------------------------------------------------------------------- Adadelta

bool applies(const Adadelta&, const Change& change, const Adadelta::State& state) {
  return fits_densely(change) && are_there({state.step, state.square_avg, state.acc_delta});
}

void apply(const Adadelta& rule, const Change& change, const Adadelta::State& state) {
  state.step.add_(1);
  const at::Tensor direction = direction_of(change, rule.maximize, rule.weight_decay);
  state.square_avg.mul_(rule.rho).addcmul_(direction, direction, 1 - rule.rho);
  const at::Tensor divisor = state.square_avg.add(rule.eps).sqrt_();
  const at::Tensor delta = state.acc_delta.add(rule.eps).sqrt_().div_(divisor).mul_(direction);
  state.acc_delta.mul_(rule.rho).addcmul_(delta, delta, 1 - rule.rho);
  change.parameter.add_(delta, -rule.lr);
}

// ------------------------------------------------------------------------------- RMSprop

bool applies(const RmsProp& rule, const Change& change, const RmsProp::State& state) {
  return fits_densely(change) && are_there({state.step, state.square_avg}) &&
         (rule.momentum == 0 || state.momentum_buffer.defined()) &&
         (!rule.centered || state.grad_avg.defined());
}

void apply(const RmsProp& rule, const Change& change, const RmsProp::State& state) {
  state.step.add_(1);
  const at::Tensor direction = direction_of(change, rule.maximize, rule.weight_decay);
  state.square_avg.mul_(rule.alpha).addcmul_(direction, direction, 1 - rule.alpha);
  at::Tensor divisor;
  if (rule.centered) {
    state.grad_avg.lerp_(direction, 1 - rule.alpha);
    divisor = state.square_avg.addcmul(state.grad_avg, state.grad_avg, -1).sqrt_();
  } else {
    divisor = state.square_avg.sqrt();
  }
  divisor.add_(rule.eps);
  if (rule.momentum > 0) {
    state.momentum_buffer.mul_(rule.momentum).addcdiv_(direction, divisor);
    change.parameter.add_(state.momentum_buffer, -rule.lr);
  } else {
    change.parameter.addcdiv_(direction, divisor, -rule.lr);
  }
}

// ------------------------------------------------------------------------------- Rprop

bool applies(const Rprop&, const Change& change, const Rprop::State& state) {
  return fits_densely(change) && are_there({state.step, state.prev, state.step_size});
}

void apply(const Rprop& rule, const Change& change, const Rprop::State& state) {
  state.step.add_(1);
  const at::Tensor direction = direction_of(change, rule.maximize, 0).clone();
  const at::Tensor factor = direction.mul(state.prev).sign();
  factor.masked_fill_(factor.gt(0), rule.eta_plus);
  factor.masked_fill_(factor.lt(0), rule.eta_minus);
  factor.masked_fill_(factor.eq(0), 1);
  state.step_size.mul_(factor).clamp_(rule.step_size_min, rule.step_size_max);
  direction.masked_fill_(factor.eq(rule.eta_minus), 0);  // not where it has just turned round
  change.parameter.addcmul_(direction.sign(), state.step_size, -1);
  state.prev.copy_(direction);
}

}  // namespace hawser::optim
