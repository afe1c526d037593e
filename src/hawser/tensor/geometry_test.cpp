#include "hawser/tensor/geometry.h"

#include <gtest/gtest.h>

#include <limits>

namespace hawser::tensor {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

std::optional<ByteRange> floats(std::uint64_t offset, Shape sizes, Shape strides) {
  return byte_range(c10::ScalarType::Float, offset, sizes, strides);
}

TEST(Geometry, ContiguousStrides) {
  EXPECT_EQ(*contiguous_strides(Shape{2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(*contiguous_strides(Shape{}), Shape{});
  EXPECT_EQ(*contiguous_strides(Shape{2, 0, 4}), (Shape{4, 4, 1}));
  EXPECT_FALSE(contiguous_strides(Shape{kHuge, 2}));
}

TEST(Geometry, RangeCoversFirstToLastElement) {
  EXPECT_EQ(*floats(0, {}, {}), (ByteRange{0, 4}));
  EXPECT_EQ(*floats(3, {2, 2}, {10, 1}), (ByteRange{12, 60}));
  EXPECT_EQ(*floats(1, {1'000'000}, {0}), (ByteRange{4, 8}));
  EXPECT_TRUE(floats(7, {3, 0}, {1, 1})->empty());
}

TEST(Geometry, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(floats(0, {2, 2}, {1}));
  EXPECT_FALSE(floats(0, {-1}, {1}));
  EXPECT_FALSE(floats(0, {2}, {-1}));
  EXPECT_FALSE(floats(0, {kHuge}, {1}));
  EXPECT_FALSE(floats(0, {kHuge}, {0}));
  EXPECT_FALSE(floats(0, {2}, {kHuge}));
  EXPECT_FALSE(floats(0, {0, kHuge, kHuge}, {1, 1, 1}));
  EXPECT_FALSE(floats(std::numeric_limits<std::uint64_t>::max(), {1}, {1}));
  EXPECT_FALSE(floats(kHuge, {1}, {1}));
}

TEST(Geometry, SeveralElementsToAByte) {
  const auto range = [](Shape sizes, Shape strides) {
    return byte_range(c10::ScalarType::QUInt4x2, 0, sizes, strides);
  };
  EXPECT_EQ(*range({3, 5}, {5, 1}), (ByteRange{0, 9}));
  EXPECT_FALSE(range({3, 5}, {1, 3}));
}

TEST(Geometry, UnknownDtypes) {
  EXPECT_EQ(*dtype_from(6), c10::ScalarType::Float);
  EXPECT_FALSE(dtype_from(static_cast<std::uint8_t>(c10::ScalarType::Undefined)));
  EXPECT_FALSE(dtype_from(255));
}

}  // namespace
}  // namespace hawser::tensor
