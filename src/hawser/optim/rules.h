#pragma once

#include <ATen/core/Tensor.h>

// What optimizers of torch do to one parameter in a step: the same operations in the same order as
// torch's own, in Python, uses for single tensors. So the results agree to the last bit, and it
// does not matter which of the two a step takes. These are the optimizers of which torch has
// functional forms for its own distributed optimizer.
//
// A rule has the options, under torch's names, and says what the optimizer keeps of a parameter,
// its State, which every step changes in place. Tensors of a state are undefined where the options
// have no use for them, or before the first step.
namespace hawser::optim {

struct Sgd {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;

  struct State {
    at::Tensor momentum_buffer;
  };
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

  struct State {
    at::Tensor step;  // a number
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
    at::Tensor max_exp_avg_sq;
  };
};

struct Adamax {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool maximize = false;

  struct State {
    at::Tensor step;
    at::Tensor exp_avg;
    at::Tensor exp_inf;
  };
};

struct Adagrad {
  double lr = 0;
  double lr_decay = 0;
  double eps = 0;
  double weight_decay = 0;
  bool maximize = false;

  struct State {
    at::Tensor step;
    at::Tensor sum;
  };
};

struct Adadelta {
  double lr = 0;
  double rho = 0;
  double eps = 0;
  double weight_decay = 0;
  bool maximize = false;

  struct State {
    at::Tensor step;
    at::Tensor square_avg;
    at::Tensor acc_delta;
  };
};

struct RmsProp {
  double lr = 0;
  double alpha = 0;
  double eps = 0;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;

  struct State {
    at::Tensor step;
    at::Tensor square_avg;
    at::Tensor momentum_buffer;
    at::Tensor grad_avg;
  };
};

struct Rprop {
  double eta_minus = 0;
  double eta_plus = 0;
  double step_size_min = 0;
  double step_size_max = 0;
  bool maximize = false;

  struct State {
    at::Tensor step;
    at::Tensor prev;
    at::Tensor step_size;  // begins as the rate
  };
};

// A parameter of real numbers and its gradient: of the same type, size and device.
struct Change {
  const at::Tensor& parameter;
  const at::Tensor& gradient;
};

// Whether `apply` can do it: it begins no state, and leaves complex numbers, unusual sparse
// gradients, and mistakes, to torch.
bool applies(const Sgd& rule, const Change& change, const Sgd::State& state);
bool applies(const Adam& rule, const Change& change, const Adam::State& state);
bool applies(const Adamax& rule, const Change& change, const Adamax::State& state);
bool applies(const Adagrad& rule, const Change& change, const Adagrad::State& state);
bool applies(const Adadelta& rule, const Change& change, const Adadelta::State& state);
bool applies(const RmsProp& rule, const Change& change, const RmsProp::State& state);
bool applies(const Rprop& rule, const Change& change, const Rprop::State& state);

// Without gradients being recorded.
void apply(const Sgd& rule, const Change& change, const Sgd::State& state);
void apply(const Adam& rule, const Change& change, const Adam::State& state);
void apply(const Adamax& rule, const Change& change, const Adamax::State& state);
void apply(const Adagrad& rule, const Change& change, const Adagrad::State& state);
void apply(const Adadelta& rule, const Change& change, const Adadelta::State& state);
void apply(const RmsProp& rule, const Change& change, const RmsProp::State& state);
void apply(const Rprop& rule, const Change& change, const Rprop::State& state);

}  // namespace hawser::optim
