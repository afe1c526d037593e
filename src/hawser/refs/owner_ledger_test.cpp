#include "hawser/refs/owner_ledger.h"

#include <gtest/gtest.h>

#include "hawser/refs/ticket.h"

namespace hawser::refs {
namespace {

using namespace std::chrono_literals;
using Creation = OwnerLedger::Creation;

const Party kUser{"user", Incarnation{1}};
const Party kChild{"child", Incarnation{1}};
// Made by the user.
const std::uint64_t kUserOrigin = origin_of(1, Incarnation{1});
const RefId kRef{kUserOrigin, 0};
const ForkId kCreator{kUserOrigin, 1};
const ForkId kFork{kUserOrigin, 2};
const Waiter kWaiter{77};

class OwnerLedgerTest : public ::testing::Test {
 protected:
  Actions take() {
    Actions all = std::exchange(desk_.actions, {});
    desk_.courier.collect(now_, all);
    return all;
  }
  // What was said to a party since the last look; the courier's own pace is not of interest here.
  std::vector<Record> said_to(const Party& party) {
    desk_.courier.connected(party.name);
    std::vector<Record> records;
    for (const Action& action : take()) {
      const auto* send = std::get_if<Send>(&action);
      if (!send || send->to != party) continue;
      records.insert(records.end(), send->message.records.begin(), send->message.records.end());
    }
    return records;
  }
  bool dropped(const RefId& ref) {
    bool found = false;
    for (const Action& action : take()) found |= action_is(action, DropValue{ref});
    return found;
  }
  template <class T>
  static bool action_is(const Action& action, const T& expected) {
    const auto* same = std::get_if<T>(&action);
    return same && *same == expected;
  }
  void pass(Duration time) {
    now_ += time;
    ledger_.tick(now_);
  }
  RefId create() {
    EXPECT_EQ(ledger_.create(kRef, kCreator, kUser, now_), Creation::New);
    return kRef;
  }

