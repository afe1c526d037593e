#include "hawser/tensor/pack.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>

#include "hawser/base/error.h"
#include "hawser/tensor/storage_memory.h"

namespace hawser::tensor {
namespace {

[[noreturn]] void refuse(const std::string& property) {
  throw Error(ErrorKind::Invalid, "cannot send a tensor " + property);
}

std::span<const std::int64_t> span_of(c10::IntArrayRef values) {
  return {values.data(), values.size()};
}

struct UnsupportedKey {
  c10::DispatchKey key;
  const char* property;
};

// Such tensors only stand for others, and the code that knows them does not travel.
constexpr std::array kUnsupportedKeys = {
    UnsupportedKey{c10::DispatchKey::Python, "of a subclass with __torch_dispatch__"},
    UnsupportedKey{c10::DispatchKey::Fake, "that is fake"},
    UnsupportedKey{c10::DispatchKey::FuncTorchBatched, "inside vmap"},
    UnsupportedKey{c10::DispatchKey::Batched, "inside vmap"},
    UnsupportedKey{c10::DispatchKey::BatchedNestedTensor, "inside vmap"},
    UnsupportedKey{c10::DispatchKey::FuncTorchGradWrapper, "inside a torch.func transform"},
    UnsupportedKey{c10::DispatchKey::Functionalize, "inside functionalization"},
    UnsupportedKey{c10::DispatchKey::NestedTensor, "of nested layout"},
};

void refuse_unsupported(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  for (const auto& [key, property] : kUnsupportedKeys) {
    if (keys.has(key)) refuse(property);
  }
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) refuse("with symbolic sizes");
  if (tensor.is_meta()) refuse("of device meta: it has no bytes");
}

// The dtype whose elements are copied in place of those of `size` bytes.
c10::ScalarType plain_dtype(std::uint32_t size) {
  switch (size) {
    case 1:
      return c10::ScalarType::Byte;
    case 2:
      return c10::ScalarType::Short;
    case 4:
      return c10::ScalarType::Int;
    case 8:
      return c10::ScalarType::Long;
    default:
      return c10::ScalarType::ComplexDouble;
  }
}

// Bytes of the elements that exist: an expanded dimension counts once.
std::uint64_t bytes_of_elements(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                std::uint64_t element_size) {
  std::uint64_t bytes = element_size;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] != 0) bytes *= static_cast<std::uint64_t>(sizes[i]);
  }
  return bytes;
}

constexpr std::size_t kUsualCount = 4;        // of tensors in a message; more cost a reallocation
constexpr std::uint64_t kJoinGap = 256;       // regions this close become one segment
constexpr std::uint64_t kWorthCopying = 512;  // a region up to this is sent as it is
constexpr std::size_t kMostCompared = 64;     // beyond so many views, overlap is assumed

}  // namespace

std::uint32_t TensorPacker::add(at::Tensor tensor) {
  wire::TensorDesc desc;
  if (!tensor.defined()) {
    desc.flags = wire::kUndefined;
    return describe(std::move(desc));
  }
  refuse_unsupported(tensor);
  if (tensor.requires_grad()) {
    desc.flags |= wire::kRequiresGrad;
    differentiable_.push_back(tensor);
  }
  at::AutoDispatchBelowADInplaceOrView bytes_only;
  if (!tensor.device().is_cpu()) {
    if (!staging_) {
      refuse("of device " + tensor.device().str() + ": no device map for this peer");
    }
    desc.device = device_code(staging_->device_at_peer(tensor.device()));
    tensor = staging_->to_cpu(tensor);
  }
  if (tensor._is_zerotensor()) tensor = at::zeros(tensor.sizes(), tensor.dtype());
  if (tensor.is_conj()) desc.flags |= wire::kConjugate;
  if (tensor.is_neg()) desc.flags |= wire::kNegative;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) desc.flags |= wire::kWrappedNumber;
  desc.dtype = static_cast<std::uint8_t>(tensor.scalar_type());
  desc.sizes.assign(span_of(tensor.sizes()));
  switch (tensor.layout()) {
    case c10::kStrided:
      return add_strided(tensor, std::move(desc));
    case c10::kSparse:
      return add_sparse(tensor, std::move(desc));
    case c10::kSparseCsr:
    case c10::kSparseCsc:
    case c10::kSparseBsr:
    case c10::kSparseBsc:
      return add_compressed(tensor, std::move(desc));
    default:
      refuse("of layout " + c10::str(tensor.layout()));
  }
}

