#include "hawser/base/inline_vector.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace hawser {
namespace {

using Shape = InlineVector<std::int64_t, 5>;

std::vector<std::int64_t> contents(const Shape& shape) { return {shape.begin(), shape.end()}; }

TEST(InlineVector, IsNoLargerThanItsElementsAndTwoCounts) { EXPECT_EQ(sizeof(Shape), 48u); }

TEST(InlineVector, AllocatesOnlyBeyondItsInlineElements) {
  Shape shape{1, 2, 3, 4, 5};
  const auto* begin = reinterpret_cast<const std::byte*>(&shape);
  const auto* data = reinterpret_cast<const std::byte*>(shape.data());
  EXPECT_TRUE(data >= begin && data < begin + sizeof shape);
  shape.push_back(6);
  EXPECT_EQ(contents(shape), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_GE(shape.capacity(), 6u);
}

TEST(InlineVector, CopiesAreIndependentAndMovesLeaveNothingBehind) {
  for (const std::size_t size : {0u, 3u, 5u, 6u, 100u}) {
    Shape shape;
    for (std::size_t i = 0; i < size; ++i) shape.push_back(static_cast<std::int64_t>(i));
    Shape copy = shape;
    EXPECT_EQ(copy, shape);
    const Shape moved = std::move(copy);
    EXPECT_EQ(moved, shape);
    copy.assign(std::vector<std::int64_t>{9});  // a moved-from vector is empty and usable
    EXPECT_EQ(contents(copy), std::vector<std::int64_t>{9});
    if (size > 0) {
      shape[0] = -1;
      EXPECT_EQ(moved[0], 0);
    }
  }
}

TEST(InlineVector, AssignsInlineOverHeapAndBack) {
  const Shape small{1};
  const Shape large{1, 2, 3, 4, 5, 6, 7};
  Shape shape = large;
  shape = small;
  EXPECT_EQ(shape, small);
  shape = Shape(large);
  EXPECT_EQ(shape, large);
  shape = Shape(small);
  EXPECT_EQ(shape, small);
  const Shape& self = shape;
  shape = self;
  EXPECT_EQ(shape, small);
}

TEST(InlineVector, ResizeFillsWithZeros) {
  Shape shape{7};
  shape.resize(8);
  EXPECT_EQ(contents(shape), (std::vector<std::int64_t>{7, 0, 0, 0, 0, 0, 0, 0}));
  shape.resize(1);
  shape.resize(2);
  EXPECT_EQ(contents(shape), (std::vector<std::int64_t>{7, 0}));
}

TEST(InlineVector, RefusesWhatItCannotCount) {
  Shape shape;
  EXPECT_THROW(shape.reserve(std::size_t{1} << 32), std::length_error);
  EXPECT_TRUE(shape.empty());
}

TEST(InlineVector, BehavesLikeAVector) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Shape shape;
    std::vector<std::int64_t> expected;
    for (int step = 0; step < 20; ++step) {
      const std::int64_t value = static_cast<std::int64_t>(random());
      switch (random() % 4) {
        case 0:
        case 1:
          shape.push_back(value);
          expected.push_back(value);
          break;
        case 2: {
          const std::vector<std::int64_t> more(random() % 7, value);
          shape.append(more);
          expected.insert(expected.end(), more.begin(), more.end());
          break;
        }
        default:
          const std::size_t size = random() % 10;
          shape.resize(size);
          expected.resize(size);
      }
      ASSERT_EQ(contents(shape), expected);
    }
  }
}

}  // namespace
}  // namespace hawser