  TimePoint now_{1h};
  Desk desk_{{"owner", Incarnation{1}, origin_of(0, Incarnation{1})}, {}};
  OwnerLedger ledger_{desk_};
};

TEST_F(OwnerLedgerTest, AValueLivesAsLongAsItsCreatorHoldsIt) {
  create();
  EXPECT_TRUE(ledger_.fulfil(kRef, true));
  EXPECT_EQ(ledger_.wait(kRef, kWaiter, now_), Finding::Ready);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_TRUE(dropped(kRef));
  EXPECT_TRUE(ledger_.empty());
  EXPECT_EQ(ledger_.wait(kRef, kWaiter, now_), Finding::Gone);
}

TEST_F(OwnerLedgerTest, ACallWaitsForTheValue) {
  create();
  EXPECT_EQ(ledger_.wait(kRef, kWaiter, now_), Finding::Pending);
  EXPECT_TRUE(take().empty());
  ledger_.fulfil(kRef, false);
  const Actions actions = take();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_TRUE(action_is(actions[0], Wake{kWaiter, Finding::Failed}));
}

TEST_F(OwnerLedgerTest, ACallThatComesBeforeTheCreationWaitsToo) {
  EXPECT_EQ(ledger_.wait(kRef, kWaiter, now_), Finding::Pending);
  create();
  ledger_.fulfil(kRef, true);
  EXPECT_TRUE(action_is(take().at(0), Wake{kWaiter, Finding::Ready}));
}

TEST_F(OwnerLedgerTest, ACallThatGaveUpIsNotWoken) {
  create();
  ledger_.wait(kRef, kWaiter, now_);
  ledger_.stop_waiting(kRef, kWaiter, now_);
  ledger_.fulfil(kRef, true);
  EXPECT_TRUE(take().empty());
}

TEST_F(OwnerLedgerTest, NobodyWantsTheValueOfACreatorThatIsLost) {
  create();
  desk_.roster.of("user").lost = kUser.incarnation;
  ledger_.lost(desk_.roster.of("user"), now_);
  EXPECT_TRUE(dropped(kRef));
  EXPECT_FALSE(ledger_.fulfil(kRef, true));
}

TEST_F(OwnerLedgerTest, ACreationThatComesTwiceRunsOnce) {
  create();
  EXPECT_EQ(ledger_.create(kRef, kCreator, kUser, now_), Creation::Again);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_EQ(ledger_.create(kRef, kCreator, kUser, now_), Creation::Refused);
}

// Row 19 of the inventory: there the value stays for ever.
TEST_F(OwnerLedgerTest, ACreationThatIsOvertakenByItsDropIsRefused) {
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_EQ(ledger_.create(kRef, kCreator, kUser, now_), Creation::Refused);
  EXPECT_TRUE(ledger_.empty());
}

TEST_F(OwnerLedgerTest, IdsThatAreNotUniqueAreNoticed) {
  create();
  EXPECT_EQ(ledger_.create(kRef, ForkId{99, 1}, kChild, now_), Creation::Refused);
}

TEST_F(OwnerLedgerTest, AClaimKeepsTheValue) {
  create();
  ledger_.fulfil(kRef, true);
  ledger_.on(kChild, Claim{kRef, kFork}, now_);
  EXPECT_EQ(said_to(kChild), (std::vector<Record>{Confirm{kRef, kFork}}));
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_FALSE(dropped(kRef));
  ledger_.on(kChild, Drop{kRef, kFork}, now_);
  EXPECT_TRUE(dropped(kRef));
}

TEST_F(OwnerLedgerTest, AShareKeepsTheValueUntilItIsClaimed) {
  create();
  ledger_.on(kUser, Share{kRef, kFork, kChild}, now_);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_FALSE(dropped(kRef));
  ledger_.on(kChild, Claim{kRef, kFork}, now_);
  pass(1h);
  EXPECT_EQ(said_to(kChild), (std::vector<Record>{Confirm{kRef, kFork}})) << "not asked";
  EXPECT_EQ(ledger_.size(), 1u);
}

TEST_F(OwnerLedgerTest, AShareThatComesAfterTheDropBringsNothingBack) {
  create();
  ledger_.on(kChild, Claim{kRef, kFork}, now_);
  ledger_.on(kChild, Drop{kRef, kFork}, now_);
  ledger_.on(kUser, Share{kRef, kFork, kChild}, now_);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_TRUE(dropped(kRef));
}

TEST_F(OwnerLedgerTest, ATicketThatNobodyClaimsIsAskedAboutOnce) {
  create();
  ledger_.on(kUser, Share{kRef, kFork, kChild}, now_);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  pass(desk_.options.ask_after - 1ns);
  EXPECT_TRUE(said_to(kChild).empty());
  pass(1ns);
  EXPECT_EQ(said_to(kChild), (std::vector<Record>{Inquire{kRef, kFork}}));
  EXPECT_TRUE(ledger_.next_due().is_never());
  ledger_.on(kChild, Refuse{kRef, kFork}, now_);
  EXPECT_TRUE(dropped(kRef));
}

TEST_F(OwnerLedgerTest, ARefusalDoesNotTouchWhatIsClaimed) {
  create();
  ledger_.on(kChild, Claim{kRef, kFork}, now_);
  ledger_.on(kChild, Refuse{kRef, kFork}, now_);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_FALSE(dropped(kRef));
}

TEST_F(OwnerLedgerTest, AClaimOfAValueThatIsGoneIsDenied) {
  create();
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  ledger_.on(kChild, Claim{kRef, kFork}, now_);
  EXPECT_EQ(said_to(kChild), (std::vector<Record>{Deny{kRef, kFork}}));
  EXPECT_TRUE(ledger_.empty());
}

TEST_F(OwnerLedgerTest, AClaimThatComesBeforeTheCreationIsConfirmedWithIt) {
  ledger_.on(kChild, Claim{kRef, kFork}, now_);
  EXPECT_TRUE(said_to(kChild).empty());
  create();
  EXPECT_EQ(said_to(kChild), (std::vector<Record>{Confirm{kRef, kFork}}));
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_FALSE(dropped(kRef));
}

TEST_F(OwnerLedgerTest, ACreationThatIsCalledOffFailsThoseWhoWereEarly) {
  ledger_.on(kChild, Claim{kRef, kFork}, now_);
  ledger_.wait(kRef, kWaiter, now_);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_TRUE(action_is(desk_.actions.at(0), Wake{kWaiter, Finding::Gone}));
  EXPECT_EQ(said_to(kChild), (std::vector<Record>{Deny{kRef, kFork}}));
  EXPECT_TRUE(ledger_.empty());
  EXPECT_EQ(ledger_.create(kRef, kCreator, kUser, now_), Creation::Refused);
}

TEST_F(OwnerLedgerTest, ACreationIsNotAwaitedForEver) {
  ledger_.on(kChild, Claim{kRef, kFork}, now_);
  EXPECT_EQ(ledger_.next_due(), Deadline(now_ + desk_.options.await_creation));
  pass(desk_.options.await_creation - 1ns);
  EXPECT_EQ(ledger_.size(), 1u);
  pass(1ns);
  EXPECT_EQ(said_to(kChild), (std::vector<Record>{Deny{kRef, kFork}}));
  EXPECT_TRUE(ledger_.empty());
}

TEST_F(OwnerLedgerTest, ValuesOfThisNodeAreNeverAwaited) {
  const RefId own = ledger_.make(true, now_);
  ledger_.let_go(own, now_);
  EXPECT_TRUE(dropped(own));
  pass(1h);
  EXPECT_EQ(ledger_.wait(own, kWaiter, now_), Finding::Gone);
}

TEST_F(OwnerLedgerTest, AGrantHoldsTheValueWhileTheTicketIsInHand) {
  const RefId own = ledger_.make(true, now_);
  const auto ticket = ledger_.grant(own, "child", "int");
  ASSERT_TRUE(ticket);
  EXPECT_EQ(ticket->owner, "owner");
  EXPECT_EQ(ticket->parent, "owner");
  EXPECT_EQ(ticket->type, "int");
  ledger_.let_go(own, now_);
  pass(1h);  // the call waits for a connection: nobody is asked
  EXPECT_TRUE(take().empty());
  EXPECT_TRUE(ledger_.settled(fork_of(*ticket), kChild.incarnation, now_));
  pass(desk_.options.ask_after);
  EXPECT_EQ(said_to(kChild), (std::vector<Record>{Inquire{own, fork_of(*ticket)}}));
}

TEST_F(OwnerLedgerTest, ATicketThatNeverLeftHoldsNothing) {
  const RefId own = ledger_.make(true, now_);
  const auto ticket = ledger_.grant(own, "child", "");
  ledger_.let_go(own, now_);
  EXPECT_TRUE(take().empty());
  ledger_.settled(fork_of(*ticket), std::nullopt, now_);
  EXPECT_TRUE(dropped(own));
}

TEST_F(OwnerLedgerTest, AForkOfThisNodeThatWasRefusedCannotBeClaimedLater) {
  const RefId own = ledger_.make(true, now_);
  const ForkId fork = fork_of(*ledger_.grant(own, "child", ""));
  ledger_.settled(fork, kChild.incarnation, now_);
  ledger_.on(kChild, Refuse{own, fork}, now_);
  ledger_.on(kChild, Claim{own, fork}, now_);
  EXPECT_EQ(said_to(kChild), (std::vector<Record>{Deny{own, fork}}));
}

TEST_F(OwnerLedgerTest, ATicketThatComesHomeIsALocalHandle) {
  create();
  EXPECT_TRUE(ledger_.adopt(kRef, kFork, now_));
  ledger_.on(kUser, Share{kRef, kFork, {"owner", Incarnation{1}}}, now_);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_FALSE(dropped(kRef));
  EXPECT_FALSE(ledger_.adopt(kRef, kFork, now_)) << "a second copy";
  ledger_.let_go(kRef, now_);
  EXPECT_TRUE(dropped(kRef));
}

TEST_F(OwnerLedgerTest, ATicketToThisNodeThatIsLostIsGivenUp) {
  create();
  ledger_.on(kUser, Share{kRef, kFork, {"owner", Incarnation{1}}}, now_);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  pass(desk_.options.ask_after - 1ns);
  EXPECT_FALSE(dropped(kRef));
  pass(1ns);
  EXPECT_TRUE(dropped(kRef));
  EXPECT_FALSE(ledger_.adopt(kRef, kFork, now_)) << "too late";
}

TEST_F(OwnerLedgerTest, ANewLifeOfAHolderEndsTheFormer) {
  create();
  ledger_.on(kChild, Claim{kRef, kFork}, now_);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  desk_.roster.of("child").current = Incarnation{2};
  ledger_.lost(desk_.roster.of("child"), now_);
  EXPECT_TRUE(dropped(kRef));
}

TEST_F(OwnerLedgerTest, AShareWithSomebodyWhoIsLostHoldsNothing) {
  create();
  desk_.roster.of("child").lost = kChild.incarnation;
  ledger_.on(kUser, Share{kRef, kFork, kChild}, now_);
  ledger_.on(kUser, Drop{kRef, kCreator}, now_);
  EXPECT_TRUE(dropped(kRef));
}

TEST_F(OwnerLedgerTest, ReportsStageHoldersAndAge) {
  create();
  ledger_.on(kUser, Share{kRef, kFork, kChild}, now_);
  ledger_.wait(kRef, kWaiter, now_);
  const auto report = ledger_.report(now_ + 3s);
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].ref, kRef);
  EXPECT_EQ(report[0].stage, "pending");
  EXPECT_EQ(report[0].age, 3s);
  EXPECT_EQ(report[0].waiters, 1u);
  ASSERT_EQ(report[0].holders.size(), 2u);
  EXPECT_EQ(report[0].holders[0].node, "user");
  EXPECT_TRUE(report[0].holders[0].claimed);
  EXPECT_EQ(report[0].holders[1].node, "child");
  EXPECT_FALSE(report[0].holders[1].claimed);
}

}  // namespace
}  // namespace hawser::refs
