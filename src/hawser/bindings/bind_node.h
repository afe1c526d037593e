#pragma once

#include "hawser/bindings/node_core.h"
#include "hawser/node/call_context.h"

namespace pybind11 {
class module_;
}

namespace hawser::bindings {

// A new _native.CallInfo. Null with the Python error set.
PyObject* call_info(const CallContext& context);

// _native.Node, CallInfo and current_call().
// Calls and waits; the answer is read by this thread.
Object run_written(NodeCore& core, const CallOptions& options, WrittenCall&& written);
// Seconds; nothing for null and None. Throws Error(Invalid) when negative; 0 is without limit.
std::optional<Duration> timeout_of(PyObject* seconds);
// The same for a call, which hawser.deadline() may limit further.
std::optional<Duration> limited_timeout_of(PyObject* seconds);

void bind_node(pybind11::module_& module);

}  // namespace hawser::bindings
