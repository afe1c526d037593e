#include "hawser/engine/wire_form.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "hawser/tensor/payload.h"
#include "hawser/tensor/trip_for_test.h"
#include "hawser/transport/faulty_link.h"

namespace hawser::engine {
namespace {

using namespace autograd;

const PassHeader kHeader{.context = ContextId{(std::uint64_t{7} << 48) | 3},
                         .pass = PassId{12},
                         .initiator = {"trainer", Incarnation{5}},
                         .mode = Mode::Fast,
                         .run = {.retain_graph = true, .anomaly_mode = AnomalyMode::Trace},
                         .budget = std::chrono::milliseconds(20)};

ReadMessage carried(const Message& message, Tensors gradients = {}) {
  tensor::Delivery delivery(write_message(message, std::move(gradients)));
  return read_message(name_of(message), delivery.received);
}

TEST(AutogradMessages, SurviveTheTrip) {
  const Discover discover{kHeader, {MessageId{1}, MessageId{~std::uint64_t{0}}}};
  EXPECT_EQ(std::get<Discover>(carried(discover).message), discover);
  EXPECT_EQ(std::get<Proceed>(carried(Proceed{PassId{4}}).message), Proceed{PassId{4}});
  EXPECT_EQ(std::get<Commit>(carried(Commit{PassId{5}}).message), Commit{PassId{5}});
  const Release release{{ContextId{1}, ContextId{2}}};
  EXPECT_EQ(std::get<Release>(carried(release).message), release);
  EXPECT_EQ(std::get<Inquire>(carried(Inquire{{}}).message), Inquire{});
}

// Faults are chosen by kind, and know this message by its name.
TEST(AutogradMessages, OnlyReleasesCanBeMadeToFail) {
  const auto kinds = [](const Message& message) {
    wire::Call call;
    call.target = wire::TargetKind::Autograd;
    call.function = name_of(message);
    return transport::kinds_of(wire::encode(std::move(call)));
  };
  EXPECT_EQ(kinds(Release{}), std::vector<std::string_view>{"CLEANUP_AUTOGRAD_CONTEXT_REQ"});
  EXPECT_TRUE(kinds(Discover{}).empty() && kinds(autograd::Gradients{}).empty());
}

TEST(AutogradMessages, GradientsCarryTensors) {
  const auto read = carried(autograd::Gradients{kHeader, MessageId{9}}, {at::ones({3}), {}});
  const auto& message = std::get<autograd::Gradients>(read.message);
  EXPECT_EQ(message.pass, kHeader);
  EXPECT_EQ(message.message, MessageId{9});
  ASSERT_EQ(read.gradients.size(), 2u);
  EXPECT_TRUE(at::equal(read.gradients[0], at::ones({3})));
  EXPECT_FALSE(read.gradients[1].defined());
}

TEST(AutogradMessages, AbortKeepsTheWholeError) {
  const Error why(ErrorKind::PeerLost, "'ps' is gone",
                  {.node = "ps", .function = "f", .incarnation = 8, .remote_traceback = "here"});
  const auto read = carried(Abort{PassId{4}, why});
  const Error& got = std::get<Abort>(read.message).why;
  EXPECT_EQ(got.kind(), why.kind());
  EXPECT_EQ(got.message(), why.message());
  EXPECT_EQ(got.details().node, "ps");
  EXPECT_EQ(got.details().incarnation, 8u);
  EXPECT_EQ(got.details().remote_traceback, "here");
}

TEST(AutogradMessages, NoLimitStaysNone) {
  PassHeader header = kHeader;
  header.budget = Duration::max();
  EXPECT_EQ(std::get<Discover>(carried(Discover{header, {}}).message).pass.budget, Duration::max());
}

TEST(AutogradMessages, RefuseWhatTheyAreNot) {
  const auto refused = [](std::string_view name, wire::Payload&& payload) {
    tensor::Delivery delivery(std::move(payload));
    try {
      read_message(name, delivery.received);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::Invalid;
    }
    return false;
  };
  EXPECT_TRUE(refused("abort", write_message(Proceed{PassId{1}}, {})));
  EXPECT_TRUE(refused("gradients", write_message(Discover{kHeader, {}}, {})));
  EXPECT_TRUE(refused("nothing", write_message(Proceed{PassId{1}}, {})));
  EXPECT_TRUE(refused("discover", wire::Payload{}));
}

TEST(AutogradMessages, NoteNamesTheCreatorOnlyIfItIsAnother) {
  const Party me{"a", Incarnation{1}}, other{"b", Incarnation{2}};
  const Note mine{ContextId{1}, MessageId{2}, me}, theirs{ContextId{1}, MessageId{2}, other};
  EXPECT_TRUE(to_wire(mine, me).creator.empty());
  EXPECT_EQ(from_wire(to_wire(mine, me), me), mine);
  EXPECT_EQ(from_wire(to_wire(theirs, me), me), theirs);
}

TEST(AutogradMessages, NoteTellsTheAnomalyMode) {
  const Party me{"a", Incarnation{1}};
  Note note{ContextId{1}, MessageId{2}, me};
  for (const auto mode : {AnomalyMode::Trace, AnomalyMode::TraceAndCheckNan}) {
    note.anomaly_mode = mode;
    EXPECT_EQ(from_wire(to_wire(note, me), me), note);
  }
}

}  // namespace
}  // namespace hawser::engine
