#include "hawser/tensor/geometry.h"

#include <algorithm>
#include <limits>

namespace hawser::tensor {
namespace {

constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();

// Unsigned arithmetic that remembers whether it ever left the range of int64.
class Checked {
 public:
  explicit Checked(std::uint64_t value) : value_(value), fits_(value <= kLargest) {}
  Checked& operator+=(std::uint64_t other) {
    fits_ = !__builtin_add_overflow(value_, other, &value_) && value_ <= kLargest && fits_;
    return *this;
  }
  Checked& operator*=(std::uint64_t other) {
    fits_ = !__builtin_mul_overflow(value_, other, &value_) && value_ <= kLargest && fits_;
    return *this;
  }
  bool fits() const { return fits_; }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_;
  bool fits_;
};

// Bytes of a contiguous tensor whose last dimension is padded to whole bytes.
std::optional<ByteRange> packed_range(int per_byte, std::span<const std::int64_t> sizes) {
  Checked bytes(1);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto size = static_cast<std::uint64_t>(sizes[i]);
    const bool innermost = i + 1 == sizes.size();
    bytes *= innermost ? size / per_byte + (size % per_byte != 0) : size;
  }
  if (!bytes.fits()) return std::nullopt;
  return ByteRange{0, bytes.value()};
}

}  // namespace

std::optional<c10::ScalarType> dtype_from(std::uint8_t code) {
  if (code >= static_cast<std::uint8_t>(c10::ScalarType::Undefined)) return std::nullopt;
  return static_cast<c10::ScalarType>(code);
}

int elements_per_byte(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::QUInt4x2) return 2;
  if (dtype == c10::ScalarType::QUInt2x4) return 4;
  return 1;
}

std::optional<Shape> contiguous_strides(std::span<const std::int64_t> sizes) {
  Shape strides;
  strides.resize(sizes.size());
  Checked stride(1);
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = static_cast<std::int64_t>(stride.value());
    stride *= static_cast<std::uint64_t>(std::max<std::int64_t>(sizes[i], 1));
    if (!stride.fits()) return std::nullopt;
  }
  return strides;
}

std::optional<ByteRange> byte_range(c10::ScalarType dtype, std::uint64_t offset,
                                    std::span<const std::int64_t> sizes,
                                    std::span<const std::int64_t> strides) {
  if (sizes.size() != strides.size()) return std::nullopt;
  const auto is_negative = [](std::int64_t n) { return n < 0; };
  if (std::ranges::any_of(sizes, is_negative) || std::ranges::any_of(strides, is_negative)) {
    return std::nullopt;
  }
  // libtorch multiplies the sizes and the element size in 64 bits: that must fit even where strides
  // of 0 make the memory small, or a size of 0 makes it nothing.
  const std::uint64_t element = c10::elementSize(dtype);
  Checked bytes(element), past_last(offset);
  bool has_elements = true;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto size = static_cast<std::uint64_t>(sizes[i]);
    has_elements = has_elements && size > 0;
    bytes *= std::max<std::uint64_t>(size, 1);
    Checked step(static_cast<std::uint64_t>(strides[i]));
    step *= size > 0 ? size - 1 : 0;
    if (!step.fits()) return std::nullopt;
    past_last += step.value();
  }
  past_last += 1;
  past_last *= element;
  Checked first(offset);
  first *= element;
  if (!bytes.fits() || !past_last.fits() || !first.fits()) return std::nullopt;
  if (!has_elements) return ByteRange{};
  if (elements_per_byte(dtype) > 1) {
    const auto expected = contiguous_strides(sizes);
    if (offset != 0 || !expected || !std::ranges::equal(*expected, strides)) return std::nullopt;
    return packed_range(elements_per_byte(dtype), sizes);
  }
  return ByteRange{first.value(), past_last.value()};
}

}  // namespace hawser::tensor
