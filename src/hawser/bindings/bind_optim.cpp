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

void read(const py::dict& options, optim::Sgd& rule) {
  set(rule.lr, options, "lr");
  set(rule.momentum, options, "momentum");
  set(rule.dampening, options, "dampening");
  set(rule.weight_decay, options, "weight_decay");
  set(rule.nesterov, options, "nesterov");
  set(rule.maximize, options, "maximize");
}
void read(const py::dict& states, optim::SgdState& state) {
  state.momentum_buffer = state_of(states, "momentum_buffer");
}

void read(const py::dict& options, optim::Adam& rule) {
  const py::sequence betas = options["betas"];
  rule.beta1 = betas[0].cast<double>();
  rule.beta2 = betas[1].cast<double>();
  set(rule.lr, options, "lr");
  set(rule.eps, options, "eps");
  set(rule.weight_decay, options, "weight_decay");
  set(rule.amsgrad, options, "amsgrad");
  set(rule.maximize, options, "maximize");
  set(rule.decoupled_weight_decay, options, "decoupled_weight_decay");
}
void read(const py::dict& states, optim::AdamState& state) {
  state.step = state_of(states, "step");
  state.exp_avg = state_of(states, "exp_avg");
  state.exp_avg_sq = state_of(states, "exp_avg_sq");
  state.max_exp_avg_sq = state_of(states, "max_exp_avg_sq");
}

template <class Group>
Group group_of(const py::dict& options, const py::sequence& slots) {
  Group group;
  read(options, group.rule);
  for (const auto& each : slots) {
    const auto [leaf, target, states] = each.cast<std::tuple<at::Tensor, at::Tensor, py::dict>>();
    read(states, group.slots.emplace_back(leaf, target).state);
  }
  return group;
}

// What hawser.optim.plans makes.
optim::Plan plan_of(const std::string& label, const std::string& rule, const py::sequence& groups) {
  optim::Plan plan{label, {}};
  for (const auto& each : groups) {
    const auto [options, slots] = each.cast<std::tuple<py::dict, py::sequence>>();
    if (rule == "sgd") {
      plan.groups.push_back(group_of<optim::Group<optim::Sgd, optim::SgdState>>(options, slots));
    } else if (rule == "adam") {
      plan.groups.push_back(group_of<optim::Group<optim::Adam, optim::AdamState>>(options, slots));
    } else {
      throw py::value_error("there is no rule " + rule);
    }
  }
  return plan;
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
