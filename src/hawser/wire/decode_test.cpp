// Bodies that pass the FlatBuffers verifier and still make no sense.
#include <gtest/gtest.h>

#include <cstring>

#include "hawser/wire/frame_for_test.h"
#include "hawser/wire/message.h"
#include "hawser/wire/protocol_generated.h"

namespace hawser::wire {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;

InFrame frame_of(Builder& builder, Kind kind, std::size_t segments = 0) {
  InFrame frame{kind, BodyBytes(builder.GetSize()), std::vector<Buffer>(segments)};
  std::memcpy(frame.body.data(), builder.GetBufferPointer(), builder.GetSize());
  return frame;
}

// Why the frame is refused; empty when it is not.
std::string objection_to(InFrame frame) {
  const Result<Message> message = decode(frame);
  if (message.ok()) return {};
  EXPECT_EQ(message.error().kind(), ErrorKind::Invalid);
  EXPECT_FALSE(message.error().message().empty());
  return message.error().message();
}

// encode() trusts shapes, indices and enums, which come from our own code; decode() must not.
std::string objection_to(std::vector<TensorDesc> tensors, std::size_t segments = 1) {
  Reply reply;
  reply.payload.tensors = std::move(tensors);
  reply.payload.segments.resize(segments);
  return objection_to(carried(encode(std::move(reply))));
}

TensorDesc tensor_with_parts(std::initializer_list<std::uint32_t> parts) {
  TensorDesc tensor;
  tensor.parts = parts;
  return tensor;
}

TEST(Decode, TensorsMustNameSegmentsThatExist) {
  TensorDesc tensor;
  EXPECT_EQ(objection_to({tensor}, 0), "");
  tensor.storage = 0;
  EXPECT_EQ(objection_to({tensor}, 1), "");
  EXPECT_EQ(objection_to({tensor}, 0), "a tensor is in segment 0 of 0");
  tensor.storage = 7;
  EXPECT_EQ(objection_to({tensor}, 7), "a tensor is in segment 7 of 7");
}

TEST(Decode, RecordedEventsMustBeOfListedProcesses) {
  const auto objection = [](std::uint16_t process, std::size_t shape = 0) {
    Reply reply;
    reply.notes.report.emplace().processes.emplace_back();
    TraceEvent event;
    event.process = process;
    event.shapes.resize(shape);
    reply.notes.report->events.push_back(std::move(event));
    return objection_to(carried(encode(std::move(reply))));
  };
  EXPECT_EQ(objection(0), "");
  EXPECT_EQ(objection(1), "a recorded event is of a process that is not listed");
  EXPECT_EQ(objection(0, kMaxTraceShape + 1), "") << "too long a shape is left out by the sender";
}

TEST(Decode, RecordedEventsMustBeOfAKnownKind) {
  Failure failure{CallId(1), Error(ErrorKind::Remote, "no")};
  failure.report.emplace().processes.emplace_back();
  failure.report->events.emplace_back().kind = static_cast<TraceEventKind>(5);
  EXPECT_EQ(objection_to(carried(encode(std::move(failure)))),
            "a recorded event is of an unknown kind");
}

TEST(Decode, TensorsMustHavePossibleShapes) {
  TensorDesc tensor;
  tensor.sizes = {2, 0};
  tensor.strides = {0, 1};
  EXPECT_EQ(objection_to({tensor}), "");
  tensor.strides = {1};
  EXPECT_EQ(objection_to({tensor}), "a tensor has 2 sizes and 1 strides");
  tensor.strides = {1, -1};
  EXPECT_EQ(objection_to({tensor}), "a tensor has a negative stride");
  tensor.strides.clear();
  tensor.sizes = {2, -1};
  EXPECT_EQ(objection_to({tensor}), "a tensor has a negative size");
}

TEST(Decode, TensorLayoutsMustBeKnown) {
  TensorDesc tensor;
  tensor.layout = static_cast<TensorLayout>(6);
  EXPECT_EQ(objection_to({tensor}), "a tensor has unknown layout 6");
}

TEST(Decode, PartsOfTensorsMustExistAndHaveNone) {
  const TensorDesc plain;
  EXPECT_EQ(objection_to({tensor_with_parts({1, 2}), plain, plain}), "");
  EXPECT_EQ(objection_to({plain, tensor_with_parts({0, 0})}), "");
  EXPECT_EQ(objection_to({tensor_with_parts({1})}), "a tensor has a part that does not exist");
  EXPECT_EQ(objection_to({tensor_with_parts({0})}), "a part of a tensor has parts");
  EXPECT_EQ(objection_to({tensor_with_parts({1}), tensor_with_parts({0})}),
            "a part of a tensor has parts");
}

TEST(Decode, EnumsMustBeKnown) {
  Call call;
  call.target = static_cast<TargetKind>(6);
  EXPECT_EQ(objection_to(carried(encode(std::move(call)))), "a call has an unknown kind of target");
  for (const int kind : {0, 8, 255}) {
    Failure failure{CallId(1), Error(static_cast<ErrorKind>(kind), "")};
    EXPECT_EQ(objection_to(carried(encode(std::move(failure)))),
              "a failure has unknown kind " + std::to_string(kind));
  }
}

std::string objection_to_reference(const std::string& owner, const std::string& parent,
                                   const std::string& type) {
  Builder builder;
  const auto reference = fb::CreateReferenceDirect(builder, owner.c_str(), 0, 0, 0, 0, 0,
                                                   parent.c_str(), type.c_str());
  const auto references = builder.CreateVector(&reference, 1);
  const auto payload = fb::CreatePayload(builder, 0, 0, references);
  builder.Finish(fb::CreateReply(builder, 1, payload));
  return objection_to(frame_of(builder, Kind::Reply));
}

TEST(Decode, NamesMustNotBeTooLong) {
  const std::string name(kMaxNameBytes, 'n');
  const std::string type(kMaxFunctionBytes, 't');
  EXPECT_EQ(objection_to_reference(name, name, type), "");
  EXPECT_EQ(objection_to_reference("", "", ""), "a reference has no owner");
  EXPECT_NE(objection_to_reference(name + "n", name, type), "");
  EXPECT_NE(objection_to_reference(name, name + "n", type), "");
  EXPECT_NE(objection_to_reference(name, name, type + "t"), "");
  Builder builder;
  builder.Finish(fb::CreateCallDirect(builder, 1, fb::TargetKind::Function, (type + "f").c_str()));
  EXPECT_NE(objection_to(frame_of(builder, Kind::Call)), "");
}

TEST(Decode, RequiredFieldsMustBeThere) {
  Builder builder;
  builder.Finish(fb::CreateReply(builder, 1));  // as a Call it lacks its function
  EXPECT_EQ(objection_to(frame_of(builder, Kind::Call)), "the body is not a valid Call");
}

TEST(Decode, OnlyPayloadsHaveSegments) {
  Builder builder;
  builder.Finish(fb::CreateCancel(builder, 1));
  EXPECT_EQ(objection_to(frame_of(builder, Kind::Cancel)), "");
  EXPECT_EQ(objection_to(frame_of(builder, Kind::Cancel, 1)), "Cancel frames have no segments");
}

TEST(Decode, KindsHaveTheirPlace) {
  Builder builder;
  builder.Finish(fb::CreateCancel(builder, 1));
  for (const int kind : {0, 1, 5, 6, 20, 200}) {
    EXPECT_NE(objection_to(frame_of(builder, static_cast<Kind>(kind))), "") << kind;
  }
  const InFrame frame = frame_of(builder, Kind::Cancel);
  for (const int kind : {0, 6, 16, 19, 200}) {
    EXPECT_FALSE(decode_handshake(frame.body.view(), static_cast<Kind>(kind)).ok()) << kind;
  }
}

TEST(Decode, EmptyAndTinyBodiesAreRefused) {
  for (const Kind kind : {Kind::Call, Kind::Reply, Kind::Cancel, Kind::Dismissal}) {
    for (std::size_t size = 0; size < 8; ++size) {
      InFrame frame{kind, BodyBytes(size), {}};
      if (size > 0) std::memset(frame.body.data(), 0, size);
      EXPECT_NE(objection_to(std::move(frame)), "");
    }
  }
}

// A small body that would become gigabytes: a million tensors that are one.
TEST(Decode, CopiesMustNotOutgrowTheBody) {
  Builder builder;
  const auto sizes = builder.CreateVector(std::vector<std::int64_t>(100'000, 1));
  const auto tensor = fb::CreateTensor(builder, 0, 0, 0, 0, kNoSegment, 0, sizes);
  const auto tensors =
      builder.CreateVector(std::vector<flatbuffers::Offset<fb::Tensor>>(200'000, tensor));
  const auto payload = fb::CreatePayload(builder, 0, tensors);
  builder.Finish(fb::CreateReply(builder, 1, payload));
  EXPECT_EQ(objection_to(frame_of(builder, Kind::Reply)), "the body shares its parts");
}

TEST(Decode, CountsAreLimited) {
  Builder builder;
  const auto tensor = fb::CreateTensor(builder);
  const auto tensors =
      builder.CreateVector(std::vector<flatbuffers::Offset<fb::Tensor>>(kMaxTensors + 1, tensor));
  const auto payload = fb::CreatePayload(builder, 0, tensors);
  builder.Finish(fb::CreateReply(builder, 1, payload));
  EXPECT_NE(objection_to(frame_of(builder, Kind::Reply)), "");

  builder.Clear();
  const auto name = builder.CreateString("n");
  const auto lost = builder.CreateVector(
      std::vector<flatbuffers::Offset<flatbuffers::String>>(kMaxLostNames + 1, name));
  builder.Finish(fb::CreateDismissal(builder, lost));
  EXPECT_NE(objection_to(frame_of(builder, Kind::Dismissal)), "");
}

TEST(Decode, RefusesRecordsThatMakeNoSense) {
  const fb::RefName name(1, 2);
  const auto objection = [&](fb::RecordKind kind, std::uint32_t child) {
    flatbuffers::FlatBufferBuilder builder;
    const fb::Record record(name, name, kind, child);
    const auto records = builder.CreateVectorOfStructs(&record, 1);
    builder.Finish(fb::CreateReferences(builder, 1, 1, records, 0));
    return objection_to(frame_of(builder, Kind::References));
  };
  EXPECT_EQ(objection(fb::RecordKind::Drop, 0), "");
  EXPECT_NE(objection(fb::RecordKind::Share, 0), "");  // there are no children
  EXPECT_NE(objection(static_cast<fb::RecordKind>(0), 0), "");
  EXPECT_NE(objection(static_cast<fb::RecordKind>(8), 0), "");
}

TEST(Decode, RefusesASubjectWithoutAMethodAndTheOtherWayRound) {
  const auto objection = [](fb::TargetKind target, const fb::RefName* subject) {
    flatbuffers::FlatBufferBuilder builder;
    const auto function = builder.CreateString("f");
    builder.Finish(
        fb::CreateCall(builder, 1, target, function, 0, 0, 0, false, 0, 0, 0, 0, 0, subject));
    return objection_to(frame_of(builder, Kind::Call));
  };
  const fb::RefName name(1, 2);
  EXPECT_EQ(objection(fb::TargetKind::Method, &name), "");
  EXPECT_EQ(objection(fb::TargetKind::Function, nullptr), "");
  EXPECT_NE(objection(fb::TargetKind::Method, nullptr), "");
  EXPECT_NE(objection(fb::TargetKind::Function, &name), "");
}

// ------------------------------------------------------------------------------- handshake

std::string objection_to_step(Builder& builder, Kind kind) {
  const auto* body = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  const Result<Handshake> message = decode_handshake({body, builder.GetSize()}, kind);
  if (message.ok()) return {};
  EXPECT_EQ(message.error().kind(), ErrorKind::Invalid);
  return message.error().message();
}

struct HelloFields {
  std::uint32_t magic = FrameHeader::kMagic;
  std::size_t features = 1;
  std::size_t world_bytes = 16;
  std::size_t nonce_bytes = 32;
  std::string from = "a";
  std::string to = "b";
};

std::string objection_to_hello(const HelloFields& fields) {
  Builder builder;
  const std::vector<std::uint16_t> features(fields.features);
  const std::vector<std::uint8_t> world(fields.world_bytes);
  const std::vector<std::uint8_t> nonce(fields.nonce_bytes);
  builder.Finish(fb::CreateHelloDirect(builder, fields.magic, 1, 0, &features, &world,
                                       fields.from.c_str(), 1, fields.to.c_str(), &nonce));
  return objection_to_step(builder, Kind::Hello);
}

TEST(DecodeHandshake, HelloMustBeComplete) {
  const std::string long_name(kMaxNameBytes + 1, 'n');
  EXPECT_EQ(objection_to_hello({}), "");
  EXPECT_EQ(objection_to_hello({.magic = 1}), "this is not a hawser node");
  EXPECT_EQ(objection_to_hello({.from = ""}), "a node has no name");
  EXPECT_NE(objection_to_hello({.from = long_name}), "");
  EXPECT_NE(objection_to_hello({.to = long_name}), "");
  EXPECT_EQ(objection_to_hello({.world_bytes = 15}), "a world id of 15 bytes instead of 16");
  EXPECT_EQ(objection_to_hello({.nonce_bytes = 33}), "a nonce of 33 bytes instead of 32");
  EXPECT_NE(objection_to_hello({.features = kMaxFeatures + 1}), "");
}

TEST(DecodeHandshake, ProofsMustHaveTheirSize) {
  const auto objection = [](std::size_t nonce_bytes, std::size_t proof_bytes) {
    Builder builder;
    const std::vector<std::uint8_t> nonce(nonce_bytes);
    const std::vector<std::uint8_t> proof(proof_bytes);
    builder.Finish(fb::CreateChallengeDirect(builder, 1, 0, nullptr, 1, &nonce, &proof));
    return objection_to_step(builder, Kind::Challenge);
  };
  EXPECT_EQ(objection(32, 32), "");
  EXPECT_EQ(objection(31, 32), "a nonce of 31 bytes instead of 32");
  EXPECT_EQ(objection(32, 0), "a proof of 0 bytes instead of 32");
  Builder builder;
  const std::vector<std::uint8_t> proof(64);
  builder.Finish(fb::CreateProofDirect(builder, &proof));
  EXPECT_EQ(objection_to_step(builder, Kind::Proof), "a proof of 64 bytes instead of 32");
}

TEST(DecodeHandshake, RefusalsMustHaveAKnownReason) {
  const auto objection = [](int reason) {
    Builder builder;
    builder.Finish(fb::CreateRefusal(builder, static_cast<fb::RefusalReason>(reason)));
    return objection_to_step(builder, Kind::Refusal);
  };
  EXPECT_EQ(objection(9), "");
  EXPECT_EQ(objection(10), "a refusal has an unknown reason");
}

}  // namespace
}  // namespace hawser::wire
