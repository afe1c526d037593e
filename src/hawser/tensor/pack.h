#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <span>
#include <vector>

#include "hawser/base/buffer.h"
#include "hawser/tensor/device_staging.h"
#include "hawser/tensor/geometry.h"
#include "hawser/wire/message.h"

namespace hawser::tensor {

// Turns the tensors of one message into descriptions and segments. Not thread-safe; used once.
//
// What is sent of a storage:
//   - the bytes between the first and the last that the message's tensors touch, as they are, with
//     strides and sharing preserved: tensors that share memory here share it at the receiver;
//   - separate regions of one storage as separate segments;
//   - a lone view that touches less than half of its region as a contiguous copy. Views that
//     overlap in memory are never copied apart: sharing is worth more than the bytes between.
// Dimensions that are only expanded stay so and cost nothing.
//
// Segments point into the tensors' memory: it must not be written to until the frame has been sent.
//
// Kept: dtype, layout, sizes, strides, conjugate and negative bits, quantization parameters,
// whether a sparse tensor is coalesced, requires_grad (the receiver gets a leaf), an undefined
// tensor. Not kept: identity, gradient, graph, hooks, pinning, subclass.
class TensorPacker {
 public:
  // `staging` may be null: then only CPU tensors can be sent.
  explicit TensorPacker(const DeviceStaging* staging = nullptr) : staging_(staging) {}
  TensorPacker(const TensorPacker&) = delete;

  // Takes the tensor and returns its index among the message's tensors. Pass the last reference
  // with std::move: what was received and is now held by nobody else can then be handed back
  // instead of copied (see lend() in storage_memory.h).
  // Throws Error(Invalid), naming the property, for what cannot be sent: meta and fake tensors,
  // symbolic sizes, nested and opaque layouts, tensors wrapped by a function transform or a
  // __torch_dispatch__ subclass, a storage that was freed or is smaller than its tensor, a device
  // that the staging does not map.
  std::uint32_t add(at::Tensor tensor);

  bool empty() const { return tensors_.empty(); }

  struct Packed {
    std::vector<wire::TensorDesc> tensors;
    std::vector<Buffer> segments;
    std::vector<at::Tensor> differentiable;  // those that require a gradient
  };
  // Descriptions name segment `i` of the result as `first_segment + i`. Lets go of all tensors.
  Packed finish(std::uint32_t first_segment = 0);

 private:
  // A strided tensor (or constituent of one) and the memory it needs.
  struct Need {
    c10::Storage storage;
    std::uint32_t tensor;      // index in tensors_
    ByteRange bytes;           // of the storage
    std::uint64_t bytes_used;  // of these; the others lie between its elements
    std::uint32_t element_size;
    Shape strides;
  };
  using Needs = std::span<const Need* const>;  // never empty

  std::uint32_t describe(wire::TensorDesc desc);
  std::uint32_t add_strided(const at::Tensor& tensor, wire::TensorDesc desc);
  std::uint32_t add_sparse(const at::Tensor& tensor, wire::TensorDesc desc);
  std::uint32_t add_compressed(const at::Tensor& tensor, wire::TensorDesc desc);
  std::uint32_t add_part(const at::Tensor& tensor);
  void describe_quantizer(const at::Tensor& tensor, wire::TensorDesc& desc);

  void place_storage(Needs needs);
  void place_region(Needs needs, const Buffer& storage);
  void place_as_is(Needs needs, const Buffer& storage);
  void place_compacted(Needs needs);
  static bool same_elements(const Need& a, const Need& b, const std::vector<wire::TensorDesc>& in);
  static bool may_overlap(const Need& a, const Need& b, const std::vector<wire::TensorDesc>& in);

  const DeviceStaging* staging_;
  std::vector<wire::TensorDesc> tensors_;
  std::vector<at::Tensor> differentiable_;
  std::vector<Need> needs_;
  std::vector<Buffer> segments_;
  std::uint32_t first_segment_ = 0;
};

}  // namespace hawser::tensor
