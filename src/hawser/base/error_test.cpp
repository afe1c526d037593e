#include "hawser/base/error.h"

#include <gtest/gtest.h>

namespace hawser {
namespace {

TEST(Error, CarriesItsPartsAsData) {
  const Error error(ErrorKind::PeerLost, "worker is gone",
                    {.node = "worker", .function = "scale", .incarnation = 7});
  EXPECT_EQ(error.kind(), ErrorKind::PeerLost);
  EXPECT_EQ(error.message(), "worker is gone");
  EXPECT_STREQ(error.what(), "PeerLost: worker is gone");
  EXPECT_EQ(error.details().node, "worker");
  EXPECT_EQ(error.details().incarnation, 7u);
  EXPECT_FALSE(error.details().last_heard);
}

TEST(Error, CopiesShareOneBody) {
  const Error error(ErrorKind::Timeout, "late");
  const Error copy = error;
  EXPECT_EQ(copy.what(), error.what());
}

TEST(Error, AboutFillsOnlyWhatIsEmpty) {
  const Error plain(ErrorKind::Timeout, "late");
  EXPECT_EQ(plain.about("a", "f").details().node, "a");
  EXPECT_EQ(plain.about("a", "f").details().function, "f");
  EXPECT_TRUE(plain.details().node.empty());

  const Error known(ErrorKind::Remote, "boom", {.node = "b"});
  EXPECT_EQ(known.about("a", "f").details().node, "b");
  EXPECT_EQ(known.about("a", "f").details().function, "f");
  EXPECT_EQ(known.about("a", "f").kind(), ErrorKind::Remote);
}

TEST(Error, IsCaughtAsStandardException) {
  try {
    throw Error(ErrorKind::Invalid, "no such function");
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "Invalid: no such function");
  }
}

TEST(Error, EveryKindHasItsName) {
  EXPECT_EQ(to_string(ErrorKind::Timeout), "Timeout");
  EXPECT_EQ(to_string(ErrorKind::Cancelled), "Cancelled");
  EXPECT_EQ(to_string(ErrorKind::PeerLost), "PeerLost");
  EXPECT_EQ(to_string(ErrorKind::Overloaded), "Overloaded");
  EXPECT_EQ(to_string(ErrorKind::Refused), "Refused");
  EXPECT_EQ(to_string(ErrorKind::Remote), "Remote");
  EXPECT_EQ(to_string(ErrorKind::Invalid), "Invalid");
  EXPECT_EQ(to_string(static_cast<ErrorKind>(99)), "Unknown");
}

}  // namespace
}  // namespace hawser
