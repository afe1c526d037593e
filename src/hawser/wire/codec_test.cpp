// encode() and decode() together: what is sent arrives, and what is damaged is refused.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "hawser/wire/frame_for_test.h"
#include "hawser/wire/message.h"
#include "support/random_messages.h"

namespace hawser::wire {
namespace {

using testing::RandomMessages;

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

void expect_same(const Payload& sent, const ReceivedPayload& received) {
  EXPECT_EQ(copy_of(sent.value), copy_of(received.value));
  EXPECT_EQ(sent.tensors, received.tensors);
  EXPECT_EQ(sent.references, received.references);
  ASSERT_EQ(sent.segments.size(), received.segments.size());
  for (std::size_t i = 0; i < sent.segments.size(); ++i) {
    EXPECT_EQ(copy_of(sent.segments[i].bytes()), copy_of(received.segments[i].bytes()));
  }
}

void expect_same(const Error& sent, const Error& received) {
  EXPECT_EQ(sent.kind(), received.kind());
  EXPECT_EQ(sent.message(), received.message());
  EXPECT_EQ(sent.details().node, received.details().node);
  EXPECT_EQ(sent.details().function, received.details().function);
  EXPECT_EQ(sent.details().incarnation, received.details().incarnation);
  EXPECT_EQ(sent.details().budget, received.details().budget);
  EXPECT_EQ(sent.details().last_heard, received.details().last_heard);
  EXPECT_EQ(sent.details().remote_type, received.details().remote_type);
  EXPECT_EQ(sent.details().remote_traceback, received.details().remote_traceback);
}

template <class Plain>
void expect_round_trip(const Plain& sent) {
  InFrame frame = carried(encode(sent));
  const Result<Message> received = decode(frame);
  ASSERT_TRUE(received.ok()) << received.error().what();
  EXPECT_EQ(std::get<Plain>(received.value()), sent);
}

template <class Step>
void expect_handshake_round_trip(const Step& sent) {
  const OutFrame frame = encode(Handshake(sent));
  EXPECT_TRUE(is_handshake(frame.kind));
  EXPECT_LE(frame.total_bytes(), Limits().max_handshake_bytes);
  const Result<Handshake> received = decode_handshake(frame.body, frame.kind);
  ASSERT_TRUE(received.ok()) << received.error().what();
  EXPECT_EQ(std::get<Step>(received.value()), sent);
}

TEST(Codec, CallsRoundTrip) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const Call sent = RandomMessages(seed).call();
    InFrame frame = carried(encode(Call(sent)));
    const Result<Message> message = decode(frame);
    ASSERT_TRUE(message.ok()) << message.error().what();
    const auto& received = std::get<ReceivedCall>(message.value());
    EXPECT_EQ(sent.id, received.id);
    EXPECT_EQ(sent.target, received.target);
    EXPECT_EQ(sent.function, received.function);
    EXPECT_EQ(sent.budget_us, received.budget_us);
    EXPECT_EQ(sent.chain, received.chain);
    EXPECT_EQ(sent.depth, received.depth);
    EXPECT_EQ(sent.one_way, received.one_way);
    expect_same(sent.payload, received.payload);
    EXPECT_EQ(sent.notes, received.notes);
    EXPECT_EQ(sent.creates, received.creates);
    EXPECT_EQ(sent.subject, received.subject);
  }
}

TEST(Codec, RepliesRoundTrip) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const Reply sent = RandomMessages(seed).reply();
    InFrame frame = carried(encode(Reply(sent)));
    const Result<Message> message = decode(frame);
    ASSERT_TRUE(message.ok()) << message.error().what();
    const auto& received = std::get<ReceivedReply>(message.value());
    EXPECT_EQ(sent.id, received.id);
    expect_same(sent.payload, received.payload);
    EXPECT_EQ(sent.notes, received.notes);
  }
}

