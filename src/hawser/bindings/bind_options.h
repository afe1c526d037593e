#pragma once

namespace pybind11 {
class module_;
}

namespace hawser::bindings {

// The options of torch.distributed.rpc, as plain data.
void bind_options(pybind11::module_& module);

}  // namespace hawser::bindings
