#include "hawser/bindings/bind_options.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace py = pybind11;

namespace hawser::bindings {
namespace {

struct RpcBackendOptions {
  double timeout = 60.0;
  std::string init_method = "env://";

  void set_timeout(double seconds) {
    if (!(seconds >= 0) || std::isinf(seconds)) {
      throw std::runtime_error("RPC Timeout must be non-negative");
    }
    timeout = seconds;
  }
};

struct TensorPipeOptions : RpcBackendOptions {
  using Devices = std::vector<py::object>;  // torch.device objects
  int worker_threads = 16;
  std::optional<std::vector<std::string>> transports;
  std::optional<std::vector<std::string>> channels;
  std::map<std::string, py::dict> device_maps;
  Devices devices;

  // One entry at a time: what was set before stays.
  void set_device_map(const std::string& to, const py::dict& map) {
    py::dict merged = device_maps.contains(to) ? device_maps.at(to) : py::dict();
    for (const auto& [from, target] : map) merged[from] = target;
    device_maps[to] = merged;
  }
};

}  // namespace

void bind_options(py::module_& module) {
  py::class_<RpcBackendOptions, std::shared_ptr<RpcBackendOptions>>(module, "RpcBackendOptions")
      .def(py::init([](double timeout, std::string init_method) {
             RpcBackendOptions options;
             options.set_timeout(timeout);
             options.init_method = std::move(init_method);
             return options;
           }),
           py::arg("rpc_timeout") = 60.0, py::arg("init_method") = "env://")
      .def_property(
          "rpc_timeout", [](const RpcBackendOptions& options) { return options.timeout; },
          &RpcBackendOptions::set_timeout)
      .def_readwrite("init_method", &RpcBackendOptions::init_method);

  py::class_<TensorPipeOptions, RpcBackendOptions, std::shared_ptr<TensorPipeOptions>>(
      module, "_TensorPipeRpcBackendOptionsBase")
      .def(py::init([](int worker_threads, std::optional<std::vector<std::string>> transports,
                       std::optional<std::vector<std::string>> channels, double timeout,
                       std::string init_method, std::map<std::string, py::dict> device_maps,
                       TensorPipeOptions::Devices devices) {
             if (worker_threads <= 0) {
               throw std::runtime_error("num_worker_threads must be positive, got " +
                                        std::to_string(worker_threads));
             }
             TensorPipeOptions options;
             options.worker_threads = worker_threads;
             options.transports = std::move(transports);
             options.channels = std::move(channels);
             options.set_timeout(timeout);
             options.init_method = std::move(init_method);
             options.device_maps = std::move(device_maps);
             options.devices = std::move(devices);
             return options;
           }),
           py::arg("num_worker_threads") = 16, py::arg("_transports") = py::none(),
           py::arg("_channels") = py::none(), py::arg("rpc_timeout") = 60.0,
           py::arg("init_method") = "env://",
           py::arg("device_maps") = std::map<std::string, py::dict>(),
           py::arg("devices") = TensorPipeOptions::Devices())
      .def_readwrite("num_worker_threads", &TensorPipeOptions::worker_threads)
      .def_readwrite("_transports", &TensorPipeOptions::transports)
      .def_readwrite("_channels", &TensorPipeOptions::channels)
      .def_readwrite("device_maps", &TensorPipeOptions::device_maps)
      .def_readwrite("devices", &TensorPipeOptions::devices)
      .def("_set_device_map", &TensorPipeOptions::set_device_map, py::arg("to"),
           py::arg("device_map"));
}

}  // namespace hawser::bindings
