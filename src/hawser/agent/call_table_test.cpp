#include "hawser/agent/call_table.h"

#include <gtest/gtest.h>

#include <set>

namespace hawser::agent {
namespace {

using namespace std::chrono_literals;

const TimePoint kStart{1h};

OutstandingCall call_until(Deadline deadline, std::string function = "f") {
  OutstandingCall call;
  call.function = std::move(function);
  call.started = kStart;
  call.deadline = deadline;
  return call;
}

CallId open(CallTable& table, Deadline deadline = Deadline::never()) {
  OutstandingCall call = call_until(deadline);
  return *table.open(call);
}

TEST(CallTable, GivesBackWhatWasOpenedOnce) {
  CallTable table(10);
  OutstandingCall call = call_until(Deadline::never(), "scale");
  const auto id = table.open(call);
  ASSERT_TRUE(id);
  EXPECT_EQ(table.size(), 1u);
  const auto taken = table.take(*id);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->function, "scale");
  EXPECT_EQ(table.size(), 0u);
  EXPECT_FALSE(table.take(*id)) << "CALL-2";
}

TEST(CallTable, AnIdIsNeverUsedAgain) {
  CallTable table(4);
  std::set<CallId> seen;
  for (int i = 0; i < 1000; ++i) {
    const CallId id = open(table);
    EXPECT_TRUE(seen.insert(id).second);
    table.take(id);
  }
  for (const CallId id : seen) EXPECT_FALSE(table.take(id));
}

TEST(CallTable, IdsThatNobodyGaveOutAreNotFound) {
  CallTable table(4);
  open(table);
  EXPECT_FALSE(table.take(CallId{0}));
  EXPECT_FALSE(table.take(CallId{UINT64_MAX}));
  EXPECT_EQ(table.size(), 1u);
}

TEST(CallTable, LeavesTheCallAloneWhenFull) {
  CallTable table(2);
  open(table);
  const CallId second = open(table);
  OutstandingCall third = call_until(Deadline::never(), "third");
  EXPECT_FALSE(table.open(third));
  EXPECT_EQ(third.function, "third");
  table.take(second);
  EXPECT_TRUE(table.open(third));
}

TEST(CallTable, ExpiresWhatIsOverdueAndNothingElse) {
  CallTable table(10);
  const CallId early = open(table, Deadline(kStart + 1s));
  const CallId late = open(table, Deadline(kStart + 2s));
  const CallId never = open(table);
  EXPECT_EQ(table.earliest(), Deadline(kStart + 1s));
  EXPECT_TRUE(table.expire(kStart + 999ms).empty());

  const auto expired = table.expire(kStart + 1s);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].first, early);
  EXPECT_FALSE(table.take(early));
  EXPECT_EQ(table.earliest(), Deadline(kStart + 2s));
  EXPECT_TRUE(table.take(late));
  EXPECT_TRUE(table.earliest().is_never());
  EXPECT_TRUE(table.take(never));
}

TEST(CallTable, TakeAllEmptiesIt) {
  CallTable table(10);
  const CallId one = open(table);
  open(table);
  open(table);
  EXPECT_EQ(table.take_all().size(), 3u);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_FALSE(table.take(one));
  EXPECT_TRUE(table.take_all().empty());
}

TEST(CallTable, VisitsWhatIsThere) {
  CallTable table(10);
  const CallId one = open(table);
  const CallId two = open(table);
  table.take(one);
  std::vector<CallId> visited;
  table.for_each([&](CallId id, const OutstandingCall&) { visited.push_back(id); });
  EXPECT_EQ(visited, std::vector<CallId>{two});
}

}  // namespace
}  // namespace hawser::agent
