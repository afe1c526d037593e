#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "hawser/autograd/ids.h"
#include "hawser/bindings/node_core.h"

namespace hawser::bindings {

// With the interpreter lock: the context of the asyncio task that runs, else that of the thread.
std::optional<autograd::ContextId> context_of_python();

// Methods of _native.Node for distributed autograd, and the context of the current thread.
void bind_autograd(pybind11::module_& module,
                   pybind11::class_<NodeCore, std::shared_ptr<NodeCore>>& node);

}  // namespace hawser::bindings
