#pragma once

namespace pybind11 {
class module_;
}

namespace hawser::bindings {

// _native.Node, CallInfo and current_call().
void bind_node(pybind11::module_& module);

}  // namespace hawser::bindings
