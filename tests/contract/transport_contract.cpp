#include "contract/contract.h"

// The promises of transport.h.
namespace hawser::contract {
namespace {

using transport::ConnectFailure;
using transport::ConnectOutcome;
using wire::RefusalReason;

constexpr auto kBudget = std::chrono::seconds(10);

// Connects left to right's endpoint and waits for the outcome.
ConnectOutcome connect(Medium& medium, End& from, const std::string& endpoint,
                       const std::string& name, Duration budget = kBudget) {
  const auto connecting = start_connect(medium, from, endpoint, name, budget);
  if (!wait_until(medium, [&] { return connecting->done(); })) {
    ADD_FAILURE() << "connect() did not complete";
    return ConnectFailure{};
  }
  return connecting->take();
}

ConnectFailure expect_failure(ConnectOutcome outcome) {
  const auto* failure = std::get_if<ConnectFailure>(&outcome);
  if (failure) return *failure;
  ADD_FAILURE() << "connected";
  return {};
}

TEST_P(TransportContract, BothEndsKnowEachOther) {
  Pair pair(*medium_);
  EXPECT_EQ(pair.left.link->peer().name, "right");
  EXPECT_EQ(pair.left.link->peer().incarnation, pair.right.host.identity().incarnation);
  EXPECT_EQ(pair.right.link->peer().name, "left");
  EXPECT_EQ(pair.right.link->peer().incarnation, pair.left.host.identity().incarnation);
  EXPECT_EQ(pair.left.link->transport(), pair.left.transport->name());
}

TEST_P(TransportContract, AnotherSecretIsTurnedAway) {
  End left(*medium_, "left", {});
  End right(*medium_, "right", {});
  auto identity = left.host.identity();
  identity.secret.back() ^= std::byte{1};
  left.host.set_identity(identity);
  const auto failure = expect_failure(connect(*medium_, left, right.transport->listen(), "right"));
  EXPECT_EQ(failure.refusal, RefusalReason::Secret) << failure.why;
  EXPECT_TRUE(wait_until(*medium_, [&] { return right.host.turned_away_because().size() == 1; }));
  EXPECT_EQ(right.host.take_accepted(), nullptr);
}

TEST_P(TransportContract, AnotherWorldIsTurnedAway) {
  End left(*medium_, "left", {});
  End right(*medium_, "right", {});
  auto identity = left.host.identity();
  identity.world.bytes[3] ^= 1;
  left.host.set_identity(identity);
  const auto failure = expect_failure(connect(*medium_, left, right.transport->listen(), "right"));
  EXPECT_EQ(failure.refusal, RefusalReason::World) << failure.why;
  EXPECT_TRUE(wait_until(*medium_, [&] { return right.host.turned_away_because().size() == 1; }));
}

TEST_P(TransportContract, AWrongNameIsTurnedAway) {
  End left(*medium_, "left", {});
  End right(*medium_, "right", {});
  const std::string endpoint = right.transport->listen();
  auto identity = right.host.identity();
  identity.name = "somebody else";
  right.host.set_identity(identity);
  const auto failure = expect_failure(connect(*medium_, left, endpoint, "right"));
  EXPECT_EQ(failure.refusal, RefusalReason::WrongName) << failure.why;
}

TEST_P(TransportContract, TheHostMayRefuse) {
  End left(*medium_, "left", {});
  End right(*medium_, "right", {});
  right.host.refuse_with(wire::Refusal{RefusalReason::DeclaredLost, "you were given up"});
  const auto failure = expect_failure(connect(*medium_, left, right.transport->listen(), "right"));
  EXPECT_EQ(failure.refusal, RefusalReason::DeclaredLost);
  EXPECT_NE(failure.why.find("you were given up"), std::string::npos) << failure.why;
  EXPECT_EQ(right.host.take_accepted(), nullptr);
}

TEST_P(TransportContract, NobodyAtTheDoor) {
  End left(*medium_, "left", {});
  std::string endpoint;
  {
    End gone(*medium_, "right", {});
    endpoint = gone.transport->listen();
  }
  const auto failure =
      expect_failure(connect(*medium_, left, endpoint, "right", std::chrono::seconds(2)));
  EXPECT_FALSE(failure.refusal);
  EXPECT_FALSE(failure.why.empty());
}

TEST_P(TransportContract, AnEndpointOfAnotherKindIsObjectedTo) {
  End left(*medium_, "left", {});
  EXPECT_TRUE(left.transport->objection("pigeon:loft 7"));
  const auto failure = expect_failure(connect(*medium_, left, "pigeon:loft 7", "right"));
  EXPECT_FALSE(failure.why.empty());
  End right(*medium_, "right", {});
  EXPECT_FALSE(left.transport->objection(right.transport->listen()));
}

TEST_P(TransportContract, ManyConnectAtOnce) {
  constexpr int kConnections = 40;
  End left(*medium_, "left", {});
  End right(*medium_, "right", {});
  const std::string endpoint = right.transport->listen();
  std::vector<std::shared_ptr<Connecting>> connecting;
  for (int i = 0; i < kConnections; ++i) {
    connecting.push_back(start_connect(*medium_, left, endpoint, "right", kBudget));
  }
  int accepted = 0;
  std::vector<std::shared_ptr<transport::Link>> links;
  ASSERT_TRUE(wait_until(*medium_, [&] {
    while (auto link = right.host.take_accepted()) {
      links.push_back(std::move(link));
      ++accepted;
    }
    return accepted == kConnections;
  }));
  for (auto& each : connecting) {
    ASSERT_TRUE(wait_until(*medium_, [&] { return each->done(); }));
    EXPECT_TRUE(std::holds_alternative<std::shared_ptr<transport::Link>>(each->take()));
  }
}

TEST_P(TransportContract, CloseFailsWhatIsConnectingExactlyOnce) {
  for (int round = 0; round < 10; ++round) {
    End left(*medium_, "left", {});
    End right(*medium_, "right", {});
    const std::string endpoint = right.transport->listen();
    const auto connecting = start_connect(*medium_, left, endpoint, "right", kBudget);
    if (round % 2) medium_->wait_for_progress({});
    left.transport->close();
    left.transport->close();
    EXPECT_TRUE(connecting->done());
    right.transport->close();
  }
}

TEST_P(TransportContract, LinksOutliveTheirTransport) {
  Pair pair(*medium_);
  pair.left.transport->close();
  pair.right.transport->close();
  const auto body = pattern(100, 1);
  ASSERT_TRUE(pair.left.link->send({wire::Kind::Call, body, {}}));
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 1; }));
  EXPECT_TRUE(has_pattern(pair.right.inbox[0].body.view(), 1));
}

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportContract);

}  // namespace hawser::contract