std::uint32_t TensorPacker::describe(wire::TensorDesc desc) {
  if (tensors_.empty()) tensors_.reserve(kUsualCount);
  tensors_.push_back(std::move(desc));
  return static_cast<std::uint32_t>(tensors_.size() - 1);
}

std::uint32_t TensorPacker::add_strided(const at::Tensor& tensor, wire::TensorDesc desc) {
  if (!tensor.has_storage()) refuse("without storage (an opaque implementation)");
  if (tensor.is_quantized()) describe_quantizer(tensor, desc);
  const auto offset = static_cast<std::uint64_t>(tensor.storage_offset());
  const auto bytes =
      byte_range(tensor.scalar_type(), offset, span_of(tensor.sizes()), span_of(tensor.strides()));
  if (!bytes) refuse("of sizes and strides that make no sense");
  const c10::Storage& storage = tensor.storage();
  if (!bytes->empty() && (bytes->last > storage.nbytes() || !storage.data())) {
    refuse("that needs " + std::to_string(bytes->last) + " bytes of a storage that has " +
           std::to_string(storage.data() ? storage.nbytes() : 0));
  }
  const auto row_major = contiguous_strides(span_of(tensor.sizes()));
  if (!row_major || !std::ranges::equal(*row_major, tensor.strides())) {
    desc.strides.assign(span_of(tensor.strides()));
  }
  const std::uint32_t index = describe(std::move(desc));
  if (!bytes->empty()) {
    if (needs_.empty()) needs_.reserve(kUsualCount);
    const auto element_size = static_cast<std::uint32_t>(tensor.element_size());
    const std::uint64_t used =
        elements_per_byte(tensor.scalar_type()) > 1
            ? bytes->size()
            : bytes_of_elements(tensor.sizes(), tensor.strides(), element_size);
    needs_.push_back(Need{storage, index, *bytes, std::min(used, bytes->size()), element_size,
                          Shape(span_of(tensor.strides()))});
  }
  return index;
}

std::uint32_t TensorPacker::add_part(const at::Tensor& tensor) {
  wire::TensorDesc desc;
  desc.dtype = static_cast<std::uint8_t>(tensor.scalar_type());
  desc.sizes.assign(span_of(tensor.sizes()));
  if (tensor.is_conj()) desc.flags |= wire::kConjugate;
  if (tensor.is_neg()) desc.flags |= wire::kNegative;
  return add_strided(tensor, std::move(desc));
}

std::uint32_t TensorPacker::add_sparse(const at::Tensor& tensor, wire::TensorDesc desc) {
  desc.layout = wire::TensorLayout::SparseCoo;
  if (tensor.is_coalesced()) desc.flags |= wire::kCoalesced;
  desc.parts = {add_part(tensor._indices()), add_part(tensor._values())};
  return describe(std::move(desc));
}

std::uint32_t TensorPacker::add_compressed(const at::Tensor& tensor, wire::TensorDesc desc) {
  const bool by_row = tensor.layout() == c10::kSparseCsr || tensor.layout() == c10::kSparseBsr;
  const bool in_blocks = tensor.layout() == c10::kSparseBsr || tensor.layout() == c10::kSparseBsc;
  if (by_row) {
    desc.layout = in_blocks ? wire::TensorLayout::SparseBsr : wire::TensorLayout::SparseCsr;
    desc.parts = {add_part(tensor.crow_indices()), add_part(tensor.col_indices())};
  } else {
    desc.layout = in_blocks ? wire::TensorLayout::SparseBsc : wire::TensorLayout::SparseCsc;
    desc.parts = {add_part(tensor.ccol_indices()), add_part(tensor.row_indices())};
  }
  desc.parts.push_back(add_part(tensor.values()));
  return describe(std::move(desc));
}

