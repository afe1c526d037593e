#include "hawser/bindings/bind_optim.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "hawser/bindings/guarded.h"
#include "hawser/node/autograd.h"

namespace py = pybind11;

namespace hawser::bindings {
namespace {

PyTypeObject* share_type = nullptr;  // never goes: it belongs to the module

// ------------------------------------------------------------------------------- plans

template <class T>
void set(T& field, const py::dict& options, const char* name) {
  field = options[name].cast<T>();
}

// Undefined if there is none.
at::Tensor state_of(const py::dict& states, const char* name) {
  if (!states.contains(name) || states[name].is_none()) return {};
  return states[name].cast<at::Tensor>();
}

void set_pair(double& first, double& second, const py::dict& options, const char* name) {
  const py::sequence pair = options[name];
  first = pair[0].cast<double>();
  second = pair[1].cast<double>();
}

void read(const py::dict& options, optim::Sgd& rule) {
  set(rule.lr, options, "lr");
  set(rule.momentum, options, "momentum");
  set(rule.dampening, options, "dampening");
  set(rule.weight_decay, options, "weight_decay");
  set(rule.nesterov, options, "nesterov");
  set(rule.maximize, options, "maximize");
}
void read(const py::dict& states, optim::Sgd::State& state) {
  state.momentum_buffer = state_of(states, "momentum_buffer");
}

void read(const py::dict& options, optim::Adam& rule) {
  set(rule.lr, options, "lr");
  set_pair(rule.beta1, rule.beta2, options, "betas");
  set(rule.eps, options, "eps");
  set(rule.weight_decay, options, "weight_decay");
  set(rule.amsgrad, options, "amsgrad");
  set(rule.maximize, options, "maximize");
  set(rule.decoupled_weight_decay, options, "decoupled_weight_decay");
}
void read(const py::dict& states, optim::Adam::State& state) {
  state.step = state_of(states, "step");
  state.exp_avg = state_of(states, "exp_avg");
  state.exp_avg_sq = state_of(states, "exp_avg_sq");
  state.max_exp_avg_sq = state_of(states, "max_exp_avg_sq");
}

void read(const py::dict& options, optim::Adamax& rule) {
  set(rule.lr, options, "lr");
  set_pair(rule.beta1, rule.beta2, options, "betas");
  set(rule.eps, options, "eps");
  set(rule.weight_decay, options, "weight_decay");
  set(rule.maximize, options, "maximize");
}
void read(const py::dict& states, optim::Adamax::State& state) {
  state.step = state_of(states, "step");
  state.exp_avg = state_of(states, "exp_avg");
  state.exp_inf = state_of(states, "exp_inf");
}

void read(const py::dict& options, optim::Adagrad& rule) {
  set(rule.lr, options, "lr");
  set(rule.lr_decay, options, "lr_decay");
  set(rule.eps, options, "eps");
  set(rule.weight_decay, options, "weight_decay");
  set(rule.maximize, options, "maximize");
}
void read(const py::dict& states, optim::Adagrad::State& state) {
  state.step = state_of(states, "step");
  state.sum = state_of(states, "sum");
}

void read(const py::dict& options, optim::Adadelta& rule) {
  set(rule.lr, options, "lr");
  set(rule.rho, options, "rho");
  set(rule.eps, options, "eps");
  set(rule.weight_decay, options, "weight_decay");
  set(rule.maximize, options, "maximize");
}
void read(const py::dict& states, optim::Adadelta::State& state) {
  state.step = state_of(states, "step");
  state.square_avg = state_of(states, "square_avg");
  state.acc_delta = state_of(states, "acc_delta");
}

void read(const py::dict& options, optim::RmsProp& rule) {
  set(rule.lr, options, "lr");
  set(rule.alpha, options, "alpha");
  set(rule.eps, options, "eps");
  set(rule.weight_decay, options, "weight_decay");
  set(rule.momentum, options, "momentum");
  set(rule.centered, options, "centered");
  set(rule.maximize, options, "maximize");
}
void read(const py::dict& states, optim::RmsProp::State& state) {
  state.step = state_of(states, "step");
  state.square_avg = state_of(states, "square_avg");
  state.momentum_buffer = state_of(states, "momentum_buffer");
  state.grad_avg = state_of(states, "grad_avg");
}

void read(const py::dict& options, optim::Rprop& rule) {
  set_pair(rule.eta_minus, rule.eta_plus, options, "etas");
  set_pair(rule.step_size_min, rule.step_size_max, options, "step_sizes");
  set(rule.maximize, options, "maximize");
}
void read(const py::dict& states, optim::Rprop::State& state) {
  state.step = state_of(states, "step");
  state.prev = state_of(states, "prev");
  state.step_size = state_of(states, "step_size");
}

template <class Rule>
optim::Plan::AnyGroup group_of(const py::dict& options, const py::sequence& slots) {
  optim::Group<Rule> group;
  read(options, group.rule);
  for (const auto& each : slots) {
    const auto [leaf, target, states] = each.cast<std::tuple<at::Tensor, at::Tensor, py::dict>>();
    read(states, group.slots.emplace_back(leaf, target).state);
  }
  return group;
}

using GroupReader = optim::Plan::AnyGroup (*)(const py::dict& options, const py::sequence& slots);

GroupReader reader_of(const std::string& rule) {
  if (rule == "sgd") return group_of<optim::Sgd>;
  if (rule == "adam") return group_of<optim::Adam>;
  if (rule == "adamax") return group_of<optim::Adamax>;
  if (rule == "adagrad") return group_of<optim::Adagrad>;
  if (rule == "adadelta") return group_of<optim::Adadelta>;
  if (rule == "rmsprop") return group_of<optim::RmsProp>;
  if (rule == "rprop") return group_of<optim::Rprop>;
  throw py::value_error("there is no rule " + rule);
}

// What hawser.optim.plans makes. None if an option is not what it should be: torch refuses it when
// it makes the step.
std::optional<optim::Plan> plan_of(const std::string& label, const std::string& rule,
                                   const py::sequence& groups) {
  const GroupReader read_group = reader_of(rule);
  optim::Plan plan{label, {}};
  try {
    for (const auto& each : groups) {
      const auto [options, slots] = each.cast<std::tuple<py::dict, py::sequence>>();
      plan.groups.push_back(read_group(options, slots));
    }
  } catch (const py::cast_error&) {
    return std::nullopt;
  }
  return plan;
}

// Takes over the options of the groups. False if the plan has to be made anew.
bool read_options(const py::sequence& groups, std::optional<optim::Plan>& plan) {
  if (!plan || plan->groups.size() != groups.size()) return false;
  try {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const py::dict options = groups[i];
      std::visit([&](auto& group) { read(options, group.rule); }, plan->groups[i]);
    }
  } catch (const py::cast_error&) {
    return false;
  }
  return true;
}

}  // namespace

