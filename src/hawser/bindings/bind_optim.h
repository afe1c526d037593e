#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string_view>

#include "hawser/bindings/node_core.h"
#include "hawser/bindings/py_object.h"
#include "hawser/optim/stepper.h"

namespace hawser::bindings {

// The native half of hawser.optim.share.Share: takes steps without the interpreter lock while there
// is a plan for them, and answers those that are asked for from elsewhere.
class OptimizerShare {
 public:
  OptimizerShare();

  optim::Stepper& stepper() { return stepper_; }

  // Applies the gradients that the node has in that context. False, and nothing is changed, when it
  // takes Python. Without the interpreter lock.
  bool step(NodeCore& core, std::int64_t context);

  // Answers the call of a method, unless it takes Python. Without the interpreter lock.
  bool answer(NodeCore& core, const CallContext& context, std::string_view method);

 private:
  bool has_hooks() const;

  optim::Stepper stepper_;
  // Those that torch calls at the steps of all optimizers: two dicts.
  AnywhereObject hooks_before_;
  AnywhereObject hooks_after_;
};

// The native half of the object; null if it is no share. With the interpreter lock.
OptimizerShare* share_of(PyObject* object);

void bind_optim(pybind11::module_& module);

}  // namespace hawser::bindings
