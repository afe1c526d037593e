// Compiled with NDEBUG (CMakeLists.txt), as libtorch is: without it RecordFunction::inputs(), which
// is inline, asserts a flag that only a debug build of libtorch sets.
#include "hawser/trace/argument_shapes.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

namespace hawser::trace {

std::vector<std::int64_t> shapes_of_arguments(const at::RecordFunction& function) {
  std::vector<std::int64_t> shapes;
  for (const c10::IValue& input : function.inputs()) {
    if (!input.isTensor() || !input.toTensor().defined() || input.toTensor().is_nested()) {
      shapes.push_back(0);
      continue;
    }
    const auto sizes = input.toTensor().sizes();
    shapes.push_back(static_cast<std::int64_t>(sizes.size()));
    shapes.insert(shapes.end(), sizes.begin(), sizes.end());
  }
  return shapes;
}

}  // namespace hawser::trace