// ------------------------------------------------------------------------------- OptimizerShare

OptimizerShare::OptimizerShare() {
  const py::module_ torch = py::module_::import("torch.optim.optimizer");
  const auto dict = [&](const char* name) {
    const py::dict found = torch.attr(name);
    return AnywhereObject(Object::shared(found.ptr()));
  };
  hooks_before_ = dict("_global_optimizer_pre_hooks");
  hooks_after_ = dict("_global_optimizer_post_hooks");
}

// Read without the interpreter lock: whoever adds a hook while a step begins cannot know whether it
// is called for that one.
bool OptimizerShare::has_hooks() const {
  const auto size = [](const AnywhereObject& dict) {
    return __atomic_load_n(&reinterpret_cast<PyDictObject*>(dict.get())->ma_used, __ATOMIC_RELAXED);
  };
  return size(hooks_before_) > 0 || size(hooks_after_) > 0;
}

bool OptimizerShare::step(NodeCore& core, std::int64_t context) {
  if (has_hooks()) return false;
  const std::scoped_lock exclusively(stepper_);
  Autograd& autograd = core.node().autograd();
  const autograd::ContextId id{static_cast<std::uint64_t>(context)};
  return stepper_.step(autograd.is_in(id) ? autograd.gradients(id) : Gradients());
}

bool OptimizerShare::answer(NodeCore& core, const CallContext& context, std::string_view method) {
  if (method != "step") return false;
  const auto [id] = detail::arguments_of<std::int64_t>(context, "step of an optimizer");
  if (!step(core, id)) return false;
  detail::answer(context, std::monostate{});
  return true;
}

OptimizerShare* share_of(PyObject* object) {
  if (!PyType_IsSubtype(Py_TYPE(object), share_type)) return nullptr;
  return py::cast<OptimizerShare*>(py::handle(object));
}

void bind_optim(py::module_& module) {
  const py::class_<OptimizerShare> bound =
      py::class_<OptimizerShare>(module, "OptimizerShare")
          .def(py::init<>())
          .def("__enter__",
               [](OptimizerShare& share) {
                 const WithoutGil no_gil;
                 share.stepper().lock();
               })
          .def("__exit__", [](OptimizerShare& share, const py::args&) { share.stepper().unlock(); })
          .def(
              "take_turns",
              [](OptimizerShare& share, const std::vector<at::Tensor>& parameters) {
                const WithoutGil no_gil;
                share.stepper().take_turns(optim::Turns::of(parameters));
              },
              py::arg("parameters"))
          .def(
              "follow",
              [](OptimizerShare& share, const std::string& label, const std::string& rule,
                 const py::sequence& groups) {
                share.stepper().follow(plan_of(label, rule, groups));
              },
              py::arg("label"), py::arg("rule"), py::arg("groups"))
          .def(
              "follow_options",
              [](OptimizerShare& share, const py::sequence& groups) {
                return read_options(groups, share.stepper().plan());
              },
              py::arg("groups"))
          .def("follow_nothing",
               [](OptimizerShare& share) { share.stepper().follow(std::nullopt); })
          .def(
              "step_natively",
              [](OptimizerShare& share, NodeCore& core, std::int64_t context) {
                return guarded(&core, [&] {
                  const WithoutGil no_gil;
                  return share.step(core, context);
                });
              },
              py::arg("node"), py::arg("context"));
  share_type = reinterpret_cast<PyTypeObject*>(bound.ptr());
}

}  // namespace hawser::bindings
