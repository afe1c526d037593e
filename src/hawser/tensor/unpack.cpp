#include "hawser/tensor/unpack.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_validate_sparse_compressed_tensor_args.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <string>
#include <utility>

#include "hawser/base/error.h"
#include "hawser/tensor/geometry.h"
#include "hawser/tensor/storage_memory.h"

namespace hawser::tensor {
namespace {

[[noreturn]] void malformed(const std::string& why) {
  throw Error(ErrorKind::Invalid, "malformed tensor: " + why);
}

c10::IntArrayRef ref(const Shape& shape) { return {shape.data(), shape.size()}; }

c10::ScalarType checked_dtype(const wire::TensorDesc& desc) {
  const auto dtype = dtype_from(desc.dtype);
  if (!dtype) malformed("no dtype has the number " + std::to_string(desc.dtype));
  return *dtype;
}

// Where the elements of a strided tensor are in its storage.
struct Place {
  Shape strides;
  ByteRange bytes;
};

Place checked_place(const wire::TensorDesc& desc, c10::ScalarType dtype) {
  auto strides = desc.strides.empty() ? contiguous_strides(desc.sizes) : desc.strides;
  if (!strides) malformed("its size does not fit into 64 bits");
  const auto bytes = byte_range(dtype, desc.offset, desc.sizes, *strides);
  if (!bytes) malformed("impossible sizes, strides or offset");
  return {*std::move(strides), *bytes};
}

void put(at::Tensor& tensor, const wire::TensorDesc& desc, const Place& place) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      ref(desc.sizes), ref(place.strides),
      place.bytes.empty() ? 0 : static_cast<std::int64_t>(desc.offset));
}

bool has(const wire::TensorDesc& desc, wire::TensorFlags flag) { return desc.flags & flag; }

void refuse_flags(const wire::TensorDesc& desc, unsigned flags, const char* why) {
  if (desc.flags & flags) malformed(why);
}

c10::Layout layout_of(wire::TensorLayout layout) {
  switch (layout) {
    case wire::TensorLayout::Strided:
      return c10::kStrided;
    case wire::TensorLayout::SparseCoo:
      return c10::kSparse;
    case wire::TensorLayout::SparseCsr:
      return c10::kSparseCsr;
    case wire::TensorLayout::SparseCsc:
      return c10::kSparseCsc;
    case wire::TensorLayout::SparseBsr:
      return c10::kSparseBsr;
    case wire::TensorLayout::SparseBsc:
      return c10::kSparseBsc;
  }
  malformed("unknown layout " + std::to_string(static_cast<int>(layout)));
}

// The sizes of a sparse tensor, which say nothing about its memory.
c10::IntArrayRef checked_sizes(const wire::TensorDesc& desc) {
  for (const std::int64_t size : desc.sizes) {
    if (size < 0) malformed("a negative size");
  }
  if (!contiguous_strides(desc.sizes)) malformed("its size does not fit into 64 bits");
  return ref(desc.sizes);
}

// Runs what libtorch itself checks; its objections are about the peer's data.
template <class F>
auto judged_by_torch(F make) {
  try {
    return make();
  } catch (const c10::Error& error) {
    malformed(error.what_without_backtrace());
  }
}

}  // namespace

