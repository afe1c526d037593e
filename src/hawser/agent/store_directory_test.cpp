#include "hawser/agent/store_directory.h"

#include <gtest/gtest.h>

#include "hawser/base/error.h"
#include "support/memory_store.h"

namespace hawser::agent {
namespace {

TEST(Cards, AreReadAsTheyWereWritten) {
  Card card{.name = "worker",
            .rank = 4'294'967'295,
            .incarnation = Incarnation{UINT64_MAX},
            .endpoints = {"shm:ab-1:hawser-x", "tcp:127.0.0.1:3409"}};
  EXPECT_EQ(read_card(write_card(card)), card);
  card.is_member = true;
  EXPECT_EQ(read_card(write_card(card)), card);
}

TEST(Cards, AreNotMadeOfSomethingElse) {
  for (const char* text :
       {"", "w", "w\n1", "w\nx\n2\n", "w\n-1\n2\n", "w\n1 \n2\n", "w\n member\n2\n",
        "w\n4294967296\n2\n", "w\n1\n18446744073709551616\n"}) {
    EXPECT_THROW(read_card(text), Error) << text;
  }
}

TEST(WorldIds, AreAgreedOnAndNothingElseIsTakenForOne) {
  const auto store = std::make_shared<testing::MemoryStore>();
  SystemRandom random;
  StoreDirectory one(store), other(store);
  EXPECT_EQ(one.agree_on_world(random).bytes, other.agree_on_world(random).bytes);
  for (const char* text :
       {"short", "0123456789abcdef0123456789abcdeg", "-123456789abcdef0123456789abcdef",
        "0x23456789abcdef0123456789abcdef"}) {
    store->set("world", text);
    EXPECT_THROW(one.agree_on_world(random), Error) << text;
  }
}

}  // namespace
}  // namespace hawser::agent
