#include "hawser/transport/faulty_link.h"

#include <gtest/gtest.h>

#include "hawser/base/buffer_pool.h"
#include "hawser/transport/loopback.h"
#include "hawser/wire/message.h"

namespace hawser::transport {
namespace {

class OneTimer final : public Timers {
 public:
  Id schedule(TimePoint at, UniqueFunction<void()> task) override {
    due = at;
    waiting = std::move(task);
    return Id{1};
  }
  void cancel(Id) override {}
  void post(UniqueFunction<void()> task) override { task(); }

  TimePoint due{};
  UniqueFunction<void()> waiting;
};

class FaultyLinkTest : public ::testing::Test {
 protected:
  std::shared_ptr<FaultyLink> link(Faults faults) {
    return std::make_shared<FaultyLink>(make_loopback({}, bell_, pool_), bell_, clock_, timers_,
                                        std::make_shared<const Faults>(std::move(faults)));
  }
  static wire::OutFrame call(wire::TargetKind target, std::string_view function = "f",
                             CallId id = CallId{7}) {
    wire::Call call;
    call.id = id;
    call.target = target;
    call.function = function;
    if (target == wire::TargetKind::Method) call.subject = wire::RefName{1, 2};
    return wire::encode(std::move(call));
  }
  static std::optional<wire::Message> next(Link& link) {
    static wire::InFrame frame;  // the message points into it
    if (link.receive(frame) != Link::Received::Frame) return std::nullopt;
    auto message = wire::decode(frame);
    return std::move(message.value());
  }

