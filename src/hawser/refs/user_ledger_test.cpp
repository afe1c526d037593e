#include "hawser/refs/user_ledger.h"

#include <gtest/gtest.h>

#include "hawser/refs/ticket.h"

namespace hawser::refs {
namespace {

using namespace std::chrono_literals;
using Adoption = UserLedger::Adoption;

const Party kOwner{"owner", Incarnation{3}};
const Incarnation kChildLife{5};
const Error kTimeout(ErrorKind::Timeout, "the creation timed out");

class UserLedgerTest : public ::testing::Test {
 protected:
  UserLedgerTest() { desk_.roster.of("owner").current = kOwner.incarnation; }

  std::vector<Record> said_to(const Party& party) {
    desk_.courier.connected(party.name);
    Actions actions;
    desk_.courier.collect(now_, actions);
    std::vector<Record> records;
    for (const Action& action : actions) {
      const auto& send = std::get<Send>(action);
      if (send.to != party) continue;
      records.insert(records.end(), send.message.records.begin(), send.message.records.end());
    }
    return records;
  }
  std::vector<Record> said() { return said_to(kOwner); }
  // A ticket from a third node.
  wire::ReferenceTicket ticket(std::uint64_t fork, std::uint64_t incarnation = 3) const {
    return {.owner = "owner",
            .owner_incarnation = incarnation,
            .ref_on = 9,
            .ref_local = 1,
            .fork_on = 9,
            .fork_local = fork,
            .parent = "giver"};
  }
  ForkId created() {
    const auto made = ledger_.create("owner", now_);
    ref_ = ref_of(made);
    ledger_.created(fork_of(made), kOwner.incarnation, now_);
    desk_.actions.clear();
    return fork_of(made);
  }
  ForkId grant(const ForkId& from) { return fork_of(ledger_.grant(from, "child", "").value()); }