TEST(Codec, FailuresRoundTrip) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const Failure sent = RandomMessages(seed).failure();
    InFrame frame = carried(encode(Failure(sent)));
    const Result<Message> message = decode(frame);
    ASSERT_TRUE(message.ok()) << message.error().what();
    const auto& received = std::get<ReceivedFailure>(message.value());
    EXPECT_EQ(sent.id, received.id);
    expect_same(sent.error, received.error);
    expect_same(sent.payload, received.payload);
    EXPECT_EQ(sent.report, received.report);
  }
}

TEST(Codec, OtherMessagesRoundTrip) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    RandomMessages random(seed);
    expect_round_trip(random.cancel());
    expect_round_trip(random.heartbeat());
    expect_round_trip(random.heartbeat_echo());
    expect_round_trip(random.goodbye());
    expect_round_trip(random.arrival());
    expect_round_trip(random.census());
    expect_round_trip(random.census_report());
    expect_round_trip(random.dismissal());
    expect_round_trip(random.references());
  }
}

TEST(Codec, HandshakesRoundTrip) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    RandomMessages random(seed);
    expect_handshake_round_trip(random.hello());
    expect_handshake_round_trip(random.challenge());
    expect_handshake_round_trip(random.proof());
    expect_handshake_round_trip(random.welcome());
    expect_handshake_round_trip(random.refusal());
  }
}

TEST(Codec, HandshakesMayLieAnywhereInABuffer) {
  const OutFrame frame = encode(Handshake(RandomMessages(1).hello()));
  for (std::size_t shift = 0; shift < 8; ++shift) {
    std::vector<std::byte> buffer(shift);
    buffer.insert(buffer.end(), frame.body.begin(), frame.body.end());
    EXPECT_TRUE(decode_handshake(std::span(buffer).subspan(shift), frame.kind).ok());
  }
}

TEST(Codec, ReceivedViewsPointIntoTheFrameAlsoAfterItMoved) {
  Call call;
  call.function = "scale";
  ValueWriter(call.payload.value).integer(42);
  InFrame frame = carried(encode(std::move(call)));
  Result<Message> message = decode(frame);
  const InFrame moved = std::move(frame);
  const auto& received = std::get<ReceivedCall>(message.value());
  const auto* first = reinterpret_cast<const char*>(moved.body.view().data());
  EXPECT_GE(received.function.data(), first);
  EXPECT_LT(received.function.data(), first + moved.body.size());
  EXPECT_EQ(received.function, "scale");
  EXPECT_EQ(ValueReader(received.payload.value).integer(), 42);
}

TEST(Codec, EmptyFieldsCostNothing) {
  Call call;
  call.function = "f";
  EXPECT_LE(encode(std::move(call)).body.size(), 48u);
}

