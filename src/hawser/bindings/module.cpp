#include <torch/csrc/utils/pybind.h>

#include "hawser/base/version.h"
#include "hawser/bindings/bind_node.h"
#include "hawser/bindings/bind_optim.h"
#include "hawser/bindings/bind_options.h"
#include "hawser/bindings/future.h"
#include "hawser/bindings/reference.h"
#include "hawser/node/scripts.h"

PYBIND11_MODULE(_native, module) {
  module.attr("__version__") = hawser::kVersion;
  hawser::replace_script_operators();
  hawser::bindings::bind_future(module);
  hawser::bindings::bind_node(module);
  hawser::bindings::bind_reference(module);
  hawser::bindings::bind_options(module);
  hawser::bindings::bind_optim(module);
}
