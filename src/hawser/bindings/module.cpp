#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>

#include "hawser/base/version.h"
#include "hawser/bindings/bind_node.h"
#include "hawser/bindings/bind_optim.h"
#include "hawser/bindings/bind_options.h"
#include "hawser/bindings/future.h"
#include "hawser/bindings/guarded.h"
#include "hawser/bindings/reference.h"
#include "hawser/node/scripts.h"
#include "hawser/transport/listen.h"

namespace {

// False when nobody listens there by then.
bool wait_for_listener(const std::string& host, std::uint16_t port, double seconds) {
  const auto patience =
      std::chrono::duration_cast<hawser::Duration>(std::chrono::duration<double>(seconds));
  return hawser::bindings::guarded(nullptr, [&] {
    const hawser::bindings::WithoutGil no_gil;
    try {
      hawser::transport::wait_for_listener(
          host, port, hawser::Deadline::after(hawser::SteadyClock(), patience));
      return true;
    } catch (const hawser::Error& error) {
      if (error.kind() == hawser::ErrorKind::Timeout) return false;
      throw;
    }
  });
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.attr("__version__") = hawser::kVersion;
  hawser::replace_script_operators();
  hawser::bindings::bind_future(module);
  hawser::bindings::bind_node(module);
  hawser::bindings::bind_reference(module);
  hawser::bindings::bind_options(module);
  hawser::bindings::bind_optim(module);
  module.def(
      "tensor_over",
      [](const pybind11::object& buffer) {
        return hawser::bindings::guarded(nullptr, [&] {
          return pybind11::reinterpret_steal<pybind11::object>(
              hawser::bindings::tensor_over(buffer.ptr()).release());
        });
      },
      pybind11::arg("buffer"));
  module.def("wait_for_listener", &wait_for_listener, pybind11::arg("host"), pybind11::arg("port"),
             pybind11::arg("seconds"));
}