at::Tensor TensorUnpacker::tensor(std::uint64_t index) {
  if (index >= tensors_.size()) {
    malformed("no tensor " + std::to_string(index) + " among " + std::to_string(tensors_.size()));
  }
  const wire::TensorDesc& desc = tensors_[index];
  if (has(desc, wire::kUndefined)) return {};
  at::Tensor tensor;
  {
    at::AutoDispatchBelowADInplaceOrView bytes_only;
    tensor = made_from(desc);
    if (has(desc, wire::kConjugate)) {
      if (!tensor.is_complex()) malformed("a conjugate view that is not complex");
      tensor._set_conj(true);
    }
    if (has(desc, wire::kNegative)) tensor._set_neg(true);
    if (has(desc, wire::kWrappedNumber)) {
      if (tensor.dim() != 0) malformed("a wrapped number with dimensions");
      tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    if (desc.device != 0) {
      const c10::Device device = device_from(desc.device);
      if (!staging_) malformed("for device " + device.str() + ", and this node has no device map");
      tensor = staging_->from_cpu(std::move(tensor), device);
    }
  }
  if (has(desc, wire::kRequiresGrad)) {
    if (!tensor.is_floating_point() && !tensor.is_complex()) {
      malformed("requires_grad, but its dtype has no gradient");
    }
    if (history_) {
      const auto before = tensors_.first(index);
      history_->attach(tensor, static_cast<std::uint32_t>(std::count_if(
                                   before.begin(), before.end(), [](const wire::TensorDesc& other) {
                                     return has(other, wire::kRequiresGrad);
                                   })));
    } else {
      tensor.set_requires_grad(true);
    }
  }
  return tensor;
}

std::span<const std::byte> TensorUnpacker::blob(std::uint64_t segment) const {
  if (segment >= segments_.size()) {
    throw Error(ErrorKind::Invalid, "malformed value: no segment " + std::to_string(segment));
  }
  if (segment < storages_.size() && storages_[segment]) {
    throw Error(ErrorKind::Invalid, "malformed value: bytes in the segment of a tensor");
  }
  return segments_[segment].bytes();
}

at::Tensor TensorUnpacker::made_from(const wire::TensorDesc& desc) {
  const bool is_strided = desc.layout == wire::TensorLayout::Strided;
  if (!is_strided || has(desc, wire::kPerTensorAffine) || has(desc, wire::kPerChannelAffine)) {
    refuse_flags(desc, wire::kConjugate | wire::kNegative | wire::kWrappedNumber,
                 "a sparse or quantized tensor that is a conjugate, a negative or a number");
  }
  if (is_strided) {
    refuse_flags(desc, wire::kCoalesced, "a dense tensor that is coalesced");
    return c10::isQIntType(checked_dtype(desc)) ? quantized(desc) : strided(desc);
  }
  refuse_flags(desc, wire::kPerTensorAffine | wire::kPerChannelAffine,
               "a sparse tensor that is quantized");
  return desc.layout == wire::TensorLayout::SparseCoo ? sparse_coo(desc) : sparse_compressed(desc);
}

at::Tensor TensorUnpacker::strided(const wire::TensorDesc& desc) {
  refuse_flags(desc, wire::kPerTensorAffine | wire::kPerChannelAffine,
               "quantized, but its dtype is not");
  const c10::ScalarType dtype = checked_dtype(desc);
  const Place place = checked_place(desc, dtype);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(storage_for(desc, place.bytes),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(dtype));
  put(tensor, desc, place);
  return tensor;
}

at::Tensor TensorUnpacker::quantized(const wire::TensorDesc& desc) {
  const c10::ScalarType dtype = checked_dtype(desc);
  const bool per_tensor = has(desc, wire::kPerTensorAffine);
  if (per_tensor == has(desc, wire::kPerChannelAffine)) malformed("no single quantization scheme");
  at::QuantizerPtr quantizer;
  if (per_tensor) {
    quantizer = at::make_per_tensor_affine_quantizer(desc.scale, desc.zero_point, dtype);
  } else {
    const auto axis = static_cast<std::size_t>(desc.axis);
    if (desc.axis < 0 || axis >= desc.sizes.size()) malformed("no such quantization axis");
    const at::Tensor scales = part(desc, 0), zero_points = part(desc, 1);
    if (scales.dim() != 1 || zero_points.dim() != 1 || scales.numel() != desc.sizes[axis] ||
        zero_points.numel() != desc.sizes[axis] || !scales.is_floating_point() || scales.is_neg() ||
        zero_points.is_neg() || zero_points.is_complex()) {
      malformed("quantization parameters that do not fit its axis");
    }
    quantizer = judged_by_torch([&] {
      return at::make_per_channel_affine_quantizer(scales, zero_points, desc.axis, dtype);
    });
  }
  const Place place = checked_place(desc, dtype);
  auto tensor = at::detail::make_tensor<at::QTensorImpl>(
      storage_for(desc, place.bytes), c10::DispatchKeySet(c10::DispatchKey::QuantizedCPU),
      c10::scalarTypeToTypeMeta(dtype), std::move(quantizer));
  put(tensor, desc, place);
  return tensor;
}

at::Tensor TensorUnpacker::sparse_coo(const wire::TensorDesc& desc) {
  const at::Tensor indices = part(desc, 0), values = part(desc, 1);
  if (indices.scalar_type() != c10::kLong || indices.dim() != 2 || values.dim() < 1 ||
      indices.size(1) != values.size(0) ||
      static_cast<std::size_t>(indices.size(0) + values.dim() - 1) != desc.sizes.size()) {
    malformed("indices and values of a sparse tensor do not fit each other");
  }
  if (values.scalar_type() != checked_dtype(desc)) malformed("sparse values of another dtype");
  const c10::IntArrayRef sizes = checked_sizes(desc);
  const bool coalesced = has(desc, wire::kCoalesced);
  return judged_by_torch([&] {
    at::_validate_sparse_coo_tensor_args(indices, values, sizes, coalesced);
    return at::_sparse_coo_tensor_unsafe(indices, values, sizes,
                                         values.options().layout(c10::kSparse), coalesced);
  });
}

at::Tensor TensorUnpacker::sparse_compressed(const wire::TensorDesc& desc) {
  refuse_flags(desc, wire::kCoalesced, "a compressed sparse tensor that is coalesced");
  const c10::Layout layout = layout_of(desc.layout);
  const at::Tensor compressed = part(desc, 0), plain = part(desc, 1), values = part(desc, 2);
  if (values.scalar_type() != checked_dtype(desc)) malformed("sparse values of another dtype");
  const c10::IntArrayRef sizes = checked_sizes(desc);
  const std::int64_t block = compressed.dim();  // values: batch dimensions, nnz, then the block
  if (block < 1) malformed("compressed indices without dimensions");
  if ((layout == c10::kSparseBsr || layout == c10::kSparseBsc) &&
      (values.dim() < block + 2 || values.size(block) < 1 || values.size(block + 1) < 1)) {
    malformed("blocks without elements");  // libtorch divides by their sizes
  }
  return judged_by_torch([&] {
    at::_validate_sparse_compressed_tensor_args(compressed, plain, values, sizes, layout);
    return at::_sparse_compressed_tensor_unsafe(compressed, plain, values, sizes,
                                                values.options().layout(layout));
  });
}

// Only strided tensors are parts, so there is no recursion for a peer to build.
at::Tensor TensorUnpacker::part(const wire::TensorDesc& whole, std::size_t which) {
  if (which >= whole.parts.size() || whole.parts[which] >= tensors_.size()) {
    malformed("a part is missing");
  }
  const wire::TensorDesc& desc = tensors_[whole.parts[which]];
  const unsigned allowed = wire::kConjugate | wire::kNegative;
  if (desc.layout != wire::TensorLayout::Strided || (desc.flags & ~allowed) || desc.device != 0 ||
      c10::isQIntType(checked_dtype(desc))) {
    malformed("a part that is not a plain tensor");
  }
  at::Tensor tensor = strided(desc);
  if (has(desc, wire::kConjugate)) {
    if (!tensor.is_complex()) malformed("a conjugate view that is not complex");
    tensor._set_conj(true);
  }
  if (has(desc, wire::kNegative)) tensor._set_neg(true);
  return tensor;
}

c10::Storage TensorUnpacker::storage_for(const wire::TensorDesc& desc, const ByteRange& bytes) {
  if (bytes.empty()) return adopt(Buffer());
  if (desc.storage >= segments_.size()) malformed("its segment is missing");
  if (storages_.empty()) storages_.resize(segments_.size());
  c10::Storage& storage = storages_[desc.storage];
  const std::size_t available = storage ? storage.nbytes() : segments_[desc.storage].size();
  if (bytes.last > available) {
    malformed("it needs " + std::to_string(bytes.last) + " bytes, its segment has " +
              std::to_string(available));
  }
  if (!storage) storage = adopt(std::exchange(segments_[desc.storage], Buffer()));
  return storage;
}

}  // namespace hawser::tensor
