#include "hawser/transport/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "hawser/base/error.h"
#include "support/outcome.h"

namespace hawser::transport {
namespace {

using Bytes = std::vector<std::byte>;

class CountingRandom final : public Random {
 public:
  void fill(std::span<std::byte> out) override {
    for (std::byte& each : out) each = static_cast<std::byte>(next_++);
  }

 private:
  unsigned next_ = 1;
};

class Doorman final : public Host {
 public:
  Identity identity() const override { return self; }
  std::optional<wire::Refusal> admit(const wire::Hello&) override {
    ++asked;
    return asked >= refuse_from ? refusal : std::nullopt;
  }
  void accepted(std::shared_ptr<Link>) override {}
  void turned_away(std::string_view) override {}
  void watch_writable(Link&) override {}

  Identity self;
  int asked = 0;
  int refuse_from = 1;
  std::optional<wire::Refusal> refusal;
};

Identity node(std::string name, std::uint64_t incarnation) {
  Identity identity;
  identity.name = std::move(name);
  identity.incarnation = Incarnation{incarnation};
  identity.world.bytes.fill(9);
  identity.secret.assign(16, std::byte{3});
  return identity;
}

Bytes frame_of(const wire::Handshake& message) { return wire::to_bytes(wire::encode(message)); }

wire::Handshake message_in(const Bytes& frame) {
  wire::FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  return wire::decode_handshake(std::span(frame).subspan(sizeof header), header.kind).take();
}

struct HandshakeTest : ::testing::Test {
  HandshakeTest() { doorman.self = node("server", 5); }

  InitiatorHandshake initiator() { return {caller, "server", random}; }
  AcceptorHandshake acceptor() { return {doorman, random, wire::Welcome{4096}}; }

