#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <span>
#include <vector>

#include "hawser/base/buffer.h"
#include "hawser/tensor/device_staging.h"
#include "hawser/tensor/geometry.h"
#include "hawser/tensor/graph_tie.h"
#include "hawser/wire/message.h"

namespace hawser::tensor {

// Makes the tensors of one received message. Their storages are the received memory; the message's
// segments are moved into them, so that nothing but the tensors keeps it once the unpacker is gone.
// Not thread-safe. `tensors` and `segments` must outlive it.
//
// Nothing in a description is believed: whatever does not lie within its segment, or is not a
// tensor that libtorch could hold, is Error(Invalid), before any tensor is made of it.
class TensorUnpacker {
 public:
  // `staging` may be null: then a description that asks for another device than the CPU is Invalid.
  // Without `history` tensors that require a gradient are leaves.
  TensorUnpacker(std::span<const wire::TensorDesc> tensors, std::span<Buffer> segments,
                 History* history = nullptr, const DeviceStaging* staging = nullptr)
      : tensors_(tensors), segments_(segments), history_(history), staging_(staging) {}
  TensorUnpacker(const TensorUnpacker&) = delete;

  // A new tensor each time; those of one segment share its storage.
  at::Tensor tensor(std::uint64_t index);

  // The bytes of a segment that is no tensor's: valid as long as `segments` is.
  std::span<const std::byte> blob(std::uint64_t segment) const;

  // Lets go of the storages: from here on only the tensors hold the memory.
  void release() { storages_.clear(); }

 private:
  at::Tensor made_from(const wire::TensorDesc& desc);
  at::Tensor strided(const wire::TensorDesc& desc);
  at::Tensor quantized(const wire::TensorDesc& desc);
  at::Tensor sparse_coo(const wire::TensorDesc& desc);
  at::Tensor sparse_compressed(const wire::TensorDesc& desc);
  at::Tensor part(const wire::TensorDesc& whole, std::size_t which);
  c10::Storage storage_for(const wire::TensorDesc& desc, const ByteRange& bytes);

  std::span<const wire::TensorDesc> tensors_;
  std::span<Buffer> segments_;
  History* history_;
  const DeviceStaging* staging_;
  std::vector<c10::Storage> storages_;  // by segment, made when first wanted
};

}  // namespace hawser::tensor