  SteadyClock clock_;
  OneTimer timers_;
  std::shared_ptr<Doorbell> bell_ = std::make_shared<Doorbell>();
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>(std::size_t{1} << 20);
};

TEST_F(FaultyLinkTest, KnowsTheKindOfAFrame) {
  using Kinds = std::vector<std::string_view>;
  EXPECT_EQ(kinds_of(call(wire::TargetKind::Python)), Kinds{"PYTHON_CALL"});
  EXPECT_EQ(kinds_of(call(wire::TargetKind::Operator)), Kinds{"SCRIPT_CALL"});
  EXPECT_EQ(kinds_of(call(wire::TargetKind::Method, "")).size(), 2u);
  EXPECT_EQ(kinds_of(call(wire::TargetKind::Method, "m")), Kinds{"PYTHON_CALL"});
  wire::Call creation;
  creation.target = wire::TargetKind::Script;
  creation.creates = wire::Creation{};
  EXPECT_EQ(kinds_of(wire::encode(std::move(creation))), Kinds{"SCRIPT_REMOTE_CALL"});
  wire::References records{1, 1, {}, {}};
  records.records.push_back({wire::RecordKind::Drop, {1, 2}, {3, 4}});
  EXPECT_EQ(kinds_of(wire::encode(records)), Kinds{"RREF_USER_DELETE"});
  EXPECT_EQ(kinds_of(wire::encode(wire::Cancel{CallId{1}})), Kinds{});
  EXPECT_EQ(kinds_of(call(wire::TargetKind::Autograd, "release")),
            Kinds{"CLEANUP_AUTOGRAD_CONTEXT_REQ"});
  EXPECT_EQ(kinds_of(call(wire::TargetKind::Autograd, "gradients")), Kinds{});
}

TEST_F(FaultyLinkTest, EveryKindIsThatOfSomeFrame) {
  std::set<std::string_view> seen;
  const auto see = [&](const wire::OutFrame& frame) {
    for (const auto kind : kinds_of(frame)) seen.insert(kind);
  };
  for (const auto target : {wire::TargetKind::Python, wire::TargetKind::Script}) {
    see(call(target));
    wire::Call creation;
    creation.target = target;
    creation.creates = wire::Creation{};
    see(wire::encode(std::move(creation)));
  }
  see(call(wire::TargetKind::Method, ""));
  see(call(wire::TargetKind::Autograd, "release"));
  wire::References records{1, 1, {}, {{"child", Incarnation{1}}}};
  for (const auto kind :
       {wire::RecordKind::Claim, wire::RecordKind::Share, wire::RecordKind::Drop}) {
    records.records.push_back({kind, {1, 2}, {3, 4}});
  }
  see(wire::encode(records));
  EXPECT_EQ(seen, all_message_kinds());
}

TEST_F(FaultyLinkTest, ACallThatFailsIsAnsweredAndNotSent) {
  const auto link = this->link({.fail = {"PYTHON_CALL"}, .delay = {}, .times = 1});
  EXPECT_TRUE(link->send(call(wire::TargetKind::Python)));
  EXPECT_TRUE(link->pending());
  const auto answer = next(*link);
  ASSERT_TRUE(answer && std::holds_alternative<wire::ReceivedFailure>(*answer));
  EXPECT_EQ(std::get<wire::ReceivedFailure>(*answer).id, CallId{7});
  const auto stand_in = next(*link);  // does nothing, and is counted like a call
  ASSERT_TRUE(stand_in && std::holds_alternative<wire::ReceivedCall>(*stand_in));
  EXPECT_TRUE(std::get<wire::ReceivedCall>(*stand_in).one_way);
  EXPECT_EQ(std::get<wire::ReceivedCall>(*stand_in).function, "");
  EXPECT_FALSE(next(*link).has_value());
  link->send(call(wire::TargetKind::Script));  // of another kind
  EXPECT_TRUE(std::holds_alternative<wire::ReceivedCall>(*next(*link)));
}

TEST_F(FaultyLinkTest, AMessageThatIsSentAgainGetsThroughInTheEnd) {
  const auto link = this->link({.fail = {"RREF_USER_DELETE"}, .delay = {}, .times = 2});
  wire::References records{1, 1, {}, {}};
  records.records.push_back({wire::RecordKind::Drop, {1, 2}, {3, 4}});
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_TRUE(link->send(wire::encode(records)));
    EXPECT_FALSE(next(*link).has_value());
  }
  EXPECT_TRUE(link->send(wire::encode(records)));
  EXPECT_TRUE(next(*link).has_value());
}

// A call that is made again has another number and less time left.
TEST_F(FaultyLinkTest, ACallThatIsMadeAgainGetsThroughInTheEnd) {
  const auto link = this->link({.fail = {"PYTHON_CALL"}, .delay = {}, .times = 2});
  const auto fails = [&](std::uint64_t id, const std::string& function, const std::string& text,
                         std::uint64_t budget_us) {
    wire::Call call;
    call.id = CallId{id};
    call.target = wire::TargetKind::Python;
    call.function = function;
    call.budget_us = budget_us;
    call.chain = ChainId{id};
    wire::ValueWriter(call.payload.value).string(text);
    link->send(wire::encode(std::move(call)));
    const bool failed = std::holds_alternative<wire::ReceivedFailure>(*next(*link));
    if (failed) next(*link);  // what goes in its place
    return failed;
  };
  EXPECT_TRUE(fails(1, "f", "same", 1000));
  EXPECT_TRUE(fails(2, "f", "same", 900));
  EXPECT_TRUE(fails(3, "f", "other", 800));
  EXPECT_TRUE(fails(4, "g", "same", 700));
  EXPECT_FALSE(fails(5, "f", "same", 600));
  EXPECT_TRUE(fails(6, "f", "other", 500));
  EXPECT_FALSE(fails(7, "f", "other", 400));
}

// So that what must arrive, such as the end of an autograd context, can be sent again until it has.
TEST_F(FaultyLinkTest, TheEndOfAContextFailsAndTheRestOfAutogradDoesNot) {
  const auto link = this->link(
      {.fail = {"CLEANUP_AUTOGRAD_CONTEXT_REQ", "PYTHON_CALL"}, .delay = {}, .times = 1});
  link->send(call(wire::TargetKind::Autograd, "gradients"));
  EXPECT_TRUE(std::holds_alternative<wire::ReceivedCall>(*next(*link)));
  link->send(call(wire::TargetKind::Autograd, "release", CallId{8}));
  EXPECT_TRUE(std::holds_alternative<wire::ReceivedFailure>(*next(*link)));
  EXPECT_TRUE(std::holds_alternative<wire::ReceivedCall>(*next(*link)));  // in its place
  link->send(call(wire::TargetKind::Autograd, "release", CallId{9}));
  EXPECT_EQ(std::get<wire::ReceivedCall>(*next(*link)).function, "release");
}

TEST_F(FaultyLinkTest, ALateMessageIsOvertaken) {
  const auto link = this->link({.fail = {}, .delay = {{"PYTHON_CALL", std::chrono::hours(1)}}});
  link->send(call(wire::TargetKind::Python, "late"));
  link->send(call(wire::TargetKind::Operator, "early"));
  EXPECT_EQ(std::get<wire::ReceivedCall>(*next(*link)).function, "early");
  EXPECT_FALSE(next(*link).has_value());
  EXPECT_GT(timers_.due, clock_.now() + std::chrono::minutes(59));
  timers_.waiting();
  EXPECT_EQ(std::get<wire::ReceivedCall>(*next(*link)).function, "late");
}

}  // namespace
}  // namespace hawser::transport
