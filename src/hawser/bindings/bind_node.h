#pragma once

#include "hawser/bindings/py_object.h"
#include "hawser/node/call_context.h"

namespace pybind11 {
class module_;
}

namespace hawser::bindings {

// A new _native.CallInfo. Null with the Python error set.
PyObject* call_info(const CallContext& context);

// _native.Node, CallInfo and current_call().
void bind_node(pybind11::module_& module);

}  // namespace hawser::bindings
