#include "hawser/base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace hawser {
namespace {

TEST(Result, HoldsAValue) {
  Result<int> result = 3;
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value(), 3);
  EXPECT_EQ(std::move(result).take(), 3);
}

TEST(Result, HoldsAnErrorAndThrowsItWhenTaken) {
  Result<int> result = Error(ErrorKind::Refused, "no");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind(), ErrorKind::Refused);
  try {
    std::move(result).take();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "no");
  }
}

TEST(Result, MovesWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = std::move(result).take();
  EXPECT_EQ(*taken, 5);
}

TEST(Result, OfNothing) {
  EXPECT_TRUE(Result<void>().ok());
  EXPECT_NO_THROW(Result<void>().take());
  const Result<void> failed = Error(ErrorKind::Timeout, "late");
  EXPECT_FALSE(failed);
  EXPECT_EQ(failed.error().kind(), ErrorKind::Timeout);
  EXPECT_THROW(Result<void>(failed).take(), Error);
}

}  // namespace
}  // namespace hawser
