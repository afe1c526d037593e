#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <span>

#include "hawser/base/inline_vector.h"

// Arithmetic on shapes that may come from a peer: nothing here overflows or trusts its input.
namespace hawser::tensor {

using Shape = InlineVector<std::int64_t, 5>;

// Whether `code` is a dtype that tensors can have.
std::optional<c10::ScalarType> dtype_from(std::uint8_t code);

// Elements that share a byte: 2 for quint4x2, 4 for quint2x4, else 1. Such tensors are always
// contiguous.
int elements_per_byte(c10::ScalarType dtype);

// Row-major. Nothing when the product of the sizes does not fit into 64 bits.
std::optional<Shape> contiguous_strides(std::span<const std::int64_t> sizes);

// The bytes of a storage that a tensor touches: [first, last). Empty when it has no elements.
struct ByteRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  std::uint64_t size() const { return last - first; }
  bool empty() const { return first == last; }
  bool operator==(const ByteRange&) const = default;
};

// Nothing when a size or stride is negative, their numbers differ, or a product or sum of them
// does not fit into 63 bits.
std::optional<ByteRange> byte_range(c10::ScalarType dtype, std::uint64_t offset,
                                    std::span<const std::int64_t> sizes,
                                    std::span<const std::int64_t> strides);

}  // namespace hawser::tensor