void TensorPacker::describe_quantizer(const at::Tensor& tensor, wire::TensorDesc& desc) {
  switch (tensor.qscheme()) {
    case c10::kPerTensorAffine:
      desc.flags |= wire::kPerTensorAffine;
      desc.scale = tensor.q_scale();
      desc.zero_point = tensor.q_zero_point();
      return;
    case c10::kPerChannelAffine:
    case c10::kPerChannelAffineFloatQParams:  // told apart by the dtype of the zero points
      desc.flags |= wire::kPerChannelAffine;
      desc.axis = static_cast<std::int32_t>(tensor.q_per_channel_axis());
      desc.parts = {add_part(tensor.q_per_channel_scales()),
                    add_part(tensor.q_per_channel_zero_points())};
      return;
    default:
      refuse("of quantization scheme " + c10::toString(tensor.qscheme()));
  }
}

TensorPacker::Packed TensorPacker::finish(std::uint32_t first_segment) {
  first_segment_ = first_segment;
  segments_.reserve(needs_.size());
  std::vector<const Need*> order;
  order.reserve(needs_.size());
  for (const Need& need : needs_) order.push_back(&need);
  if (order.size() > 1) {
    std::ranges::sort(order, {}, [](const Need* need) {
      return std::tuple(need->storage.unsafeGetStorageImpl(), need->bytes.first, need->tensor);
    });
  }
  for (auto at = order.begin(); at != order.end();) {
    const auto other = std::find_if(at, order.end(), [&](const Need* need) {
      return !need->storage.is_alias_of((*at)->storage);
    });
    place_storage(Needs(at, other));
    at = other;
  }
  needs_.clear();  // from here on only the segments hold the memory
  return Packed{std::move(tensors_), std::move(segments_), std::move(differentiable_)};
}

// All needs of one storage, by first byte.
void TensorPacker::place_storage(Needs needs) {
  const Buffer storage = lend(needs.front()->storage);
  for (auto at = needs.begin(); at != needs.end();) {
    std::uint64_t last = (*at)->bytes.last;
    auto next = at + 1;
    for (; next != needs.end() && (*next)->bytes.first <= last + kJoinGap; ++next) {
      last = std::max(last, (*next)->bytes.last);
    }
    place_region(Needs(at, next), storage);
    at = next;
  }
}

// Needs that lie close together: as they are if most of the region is wanted, else in groups that
// really share memory.
void TensorPacker::place_region(Needs needs, const Buffer& storage) {
  std::uint64_t last = 0, used = 0;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    last = std::max(last, needs[i]->bytes.last);
    const bool repeated = i > 0 && same_elements(*needs[i], *needs[i - 1], tensors_);
    if (!repeated) used += needs[i]->bytes_used;
  }
  const std::uint64_t region = last - needs.front()->bytes.first;
  if (region <= kWorthCopying || used >= region / 2 || needs.size() > kMostCompared) {
    place_as_is(needs, storage);
    return;
  }
  std::vector<const Need*> left(needs.begin(), needs.end());
  while (!left.empty()) {
    std::vector<const Need*> group{left.front()};
    left.erase(left.begin());
    for (std::size_t reached = 0; reached < group.size(); ++reached) {
      const auto rest = std::ranges::stable_partition(
          left, [&](const Need* need) { return !may_overlap(*group[reached], *need, tensors_); });
      group.insert(group.end(), rest.begin(), rest.end());
      left.erase(rest.begin(), rest.end());
    }
    const bool one_view = std::ranges::all_of(
        group, [&](const Need* need) { return same_elements(*need, *group.front(), tensors_); });
    const Need& view = *group.front();
    if (one_view && view.bytes_used < view.bytes.size() / 2) {
      place_compacted(group);
    } else {
      place_as_is(group, storage);
    }
  }
}

