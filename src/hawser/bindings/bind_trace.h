#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "hawser/bindings/node_core.h"

namespace hawser::bindings {

// Methods of _native.Node for profiles of what it serves, and _native.Recorder.
void bind_trace(pybind11::module_& module,
                pybind11::class_<NodeCore, std::shared_ptr<NodeCore>>& node);

}  // namespace hawser::bindings
