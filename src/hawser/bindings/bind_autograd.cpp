#include "hawser/bindings/bind_autograd.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/utils/pybind.h>

#include "hawser/bindings/bind_node.h"
#include "hawser/bindings/guarded.h"
#include "hawser/engine/current_context.h"
#include "hawser/node/autograd.h"

namespace py = pybind11;

namespace hawser::bindings {
namespace {

// Set where several computations share a thread, by the tasks of an event loop: to the id of a
// context, or to None for none. Where it is not set the slot of the thread counts.
PyObject* task_context() {
  static PyObject* const variable = PyContextVar_New("hawser_autograd_context", nullptr);
  return variable;
}

autograd::ContextId context_of(std::int64_t id) {
  return autograd::ContextId{static_cast<std::uint64_t>(id)};
}
template <autograd::Numbered Id>
std::int64_t to_python(Id id) {
  return static_cast<std::int64_t>(autograd::number(id));
}

autograd::Mode mode_of(const std::string& name) {
  if (name == "smart") return autograd::Mode::Smart;
  if (name == "fast") return autograd::Mode::Fast;
  throw Error(ErrorKind::Invalid, "mode must be 'smart' or 'fast', got '" + name + "'");
}

void backward(NodeCore& core, std::int64_t context, const std::vector<at::Tensor>& roots,
              bool retain_graph, const py::object& timeout, const std::string& mode) {
  guarded(&core, [&] {
    const BackwardOptions options{
        .retain_graph = retain_graph, .timeout = timeout_of(timeout.ptr()), .mode = mode_of(mode)};
    const Autograd::Waiting waiting(core.node().autograd(), options);
    const auto pass = [&] {
      const WithoutGil no_gil;
      return core.node().backward(context_of(context), roots, options);
    }();
    try {
      wait_interruptibly([&](Deadline until) { return pass.wait_until(until); }, Deadline::never());
    } catch (const PythonErrorSet&) {
      const WithoutGil no_gil;
      pass.cancel();
      throw;
    }
    pass.get();
  });
}

py::dict gradients(NodeCore& core, std::int64_t context) {
  const Gradients found = guarded(&core, [&] {
    const WithoutGil no_gil;
    return core.node().autograd().gradients(context_of(context));
  });
  py::dict out;
  for (const auto& entry : found) out[py::cast(entry.key())] = py::cast(entry.value());
  return out;
}

template <class Functions>
py::dict functions_by_message(const Functions& functions) {
  py::dict out;
  for (const auto& [message, function] : functions) {
    out[py::int_(to_python(message))] =
        py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(function));
  }
  return out;
}

py::dict report(NodeCore& core, std::int64_t context) {
  const AutogradContextReport found = guarded(&core, [&] {
    const WithoutGil no_gil;
    return core.node().autograd().report(context_of(context));
  });
  py::dict out;
  out["id"] = to_python(found.id);
  out["creator"] = found.creator;
  out["known"] = found.known;
  out["sends"] = functions_by_message(found.sends);
  out["recvs"] = functions_by_message(found.recvs);
  return out;
}

}  // namespace

std::optional<autograd::ContextId> context_of_python() {
  PyObject* found = nullptr;
  if (PyContextVar_Get(task_context(), nullptr, &found) != 0) throw PythonErrorSet{};
  if (!found) return engine::current_context();
  const Object value = Object::taken(found);
  if (value.get() == Py_None) return std::nullopt;
  const std::int64_t id = PyLong_AsLongLong(value.get());
  if (id == -1 && PyErr_Occurred()) throw PythonErrorSet{};
  return context_of(id);
}

void bind_autograd(py::module_& module, py::class_<NodeCore, std::shared_ptr<NodeCore>>& node) {
  node.def("create_context",
           [](NodeCore& core) {
             return guarded(&core, [&] {
               const WithoutGil no_gil;
               return to_python(core.node().autograd().create());
             });
           })
      .def(
          "release_context",
          [](NodeCore& core, std::int64_t context) {
            return guarded(&core, [&] {
              const WithoutGil no_gil;
              return core.node().autograd().release(context_of(context));
            });
          },
          py::arg("context"))
      .def(
          "is_in_context",
          [](NodeCore& core, std::int64_t context) {
            const WithoutGil no_gil;
            return core.node().autograd().is_in(context_of(context));
          },
          py::arg("context"))
      .def("backward", &backward, py::arg("context"), py::arg("roots"),
           py::arg("retain_graph") = false, py::arg("timeout") = py::none(),
           py::arg("mode") = "smart")
      .def("gradients", &gradients, py::arg("context"))
      .def("context_report", &report, py::arg("context"))
      .def("count_autograd", [](NodeCore& core) {
        const AutogradCounts counts = [&] {
          const WithoutGil no_gil;
          return core.node().autograd().count();
        }();
        py::dict out;
        out["contexts"] = counts.contexts;
        out["passes"] = counts.passes;
        return out;
      });
  module.def("current_context", []() -> std::optional<std::int64_t> {
    const auto context = guarded(nullptr, [] { return context_of_python(); });
    if (!context) return std::nullopt;
    return to_python(*context);
  });
  module.attr("task_context") = py::reinterpret_borrow<py::object>(task_context());
  module.def(
      "set_current_context",
      [](std::optional<std::int64_t> context) {
        engine::set_current_context(context ? std::optional(context_of(*context)) : std::nullopt);
      },
      py::arg("context"));
}

}  // namespace hawser::bindings