TEST(Codec, TenThousandTensors) {
  Call call;
  call.payload.tensors.resize(10'000);
  for (TensorDesc& tensor : call.payload.tensors) tensor.sizes = {3, 4};
  const Call sent = call;
  InFrame frame = carried(encode(std::move(call)));
  const Result<Message> message = decode(frame);
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(std::get<ReceivedCall>(message.value()).payload.tensors, sent.payload.tensors);
}

TEST(Codec, ThreadsDoNotShareTheirBuffers) {
  const OutFrame mine = encode(Census{1});
  const std::vector<std::byte> before = copy_of(mine.body);
  std::thread([] { encode(Census{2}); }).join();
  EXPECT_EQ(copy_of(mine.body), before);
}

// ------------------------------------------------------------------ what cannot be sent

template <class Encode>
void expect_refused(Encode encode) {
  try {
    encode();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
  }
}

TEST(Codec, RefusesToSendWhatWouldBeRefused) {
  const std::string long_name(kMaxNameBytes + 1, 'n');
  const std::string long_function(kMaxFunctionBytes + 1, 'f');
  expect_refused([&] { encode(Call{.function = long_function}); });
  expect_refused([&] {
    Reply reply;
    reply.payload.references.push_back({.owner = long_name, .parent = {}, .type = {}});
    encode(std::move(reply));
  });
  expect_refused([&] {
    Reply reply;
    reply.payload.tensors.resize(kMaxTensors + 1);
    encode(std::move(reply));
  });
  expect_refused([&] { encode(Dismissal{{long_name}}); });
  expect_refused([&] { encode(References{1, 1, {}, {{long_name, Incarnation(1)}}}); });
  expect_refused([&] { encode(Handshake(Hello{.features = {}, .from = long_name, .to = {}})); });
  expect_refused([&] {
    encode(Handshake(Challenge{.features = std::vector<std::uint16_t>(kMaxFeatures + 1)}));
  });
}

TEST(Codec, ARefusedCallKeepsItsSegments) {
  const std::string long_function(kMaxFunctionBytes + 1, 'f');
  Call call{.function = long_function};
  call.payload.segments.resize(2);
  expect_refused([&] { encode(std::move(call)); });
  EXPECT_EQ(call.payload.segments.size(), 2u);
}

TEST(Codec, LongNamesOfEventsKeepBothEnds) {
  const auto sent = [](const std::string& name) {
    Reply reply;
    reply.notes.report.emplace().processes.emplace_back();
    reply.notes.report->events.emplace_back().name = name;
    InFrame frame = carried(encode(std::move(reply)));
    const Result<Message> received = decode(frame);
    return std::get<ReceivedReply>(received.value()).notes.report->events.at(0).name;
  };
  const std::string calls = "rpc_sync#f(a -> b)#remote_op: ", op = "#remote_op: aten::add";
  const std::string whole(kMaxTraceNameBytes, 'x');
  EXPECT_EQ(sent(whole), whole);
  std::string name = sent(calls + whole + op);
  EXPECT_LE(name.size(), kMaxTraceNameBytes);
  EXPECT_TRUE(name.starts_with(calls) && name.ends_with(op)) << name;
  EXPECT_NE(name.find("x ... x"), std::string::npos);
  // Characters of two bytes, cut at either of them.
  for (const char* const shift : {"", "x"}) {
    std::string wide = shift;
    while (wide.size() <= 2 * kMaxTraceNameBytes) wide += "\u00e9";
    name = sent(wide);
    EXPECT_LE(name.size(), kMaxTraceNameBytes);
    EXPECT_NE(name.find("\u00e9 ... \u00e9"), std::string::npos) << shift;
  }
}

TEST(Codec, ErrorsAreCutBetweenCharactersRatherThanRefused) {
  std::string long_text(kMaxTextBytes - 1, 'e');
  long_text += "\u00e9\u00e9";  // the first straddles the limit
  ErrorDetails details;
  details.node = std::string(kMaxNameBytes + 1, 'n');
  details.function = std::string(kMaxFunctionBytes + 1, 'f');
  details.remote_type = std::string(kMaxFunctionBytes + 1, 't');
  details.remote_traceback = long_text;
  InFrame frame = carried(encode(Failure{CallId(1), Error(ErrorKind::Remote, long_text, details)}));
  const Result<Message> message = decode(frame);
  ASSERT_TRUE(message.ok()) << message.error().what();
  const Error& error = std::get<ReceivedFailure>(message.value()).error;
  EXPECT_EQ(error.message(), std::string(kMaxTextBytes - 1, 'e'));
  EXPECT_EQ(error.details().node.size(), kMaxNameBytes);
  EXPECT_EQ(error.details().function.size(), kMaxFunctionBytes);
}

// ------------------------------------------------------------------ damage on the way

std::vector<std::vector<std::byte>> one_frame_of_each_kind(unsigned seed) {
  RandomMessages random(seed);
  std::vector<std::vector<std::byte>> frames;
  frames.push_back(to_bytes(encode(random.call())));
  frames.push_back(to_bytes(encode(random.reply())));
  frames.push_back(to_bytes(encode(random.failure())));
  frames.push_back(to_bytes(encode(random.cancel())));
  frames.push_back(to_bytes(encode(random.heartbeat())));
  frames.push_back(to_bytes(encode(random.heartbeat_echo())));
  frames.push_back(to_bytes(encode(random.goodbye())));
  frames.push_back(to_bytes(encode(random.arrival())));
  frames.push_back(to_bytes(encode(random.census())));
  frames.push_back(to_bytes(encode(random.census_report())));
  frames.push_back(to_bytes(encode(random.dismissal())));
  frames.push_back(to_bytes(encode(Handshake(random.hello()))));
  frames.push_back(to_bytes(encode(Handshake(random.challenge()))));
  frames.push_back(to_bytes(encode(Handshake(random.proof()))));
  frames.push_back(to_bytes(encode(Handshake(random.welcome()))));
  frames.push_back(to_bytes(encode(Handshake(random.refusal()))));
  return frames;
}

// Whether it was accepted. Reads everything, so that a sanitizer sees every byte that is claimed.
bool receive(std::span<const std::byte> bytes) {
  Result<InFrame> frame = from_bytes(bytes, Limits());
  if (!frame.ok()) return false;
  const Kind kind = frame.value().kind;
  if (is_handshake(kind)) return decode_handshake(frame.value().body.view(), kind).ok();
  const Result<Message> message = decode(frame.value());
  if (!message.ok()) {
    EXPECT_EQ(message.error().kind(), ErrorKind::Invalid);
    return false;
  }
  if (const auto* call = std::get_if<ReceivedCall>(&message.value())) {
    EXPECT_EQ(std::string(call->function).size(), call->function.size());
    EXPECT_EQ(copy_of(call->payload.value).size(), call->payload.value.size());
  }
  return true;
}

TEST(Damage, AFrameThatEndsEarlyIsRefused) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    for (const auto& frame : one_frame_of_each_kind(seed)) {
      EXPECT_TRUE(receive(frame));
      for (std::size_t size = 0; size < frame.size(); ++size) {
        EXPECT_FALSE(receive(std::span(frame).first(size)));
      }
    }
  }
}

