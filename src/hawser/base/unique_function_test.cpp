#include "hawser/base/unique_function.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <stdexcept>

namespace hawser {
namespace {

// Counts the objects that are alive, to catch a callable that is destroyed twice or never.
struct Counted {
  explicit Counted(int& alive) : alive_(&alive) { ++*alive_; }
  Counted(const Counted& other) : alive_(other.alive_) { ++*alive_; }
  Counted(Counted&& other) noexcept : alive_(other.alive_) { ++*alive_; }
  ~Counted() { --*alive_; }
  int* alive_;
};

TEST(UniqueFunction, IsEmptyUntilItHoldsSomething) {
  UniqueFunction<int()> function;
  EXPECT_FALSE(function);
  function = [] { return 4; };
  EXPECT_TRUE(function);
  EXPECT_EQ(function(), 4);
  function = nullptr;
  EXPECT_FALSE(function);
}

TEST(UniqueFunction, HoldsWhatCanOnlyBeMoved) {
  UniqueFunction<int(int)> function = [number = std::make_unique<int>(3)](int x) {
    return *number + x;
  };
  UniqueFunction<int(int)> moved = std::move(function);
  EXPECT_FALSE(function);
  EXPECT_EQ(moved(4), 7);
}

TEST(UniqueFunction, ForwardsArgumentsWithoutCopies) {
  UniqueFunction<std::unique_ptr<int>(std::unique_ptr<int>)> pass = [](std::unique_ptr<int> given) {
    return given;
  };
  EXPECT_EQ(*pass(std::make_unique<int>(9)), 9);
  int counter = 0;
  UniqueFunction<void(int&)> increment = [](int& number) { ++number; };
  increment(counter);
  EXPECT_EQ(counter, 1);
}

TEST(UniqueFunction, DestroysSmallAndLargeCallablesOnce) {
  int alive = 0;
  {
    UniqueFunction<int()> small = [counted = Counted(alive)] { return *counted.alive_; };
    UniqueFunction<int()> large = [counted = Counted(alive), ballast = std::array<char, 200>{}] {
      return *counted.alive_ + ballast[0];
    };
    EXPECT_EQ(alive, 2);
    UniqueFunction<int()> moved = std::move(small);
    EXPECT_EQ(alive, 2);
    moved = std::move(large);  // the small one dies
    EXPECT_EQ(alive, 1);
    EXPECT_EQ(moved(), 1);
    UniqueFunction<int()>& self = moved;
    moved = std::move(self);
    EXPECT_EQ(moved(), 1);
  }
  EXPECT_EQ(alive, 0);
}

TEST(UniqueFunction, LetsExceptionsThroughAndStaysUsable) {
  int calls = 0;
  UniqueFunction<void()> function = [&calls] {
    if (++calls == 1) throw std::runtime_error("first");
  };
  EXPECT_THROW(function(), std::runtime_error);
  EXPECT_NO_THROW(function());
}

TEST(UniqueFunction, IgnoresAResultThatNobodyWants) {
  int calls = 0;
  UniqueFunction<void()> function = [&calls] { return ++calls; };
  function();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace hawser