  Identity caller = node("client", 2);
  CountingRandom random;
  Doorman doorman;
};

TEST_F(HandshakeTest, BothEndsLearnWhoTheOtherIs) {
  auto client = initiator();
  auto server = acceptor();
  const auto challenge = std::get<SendThis>(server.receive(client.start()));
  const auto proof = std::get<SendThis>(client.receive(challenge.bytes));
  const auto welcomed = std::get<Succeeded>(server.receive(proof.bytes));
  EXPECT_EQ(welcomed.peer.name, "client");
  EXPECT_EQ(welcomed.peer.incarnation, Incarnation{2});
  const auto welcome = std::get<Succeeded>(client.receive(welcomed.last_words));
  EXPECT_EQ(welcome.peer.name, "server");
  EXPECT_EQ(welcome.peer.incarnation, Incarnation{5});
  EXPECT_TRUE(welcome.last_words.empty());
  EXPECT_EQ(client.welcome().ring_bytes, 4096u);
  EXPECT_EQ(doorman.asked, 2);  // at Hello, and again before Welcome
}

TEST_F(HandshakeTest, AnEmptySecretIsASecretToo) {
  caller.secret.clear();
  doorman.self.secret.clear();
  auto client = initiator();
  auto server = acceptor();
  const auto challenge = std::get<SendThis>(server.receive(client.start()));
  EXPECT_TRUE(std::holds_alternative<SendThis>(client.receive(challenge.bytes)));
}

TEST_F(HandshakeTest, InitiatorNoticesAnAcceptorWithoutTheSecret) {
  doorman.self.secret.back() = std::byte{4};
  auto client = initiator();
  auto server = acceptor();
  const auto challenge = std::get<SendThis>(server.receive(client.start()));
  const auto failed = std::get<Failed>(client.receive(challenge.bytes));
  EXPECT_EQ(failed.refusal, wire::RefusalReason::Secret);
  EXPECT_TRUE(failed.last_words.empty());
}

TEST_F(HandshakeTest, AcceptorRefusesAForgedProof) {
  auto client = initiator();
  auto server = acceptor();
  const auto challenge = std::get<SendThis>(server.receive(client.start()));
  auto proof =
      std::get<wire::Proof>(message_in(std::get<SendThis>(client.receive(challenge.bytes)).bytes));
  proof.proof[31] ^= 1;
  const auto failed = std::get<Failed>(server.receive(frame_of(proof)));
  EXPECT_EQ(failed.refusal, wire::RefusalReason::Secret);
  EXPECT_EQ(std::get<wire::Refusal>(message_in(failed.last_words)).reason,
            wire::RefusalReason::Secret);
}

// The acceptor's own proof, sent back to it, must not pass for the initiator's.
TEST_F(HandshakeTest, AReflectedProofIsRefused) {
  auto client = initiator();
  auto server = acceptor();
  const auto challenge = std::get<SendThis>(server.receive(client.start()));
  const auto reflected = std::get<wire::Challenge>(message_in(challenge.bytes)).proof;
  const auto failed = std::get<Failed>(server.receive(frame_of(wire::Proof{reflected})));
  EXPECT_EQ(failed.refusal, wire::RefusalReason::Secret);
}

TEST_F(HandshakeTest, AProofOfAnotherConversationIsRefused) {
  auto client = initiator();
  auto server = acceptor();
  const Bytes hello = client.start();
  const auto challenge = std::get<SendThis>(server.receive(hello));
  const auto proof = std::get<SendThis>(client.receive(challenge.bytes));
  auto later = acceptor();
  ASSERT_TRUE(std::holds_alternative<SendThis>(later.receive(hello)));
  const auto failed = std::get<Failed>(later.receive(proof.bytes));
  EXPECT_EQ(failed.refusal, wire::RefusalReason::Secret);
}

TEST_F(HandshakeTest, AChangedChallengeSpoilsTheProof) {
  auto client = initiator();
  auto server = acceptor();
  auto challenge = std::get<wire::Challenge>(
      message_in(std::get<SendThis>(server.receive(client.start())).bytes));
  challenge.incarnation = Incarnation{99};
  const auto proof = std::get<SendThis>(client.receive(frame_of(challenge)));
  EXPECT_EQ(std::get<Failed>(server.receive(proof.bytes)).refusal, wire::RefusalReason::Secret);
}

TEST_F(HandshakeTest, AnotherMajorIsRefusedNamingBothVersions) {
  wire::Hello hello;
  hello.major = wire::kProtocolMajor + 1;
  hello.minor = 7;
  hello.world = caller.world;
  hello.from = "client";
  hello.to = "server";
  auto server = acceptor();
  const auto failed = std::get<Failed>(server.receive(frame_of(hello)));
  EXPECT_EQ(failed.refusal, wire::RefusalReason::Version);
  EXPECT_NE(failed.why.find("1.0"), std::string::npos) << failed.why;
  EXPECT_NE(failed.why.find("2.7"), std::string::npos) << failed.why;
  EXPECT_EQ(doorman.asked, 0);
  auto client = initiator();
  client.start();
  const auto told = std::get<Failed>(client.receive(failed.last_words));
  EXPECT_EQ(told.refusal, wire::RefusalReason::Version);
  EXPECT_NE(told.why.find("2.7"), std::string::npos) << told.why;
}

TEST_F(HandshakeTest, AnotherWorldOrNameIsRefused) {
  caller.world.bytes[0] ^= 1;
  auto stranger = acceptor();
  EXPECT_EQ(std::get<Failed>(stranger.receive(initiator().start())).refusal,
            wire::RefusalReason::World);
  caller.world = doorman.self.world;
  InitiatorHandshake lost(caller, "nobody", random);
  auto server = acceptor();
  EXPECT_EQ(std::get<Failed>(server.receive(lost.start())).refusal, wire::RefusalReason::WrongName);
  EXPECT_EQ(doorman.asked, 0);
}

TEST_F(HandshakeTest, TheHostIsAskedAgainBeforeWelcome) {
  doorman.refuse_from = 2;
  doorman.refusal = wire::Refusal{wire::RefusalReason::Duplicate, "one is enough"};
  auto client = initiator();
  auto server = acceptor();
  const auto challenge = std::get<SendThis>(server.receive(client.start()));
  const auto proof = std::get<SendThis>(client.receive(challenge.bytes));
  const auto failed = std::get<Failed>(server.receive(proof.bytes));
  EXPECT_EQ(failed.refusal, wire::RefusalReason::Duplicate);
  EXPECT_EQ(std::get<Failed>(client.receive(failed.last_words)).refusal,
            wire::RefusalReason::Duplicate);
}

TEST_F(HandshakeTest, MessagesOutOfTurnFail) {
  auto client = initiator();
  client.start();
  EXPECT_TRUE(std::holds_alternative<Failed>(client.receive(frame_of(wire::Welcome{}))));
  EXPECT_TRUE(std::holds_alternative<Failed>(client.receive(frame_of(wire::Welcome{}))));
  auto server = acceptor();
  EXPECT_TRUE(std::holds_alternative<Failed>(server.receive(frame_of(wire::Proof{}))));
}

TEST_F(HandshakeTest, EveryTruncationAndEveryFlippedByteIsSurvived) {
  const Bytes hello = initiator().start();
  for (std::size_t i = 0; i < hello.size(); ++i) {
    auto cut = acceptor();
    EXPECT_TRUE(std::holds_alternative<Failed>(cut.receive(std::span(hello).first(i))));
    Bytes flipped = hello;
    flipped[i] ^= std::byte{0x40};
    auto server = acceptor();
    static_cast<void>(server.receive(flipped));
  }
}

TEST(HandshakeReader, NeverAsksForMoreThanTheFrame) {
  const Bytes frame = refusal_frame(wire::RefusalReason::Busy, "later");
  for (std::size_t step : {std::size_t{1}, std::size_t{5}, std::size_t{1000}}) {
    HandshakeReader reader(4096);
    std::size_t at = 0;
    std::optional<Bytes> read;
    while (!read) {
      const std::size_t take = std::min(step, reader.wanted());
      ASSERT_GT(take, 0u);
      ASSERT_LE(at + take, frame.size());
      read = reader.feed(std::span(frame).subspan(at, take));
      at += take;
    }
    EXPECT_EQ(*read, frame);
    EXPECT_EQ(at, frame.size());
    EXPECT_EQ(reader.wanted(), sizeof(wire::FrameHeader));
  }
}

TEST(HandshakeReader, RefusesWhatCannotBeAHandshake) {
  wire::FrameHeader header;
  header.kind = wire::Kind::Hello;
  header.body_bytes = 100;
  const auto feed = [](const wire::FrameHeader& what, std::size_t limit) {
    HandshakeReader reader(limit);
    return reader.feed(std::as_bytes(std::span(&what, 1)));
  };
  EXPECT_NO_THROW(feed(header, 124));
  EXPECT_THROW(feed(header, 123), Error);
  auto other = header;
  other.magic = 0x20544547;  // "GET "
  EXPECT_THROW(feed(other, 4096), Error);
  other = header;
  other.kind = wire::Kind::Call;
  EXPECT_THROW(feed(other, 4096), Error);
  other = header;
  other.segment_count = 1;
  EXPECT_THROW(feed(other, 4096), Error);
}

TEST(HandshakeReader, DoesNotWaitForTheRestOfWhatIsNone) {
  const auto feed = [](std::string_view what) {
    HandshakeReader reader(4096);
    return reader.feed(std::as_bytes(std::span(what)));
  };
  for (const std::string_view may_be : {"H", "HW", "HWSR"}) EXPECT_FALSE(feed(may_be));
  for (const std::string_view cannot : {"G", "HTTP", "GET / HTTP/1.0\r\n\r\n"}) {
    EXPECT_EQ(testing::message_of([&] { feed(cannot); }), "this is not a hawser node");
  }
}

}  // namespace
}  // namespace hawser::transport