TEST(Damage, ABodyThatEndsEarlyIsRefusedOrHarmless) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    for (const auto& frame : one_frame_of_each_kind(seed)) {
      FrameHeader header;
      std::memcpy(&header, frame.data(), sizeof header);
      const auto body_at = sizeof header + header.segment_count * sizeof(std::uint64_t);
      for (std::uint32_t cut = 1; cut <= header.body_bytes; ++cut) {
        std::vector<std::byte> shorter = frame;
        FrameHeader adjusted = header;
        adjusted.body_bytes -= cut;
        std::memcpy(shorter.data(), &adjusted, sizeof adjusted);
        const auto end = shorter.begin() + static_cast<long>(body_at + header.body_bytes);
        shorter.erase(end - cut, end);
        receive(shorter);
      }
    }
  }
}

TEST(Damage, NoFlippedBitDoesHarm) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    for (auto frame : one_frame_of_each_kind(seed)) {
      for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
        const auto mask = static_cast<std::byte>(1u << (bit % 8));
        frame[bit / 8] ^= mask;
        receive(frame);
        frame[bit / 8] ^= mask;
      }
    }
  }
}

TEST(Damage, NoRandomBytesDoHarm) {
  RandomMessages random(99);
  for (int round = 0; round < 20'000; ++round) {
    InFrame frame{static_cast<Kind>(random.below(64)), BodyBytes(random.below(128)), {}};
    for (std::size_t i = 0; i < frame.body.size(); ++i) {
      frame.body.data()[i] =
          static_cast<std::byte>(random.coin() ? random.below(16) : random.below(256));
    }
    const auto handshake = decode_handshake(frame.body.view(), frame.kind);
    const auto message = decode(frame);
    EXPECT_FALSE(handshake.ok() && message.ok());
  }
}

}  // namespace
}  // namespace hawser::wire