  TimePoint now_{1h};
  Desk desk_{{"user", Incarnation{1}, origin_of(1, Incarnation{1})}, {}};
  UserLedger ledger_{desk_};
  RefId ref_;
};

TEST_F(UserLedgerTest, AReferenceTakesItsIdsFromOneCounter) {
  const auto first = ledger_.create("owner", now_);
  EXPECT_EQ(first.ref.local, 0u);
  EXPECT_EQ(first.fork.local, 1u);
  EXPECT_EQ(ledger_.create("owner", now_).ref.local, 2u);
}

TEST_F(UserLedgerTest, ACreationIsConfirmedByItsReply) {
  const ForkId fork = fork_of(ledger_.create("owner", now_));
  EXPECT_FALSE(ledger_.confirmed(fork));
  ledger_.created(fork, kOwner.incarnation, now_);
  EXPECT_TRUE(ledger_.confirmed(fork));
  EXPECT_EQ(std::get<Confirmed>(desk_.actions.at(0)).fork, fork);
  EXPECT_TRUE(said().empty()) << "the call and its reply have said it all";
}

TEST_F(UserLedgerTest, TheOwnerIsToldWhenTheLastHandleGoes) {
  const ForkId fork = created();
  EXPECT_TRUE(said().empty());
  ledger_.drop(fork, now_);
  EXPECT_EQ(said(), (std::vector<Record>{Drop{ref_, fork}}));
  EXPECT_TRUE(ledger_.empty());
  ledger_.drop(fork, now_);
  EXPECT_EQ(ledger_.begin_use(fork).error().kind(), ErrorKind::Invalid);
}

TEST_F(UserLedgerTest, ADropWaitsForTheCreationToEnd) {
  const auto made = ledger_.create("owner", now_);
  ledger_.drop(fork_of(made), now_);
  EXPECT_TRUE(said().empty());
  ledger_.created(fork_of(made), kOwner.incarnation, now_);
  EXPECT_EQ(said(), (std::vector<Record>{Drop{ref_of(made), fork_of(made)}}));
}

// Rows 1 and 19 of the inventory: each reference has its own error, and the owner is cleaned up.
TEST_F(UserLedgerTest, ACreationThatFailedAnswersWithItsErrorAndTellsTheOwner) {
  const auto first = ledger_.create("owner", now_);
  const auto second = ledger_.create("owner", now_);
  ledger_.creation_failed(fork_of(first), kTimeout, kOwner.incarnation, now_);
  EXPECT_TRUE(said().empty()) << "the program still has it";
  EXPECT_EQ(ledger_.begin_use(fork_of(first)).error().kind(), ErrorKind::Timeout);
  EXPECT_EQ(ledger_.grant(fork_of(first), "child", "").error().kind(), ErrorKind::Timeout);
  EXPECT_TRUE(ledger_.begin_use(fork_of(second)).ok());
  ledger_.created(fork_of(first), kOwner.incarnation, now_);  // the reply comes after all
  EXPECT_FALSE(ledger_.confirmed(fork_of(first)));
  ledger_.drop(fork_of(first), now_);
  EXPECT_EQ(said(), (std::vector<Record>{Drop{ref_of(first), fork_of(first)}}));
  EXPECT_FALSE(ledger_.holds(fork_of(first)));
}

TEST_F(UserLedgerTest, ACreationThatNeverLeftConcernsNobody) {
  const auto made = ledger_.create("owner", now_);
  ledger_.creation_failed(fork_of(made), kTimeout, std::nullopt, now_);
  EXPECT_TRUE(said().empty());
  EXPECT_TRUE(ledger_.error(fork_of(made)).has_value());
}

TEST_F(UserLedgerTest, AUseKeepsTheReference) {
  const ForkId fork = created();
  EXPECT_EQ(ledger_.begin_use(fork).value(), kOwner);
  ledger_.drop(fork, now_);
  EXPECT_TRUE(said().empty());
  ledger_.end_use(fork, now_);
  EXPECT_EQ(said(), (std::vector<Record>{Drop{ref_, fork}}));
}

TEST_F(UserLedgerTest, APipelinedUseNeedsNoConfirmation) {
  const auto made = ledger_.create("owner", now_);
  EXPECT_TRUE(ledger_.begin_use(fork_of(made)).ok());
}

// REF-1: the share is told before the drop, in one order.
TEST_F(UserLedgerTest, ATicketOnItsWayKeepsItsGiver) {
  const ForkId fork = created();
  const ForkId given = grant(fork);
  ledger_.drop(fork, now_);
  EXPECT_TRUE(said().empty());
  ledger_.settled(given, kChildLife, now_);
  EXPECT_EQ(said(),
            (std::vector<Record>{Share{ref_, given, {"child", kChildLife}}, Drop{ref_, fork}}));
}

// The owner may think otherwise of the child, and the ticket arrive.
TEST_F(UserLedgerTest, ATicketToSomebodyWhoIsGivenUpIsToldAllTheSame) {
  const ForkId fork = created();
  const ForkId given = grant(fork);
  Roster::Entry& child = desk_.roster.of("child");
  child.current = child.lost = kChildLife;
  ledger_.settled(given, Incarnation{}, now_);  // nobody knows whom it reached
  EXPECT_EQ(said(), (std::vector<Record>{Share{ref_, given, {"child", kChildLife}}}));
}

TEST_F(UserLedgerTest, ATicketThatNeverLeftIsNotTold) {
  const ForkId fork = created();
  const ForkId given = grant(fork);
  ledger_.settled(given, std::nullopt, now_);
  EXPECT_TRUE(said().empty());
  ledger_.drop(fork, now_);
  EXPECT_EQ(said(), (std::vector<Record>{Drop{ref_, fork}}));
}

TEST_F(UserLedgerTest, WhatIsSharedBeforeTheCreationEndsIsToldAfterIt) {
  const auto made = ledger_.create("owner", now_);
  const ForkId given = grant(fork_of(made));
  ledger_.settled(given, kChildLife, now_);
  EXPECT_TRUE(said().empty());
  ledger_.created(fork_of(made), kOwner.incarnation, now_);
  EXPECT_EQ(said(), (std::vector<Record>{Share{ref_of(made), given, {"child", kChildLife}}}));
}

TEST_F(UserLedgerTest, WhatIsSharedIsToldAlsoWhenTheCreationTimesOut) {
  const auto made = ledger_.create("owner", now_);
  const ForkId given = grant(fork_of(made));
  ledger_.creation_failed(fork_of(made), kTimeout, kOwner.incarnation, now_);
  ledger_.drop(fork_of(made), now_);
  EXPECT_TRUE(said().empty()) << "the ticket is still on its way";
  ledger_.settled(given, kChildLife, now_);
  EXPECT_EQ(said(), (std::vector<Record>{Share{ref_of(made), given, {"child", kChildLife}},
                                         Drop{ref_of(made), fork_of(made)}}));
}

TEST_F(UserLedgerTest, ATicketIsClaimedWhenItComes) {
  EXPECT_EQ(ledger_.adopt(ticket(1), now_), Adoption::New);
  EXPECT_EQ(said(), (std::vector<Record>{Claim{{9, 1}, {9, 1}}}));
  EXPECT_FALSE(ledger_.confirmed({9, 1}));
  EXPECT_TRUE(ledger_.begin_use({9, 1}).ok()) << "REF-4: before it is confirmed";
  ledger_.on(kOwner, Confirm{{9, 1}, {9, 1}}, now_);
  EXPECT_TRUE(ledger_.confirmed({9, 1}));
}

TEST_F(UserLedgerTest, ATicketFromTheOwnerIsConfirmedAtOnce) {
  auto from_owner = ticket(1);
  from_owner.parent = "owner";
  ledger_.adopt(from_owner, now_);
  EXPECT_TRUE(ledger_.confirmed({9, 1}));
  EXPECT_EQ(said().size(), 1u) << "claimed all the same: the owner need not ask";
}

TEST_F(UserLedgerTest, ASecondCopyOfATicketIsTheSameReference) {
  ledger_.adopt(ticket(1), now_);
  EXPECT_EQ(ledger_.adopt(ticket(1), now_), Adoption::Again);
  EXPECT_EQ(said().size(), 1u);
  ledger_.drop({9, 1}, now_);
  EXPECT_TRUE(ledger_.holds({9, 1}));
  ledger_.drop({9, 1}, now_);
  EXPECT_FALSE(ledger_.holds({9, 1}));
  EXPECT_EQ(ledger_.adopt(ticket(1), now_), Adoption::Refused) << "a copy of one that is over";
}

TEST_F(UserLedgerTest, AReferenceThatIsDeniedFails) {
  ledger_.adopt(ticket(1), now_);
  said();
  ledger_.on(kOwner, Deny{{9, 1}, {9, 1}}, now_);
  EXPECT_EQ(std::get<Failed>(desk_.actions.at(0)).why.kind(), ErrorKind::PeerLost);
  EXPECT_EQ(ledger_.begin_use({9, 1}).error().kind(), ErrorKind::PeerLost);
  ledger_.drop({9, 1}, now_);
  EXPECT_TRUE(ledger_.empty());
}

TEST_F(UserLedgerTest, WhatIsNotHereIsRefusedAndStaysRefused) {
  ledger_.on(kOwner, Inquire{{9, 1}, {9, 1}}, now_);
  EXPECT_EQ(said(), (std::vector<Record>{Refuse{{9, 1}, {9, 1}}}));
  EXPECT_EQ(ledger_.adopt(ticket(1), now_), Adoption::Refused);
}

TEST_F(UserLedgerTest, WhatIsHereIsNotRefused) {
  ledger_.adopt(ticket(1), now_);
  said();
  const auto before = desk_.courier.unacknowledged();
  ledger_.on(kOwner, Inquire{{9, 1}, {9, 1}}, now_);
  EXPECT_EQ(desk_.courier.unacknowledged(), before);
}

TEST_F(UserLedgerTest, ReferencesToALostOwnerFailAtOnce) {
  const ForkId fork = created();
  ledger_.adopt(ticket(1), now_);
  Roster::Entry& owner = desk_.roster.of("owner");
  owner.lost = kOwner.incarnation;
  ledger_.lost(owner, false, now_);
  EXPECT_EQ(desk_.actions.size(), 2u);
  EXPECT_EQ(ledger_.begin_use(fork).error().kind(), ErrorKind::PeerLost);
  EXPECT_EQ(ledger_.begin_use({9, 1}).error().kind(), ErrorKind::PeerLost);
  EXPECT_EQ(ledger_.adopt(ticket(2), now_), Adoption::New) << "the arguments can be read";
  EXPECT_EQ(ledger_.begin_use({9, 2}).error().kind(), ErrorKind::PeerLost);
}

TEST_F(UserLedgerTest, ATicketWhoseOwnerIsNotKnownYetWaitsForIt) {
  auto unknown = ticket(1, 0);
  unknown.owner = "stranger";
  ledger_.adopt(unknown, now_);
  const ForkId given = grant({9, 1});
  ledger_.settled(given, kChildLife, now_);
  ledger_.drop({9, 1}, now_);
  Roster::Entry& stranger = desk_.roster.of("stranger");
  stranger.current = Incarnation{8};
  ledger_.bind(stranger, now_);
  EXPECT_EQ(said_to({"stranger", Incarnation{8}}),
            (std::vector<Record>{Claim{{9, 1}, {9, 1}}, Share{{9, 1}, given, {"child", kChildLife}},
                                 Drop{{9, 1}, {9, 1}}}));
}

TEST_F(UserLedgerTest, ReportsStateHandlesAndAge) {
  const ForkId fork = created();
  grant(fork);
  const auto report = ledger_.report(now_ + 2s);
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].owner, "owner");
  EXPECT_EQ(report[0].owner_incarnation, 3u);
  EXPECT_EQ(report[0].state, "confirmed");
  EXPECT_EQ(report[0].handles, 1u);
  EXPECT_EQ(report[0].pins, 1u);
  EXPECT_EQ(report[0].age, 2s);
}

}  // namespace
}  // namespace hawser::refs
