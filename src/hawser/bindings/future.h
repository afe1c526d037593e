#pragma once

#include <functional>
#include <memory>

#include "hawser/bindings/node_core.h"

namespace pybind11 {
class module_;
}

// torch.futures, from both sides. All functions need the interpreter lock.
namespace hawser::bindings {

// Makes a call and returns its future: hawser's own subclass of torch._C.Future.
Object start_call(const std::shared_ptr<NodeCore>& core, const CallOptions& options,
                  WrittenCall&& call, Object kept_alive);

// The same for something that is not a call: `settle` is called once, by any thread.
struct MadeFuture {
  Object future;
  std::function<void(agent::Answer&&)> settle;
};
MadeFuture make_future(const std::shared_ptr<NodeCore>& core);

bool is_torch_future(PyObject* object);
// Calls `then` with the value, or with null and the Python error set, once the future is done; with
// the interpreter lock, and on a thread that may run Python.
void when_torch_future_done(PyObject* future, std::function<void(PyObject* value)> then);

void bind_future(pybind11::module_& module);

}  // namespace hawser::bindings
