#pragma once

#include <pybind11/pybind11.h>

#include "hawser/bindings/node_core.h"

namespace hawser::bindings {

// Runs what may throw anything of hawser's; Python sees its exceptions. `core` may be null.
template <class F>
auto guarded(const NodeCore* core, F function) {
  try {
    return function();
  } catch (const PythonErrorSet&) {
    throw pybind11::error_already_set();
  } catch (const Error&) {
    set_python_error(core);
    throw pybind11::error_already_set();
  }
}

}  // namespace hawser::bindings
