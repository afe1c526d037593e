#include "hawser/agent/incoming_call.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace hawser::agent {
namespace {

class RecordingPath final : public AnswerPath {
 public:
  bool send_reply(wire::Reply&& reply) override {
    replies.push_back(reply.id);
    return true;
  }
  bool send_failure(wire::Failure&& failure) override {
    failures.push_back(failure.error);
    return true;
  }
  bool is_past(Deadline deadline) const override { return deadline.passed(now); }
  void call_answered(CallId id) override { answered.push_back(id); }
  bool put_aside(const std::shared_ptr<IncomingCall>&) override { return busy; }

  bool busy = false;
  TimePoint now{};
  std::vector<CallId> replies;
  std::vector<Error> failures;
  std::vector<CallId> answered;
};

class KeepingHandler final : public RequestHandler {
 public:
  void handle(std::shared_ptr<IncomingCall> call) override { handled.push_back(std::move(call)); }
  Preparation prepare(wire::ReceivedCall&, const transport::PeerIdentity&) override { return {}; }
  void answer_received(wire::ReceivedPayload&, wire::Notes&,
                       const transport::PeerIdentity&) override {}

  std::vector<std::shared_ptr<IncomingCall>> handled;
};

class IncomingCallTest : public ::testing::Test {
 protected:
  std::shared_ptr<IncomingCall> receive(bool one_way = false) {
    wire::ReceivedCall call;
    call.id = CallId{7};
    call.function = "f";
    call.one_way = one_way;
    return std::make_shared<IncomingCall>(wire::InFrame{}, std::move(call),
                                          Caller{"caller", Incarnation{1}}, Deadline::never(),
                                          path_, handler_, Preparation{});
  }

  std::shared_ptr<RecordingPath> path_ = std::make_shared<RecordingPath>();
  KeepingHandler handler_;
};

TEST_F(IncomingCallTest, IsAnsweredOnce) {
  const auto call = receive();
  EXPECT_TRUE(call->reply({}));
  EXPECT_FALSE(call->reply({}));
  EXPECT_FALSE(call->fail(Error(ErrorKind::Remote, "too late")));
  EXPECT_EQ(path_->replies, std::vector<CallId>{CallId{7}});
  EXPECT_TRUE(path_->failures.empty());
  EXPECT_EQ(path_->answered.size(), 1u);
}

TEST_F(IncomingCallTest, DroppingItIsAnAnswer) {
  receive();
  ASSERT_EQ(path_->failures.size(), 1u) << "CALL-3";
  EXPECT_EQ(path_->failures[0].kind(), ErrorKind::Remote);
  EXPECT_EQ(path_->answered.size(), 1u);
}

TEST_F(IncomingCallTest, OneThatWasNeverACallOfItsOwnIsDroppedSilently) {
  receive()->disown();
  EXPECT_TRUE(path_->failures.empty());
  EXPECT_TRUE(path_->answered.empty()) << "the id is that of another call";
}

TEST_F(IncomingCallTest, AOneWayCallIsNotAnswered) {
  EXPECT_FALSE(receive(true)->reply({}));
  EXPECT_TRUE(path_->replies.empty());
  EXPECT_TRUE(path_->failures.empty());
  EXPECT_EQ(path_->answered.size(), 1u) << "it is over all the same";
}

TEST_F(IncomingCallTest, CancellationReachesTheHandlerOnce) {
  const auto call = receive();
  int told = 0;
  call->on_cancel([&] { ++told; });
  EXPECT_FALSE(call->cancelled());
  call->cancel();
  call->cancel();
  EXPECT_TRUE(call->cancelled());
  EXPECT_EQ(told, 1);
  call->on_cancel([&] { ++told; });
  EXPECT_EQ(told, 2) << "who comes later is told at once";
  EXPECT_FALSE(call->reply({})) << "nobody waits";
  EXPECT_TRUE(path_->replies.empty());
  EXPECT_EQ(path_->answered.size(), 1u);
}

TEST_F(IncomingCallTest, AnAnswerForgetsWhoWantedToKnowOfCancellation) {
  const auto call = receive();
  auto held = std::make_shared<int>(0);
  call->on_cancel([held] { ++*held; });
  call->reply({});
  EXPECT_EQ(held.use_count(), 1);
  call->cancel();
  EXPECT_EQ(*held, 0);
}

TEST_F(IncomingCallTest, RunGoesToTheHandlerUnlessCancelled) {
  receive()->run();
  EXPECT_EQ(handler_.handled.size(), 1u);
  const auto cancelled = receive();
  cancelled->cancel();
  cancelled->run();
  EXPECT_EQ(handler_.handled.size(), 1u);
  EXPECT_EQ(path_->answered.size(), 1u);
}

TEST_F(IncomingCallTest, RefusalIsAnAnswer) {
  receive()->refuse(Error(ErrorKind::Overloaded, "no thread"));
  ASSERT_EQ(path_->failures.size(), 1u);
  EXPECT_EQ(path_->failures[0].kind(), ErrorKind::Overloaded);
}

}  // namespace
}  // namespace hawser::agent
