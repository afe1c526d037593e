#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>

namespace hawser {

// Of leaves, by leaf.
using Gradients = c10::Dict<at::Tensor, at::Tensor>;

}  // namespace hawser