void TensorPacker::place_as_is(Needs needs, const Buffer& storage) {
  ByteRange region = needs.front()->bytes;
  std::uint64_t coarsest = 1;
  for (const Need* need : needs) {
    region.first = std::min(region.first, need->bytes.first);
    region.last = std::max(region.last, need->bytes.last);
    coarsest = std::max<std::uint64_t>(coarsest, need->element_size);
  }
  region.first -= region.first % coarsest;  // so that every offset is a whole number of elements
  const auto segment = first_segment_ + static_cast<std::uint32_t>(segments_.size());
  segments_.emplace_back(storage.data() + region.first, region.size(), storage.owner());
  for (const Need* need : needs) {
    tensors_[need->tensor].storage = segment;
    tensors_[need->tensor].offset = (need->bytes.first - region.first) / need->element_size;
  }
}

// One view, perhaps wanted several times.
void TensorPacker::place_compacted(Needs needs) {
  const Need& view = *needs.front();
  const Shape& sizes = tensors_[view.tensor].sizes;
  Shape once = sizes;  // each expanded dimension taken once
  for (std::size_t i = 0; i < once.size(); ++i) {
    if (view.strides[i] == 0) once[i] = 1;
  }
  at::AutoDispatchBelowADInplaceOrView bytes_only;
  const auto alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(view.storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(plain_dtype(view.element_size)));
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(
      c10::IntArrayRef(once.data(), once.size()),
      c10::IntArrayRef(view.strides.data(), view.strides.size()),
      static_cast<std::int64_t>(view.bytes.first / view.element_size));
  const at::Tensor copy = alias.clone(c10::MemoryFormat::Contiguous);

  Shape strides(span_of(copy.strides()));
  for (std::size_t i = 0; i < strides.size(); ++i) {
    if (view.strides[i] == 0) strides[i] = 0;
  }
  if (std::ranges::equal(strides, *contiguous_strides(sizes))) strides.clear();
  const auto segment = first_segment_ + static_cast<std::uint32_t>(segments_.size());
  segments_.push_back(lend(copy.storage()));
  for (const Need* need : needs) {
    wire::TensorDesc& desc = tensors_[need->tensor];
    desc.storage = segment;
    desc.offset = 0;
    desc.strides = strides;
  }
}

bool TensorPacker::same_elements(const Need& a, const Need& b,
                                 const std::vector<wire::TensorDesc>& in) {
  return a.bytes == b.bytes && a.element_size == b.element_size && a.strides == b.strides &&
         in[a.tensor].sizes == in[b.tensor].sizes;
}

// Whether some byte may belong to both; false only if that is certain. Besides views that lie
// apart, it knows those that lie side by side in rows of the same length, such as two columns of a
// matrix: all their larger strides are multiples of the row, and what remains within a row is
// disjoint.
bool TensorPacker::may_overlap(const Need& a, const Need& b,
                               const std::vector<wire::TensorDesc>& in) {
  if (a.bytes.last <= b.bytes.first || b.bytes.last <= a.bytes.first) return false;
  const auto row_of = [](const Need& need) {
    const auto largest = std::ranges::max_element(need.strides);
    return largest == need.strides.end() ? 0 : *largest * std::int64_t{need.element_size};
  };
  const std::int64_t row = std::min(row_of(a), row_of(b));
  if (row <= 0) return true;
  const auto within_row = [&](const Need& need) {
    std::uint64_t reach = need.element_size;
    for (std::size_t i = 0; i < need.strides.size(); ++i) {
      const std::int64_t stride = need.strides[i] * std::int64_t{need.element_size};
      if (stride % row != 0) reach += (in[need.tensor].sizes[i] - 1) * stride;
    }
    const std::uint64_t first = need.bytes.first % static_cast<std::uint64_t>(row);
    return ByteRange{first, first + reach};
  };
  const ByteRange in_a = within_row(a), in_b = within_row(b);
  const auto length = static_cast<std::uint64_t>(row);
  if (in_a.last > length || in_b.last > length) return true;
  return in_a.first < in_b.last && in_b.first < in_a.last;
}

}  // namespace hawser::tensor
