#include "hawser/agent/session.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>
#include <vector>

namespace hawser::agent {
namespace {

using namespace std::chrono_literals;

// Keeps what is sent, as the other end would receive it.
class RecordingLink final : public transport::Link {
 public:
  std::string_view transport() const override { return "recording"; }
  const transport::PeerIdentity& peer() const override { return peer_; }
  bool send(wire::OutFrame frame) override {
    if (closed) return false;
    const auto bytes = wire::to_bytes(frame);
    sent.push_back(wire::from_bytes(bytes, {}).take());
    return true;
  }
  bool backlogged(std::size_t limit) override {
    const bool more = counted.bytes_queued > limit;
    if (more && taken_after_next_look) counted.bytes_queued = 0;
    return more;
  }
  Received receive(wire::InFrame&) override {
    return closed ? Received::Closed : Received::Nothing;
  }
  bool pending() const override { return closed; }
  int descriptor() const override { return -1; }
  bool wants_write() const override { return false; }
  void close() override { closed = true; }
  std::optional<std::string> close_reason() const override { return std::nullopt; }
  transport::LinkStats stats() const override { return counted; }
  std::optional<std::uint64_t> pulse() const override { return beat; }

  std::deque<wire::InFrame> sent;
  transport::LinkStats counted;
  std::optional<std::uint64_t> beat;
  bool taken_after_next_look = false;  // the peer takes what is queued
  bool closed = false;

 private:
  const transport::PeerIdentity peer_{
      .name = "peer", .incarnation = Incarnation{3}, .minor = 0, .features = {}};
};

class RecordingEvents final : public SessionEvents {
 public:
  void session_closed(const std::shared_ptr<Session>&) override { ++closings; }
  void control_message(const std::shared_ptr<Session>&, wire::Message message) override {
    messages.push_back(std::move(message));
  }
  void watch_deadline(Deadline deadline) override { deadlines.push_back(deadline); }
  void outstanding_changed(int by) override { outstanding += by; }

  int closings = 0;
  int outstanding = 0;
  std::vector<wire::Message> messages;
  std::vector<Deadline> deadlines;
};

class ListingHandler final : public RequestHandler {
 public:
  Preparation prepare(wire::ReceivedCall&, const transport::PeerIdentity&) override { return {}; }
  void answer_received(wire::ReceivedPayload&, wire::Notes&,
                       const transport::PeerIdentity&) override {}
  void handle(std::shared_ptr<IncomingCall> call) override { calls.push_back(std::move(call)); }

  std::vector<std::shared_ptr<IncomingCall>> calls;
};

class SessionTest : public ::testing::Test {
 protected:
  CallId call(Deadline deadline = Deadline::never(), bool one_way = false) {
    OutstandingCall outstanding{
        .function = "f",
        .started = clock_.now(),
        .deadline = deadline,
        .on_answer = [this](Answer answer) { answers_.push_back(std::move(answer)); }};
    wire::Call message;
    message.function = "f";
    message.one_way = one_way;
    return session_->call(std::move(outstanding), std::move(message));
  }

  // As if the peer had sent it.
  std::shared_ptr<transport::Task> receive(const wire::OutFrame& frame) {
    link_->counted.bytes_received += frame.total_bytes();
    return session_->on_frame(wire::from_bytes(wire::to_bytes(frame), {}).take());
  }
  std::shared_ptr<transport::Task> receive_call(CallId id, std::uint64_t budget_us = 0) {
    wire::Call message;
    message.id = id;
    message.function = "g";
    message.budget_us = budget_us;
    return receive(wire::encode(std::move(message)));
  }
  template <class Message>
  Message take_sent() {
    if (link_->sent.empty()) throw std::runtime_error("nothing was sent");
    last_ = std::move(link_->sent.front());
    link_->sent.pop_front();
    return std::get<Message>(wire::decode(last_).take());
  }
  ErrorKind only_error() const {
    EXPECT_EQ(answers_.size(), 1u);
    return answers_.at(0).error.value().kind();
  }

  ManualClock clock_;
  Limits limits_;
  std::shared_ptr<RecordingLink> link_ = std::make_shared<RecordingLink>();
  RecordingEvents events_;
  ListingHandler handler_;
  std::shared_ptr<Session> session_ = std::make_shared<Session>(
      link_, clock_, limits_, FailureDetectorOptions{}, handler_, events_, nullptr);
  std::vector<Answer> answers_;
  wire::InFrame last_;
};

TEST_F(SessionTest, AReplyAnswersItsCallOnce) {
  const CallId id = call();
  EXPECT_EQ(take_sent<wire::ReceivedCall>().id, id);
  EXPECT_EQ(session_->outstanding(), 1u);
  EXPECT_EQ(events_.outstanding, 1);
  receive(wire::encode(wire::Reply{.id = id}));
  receive(wire::encode(wire::Reply{.id = id}));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_FALSE(answers_[0].error);
  EXPECT_EQ(events_.outstanding, 0);
  EXPECT_EQ(session_->calls_sent(), 1u);
}

TEST_F(SessionTest, AFailureAnswersItToo) {
  const CallId id = call();
  receive(wire::encode(wire::Failure{.id = id, .error = Error(ErrorKind::Remote, "no")}));
  EXPECT_EQ(only_error(), ErrorKind::Remote);
}

TEST_F(SessionTest, AOneWayCallIsOverWhenItIsSent) {
  call(Deadline::never(), true);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_FALSE(answers_[0].error);
  EXPECT_EQ(session_->outstanding(), 0u);
  EXPECT_TRUE(take_sent<wire::ReceivedCall>().one_way);
}

TEST_F(SessionTest, OneWayCallsHaveIdsOfTheirOwn) {
  call(Deadline::never(), true);
  const CallId first = take_sent<wire::ReceivedCall>().id;
  call(Deadline::never(), true);
  EXPECT_NE(take_sent<wire::ReceivedCall>().id, first);
}

TEST_F(SessionTest, ADeadlineFailsTheCallAndTellsThePeer) {
  const Deadline deadline = Deadline::after(clock_, 10ms);
  const CallId id = call(deadline);
  EXPECT_EQ(events_.deadlines, std::vector<Deadline>{deadline});
  take_sent<wire::ReceivedCall>();
  clock_.advance(9ms);
  EXPECT_EQ(session_->sweep(clock_.now()), deadline);
  EXPECT_TRUE(answers_.empty());
  clock_.advance(1ms);
  EXPECT_TRUE(session_->sweep(clock_.now()).is_never());
  EXPECT_EQ(only_error(), ErrorKind::Timeout);
  EXPECT_EQ(take_sent<wire::Cancel>().id, id);
}

TEST_F(SessionTest, CancelCompletesTheCallAndTellsThePeer) {
  const CallId id = call();
  take_sent<wire::ReceivedCall>();
  session_->cancel(id, Error(ErrorKind::Cancelled, "enough"));
  session_->cancel(id, Error(ErrorKind::Cancelled, "enough"));
  EXPECT_EQ(only_error(), ErrorKind::Cancelled);
  EXPECT_EQ(take_sent<wire::Cancel>().id, id);
  EXPECT_TRUE(link_->sent.empty());
}

TEST_F(SessionTest, ClosingFailsWhatIsOutstandingAndCancelsWhatIsServed) {
  call();
  receive_call(CallId{5})->run();
  ASSERT_EQ(handler_.calls.size(), 1u);
  session_->close(Error(ErrorKind::PeerLost, "gone"));
  EXPECT_TRUE(link_->closed);
  session_->on_closed();
  EXPECT_EQ(only_error(), ErrorKind::PeerLost);
  EXPECT_TRUE(handler_.calls[0]->cancelled());
  EXPECT_EQ(events_.closings, 1);

  answers_.clear();
  call();
  EXPECT_EQ(only_error(), ErrorKind::PeerLost) << "the reason answers every use";
  EXPECT_EQ(session_->serving(), 1u) << "the handler has not returned";
  handler_.calls.clear();
  EXPECT_EQ(session_->serving(), 0u);
}

TEST_F(SessionTest, ARequestIsServedAndAnswered) {
  const auto task = receive_call(CallId{5});
  ASSERT_TRUE(task);
  EXPECT_EQ(session_->serving(), 1u);
  EXPECT_EQ(session_->calls_received(), 1u);
  task->run();
  handler_.calls.at(0)->reply({});
  EXPECT_EQ(take_sent<wire::ReceivedReply>().id, CallId{5});
  EXPECT_EQ(session_->serving(), 0u);
}

TEST_F(SessionTest, ABudgetEndsAtTheCalleeToo) {
  receive_call(CallId{5}, 1000)->run();
  EXPECT_EQ(handler_.calls.at(0)->deadline(), Deadline::after(clock_, 1ms));
  clock_.advance(1ms);
  session_->sweep(clock_.now());
  EXPECT_TRUE(handler_.calls[0]->cancelled());
}

TEST_F(SessionTest, WhatFailedBecauseItsTimeWasUpIsLeftToTheCallerToTell) {
  receive_call(CallId{5}, 1000)->run();
  receive_call(CallId{6}, 2000)->run();
  clock_.advance(1ms);
  EXPECT_FALSE(handler_.calls.at(0)->fail(Error(ErrorKind::Timeout, "waited in vain")));
  EXPECT_TRUE(link_->sent.empty());
  EXPECT_TRUE(handler_.calls.at(1)->fail(Error(ErrorKind::Timeout, "did not wait so long")));
  EXPECT_EQ(take_sent<wire::ReceivedFailure>().id, CallId{6});
  EXPECT_EQ(session_->serving(), 0u);
}

TEST_F(SessionTest, CancelFromThePeerReachesTheHandler) {
  receive_call(CallId{5})->run();
  receive(wire::encode(wire::Cancel{CallId{6}}));
  EXPECT_FALSE(handler_.calls.at(0)->cancelled());
  receive(wire::encode(wire::Cancel{CallId{5}}));
  EXPECT_TRUE(handler_.calls[0]->cancelled());
}

TEST_F(SessionTest, AnIdThatIsInUseClosesTheConnectionAndLeavesTheFirstCallAlone) {
  receive_call(CallId{5})->run();
  EXPECT_FALSE(receive_call(CallId{5}));
  EXPECT_TRUE(link_->closed);
  EXPECT_EQ(session_->serving(), 1u);
  session_->on_closed();
  EXPECT_TRUE(handler_.calls.at(0)->cancelled());
}

TEST_F(SessionTest, AMalformedFrameClosesTheConnection) {
  wire::InFrame garbage{wire::Kind::Call, wire::BodyBytes(8), {}};
  std::fill_n(garbage.body.data(), 8, std::byte{0xff});
  EXPECT_FALSE(session_->on_frame(std::move(garbage)));
  EXPECT_TRUE(link_->closed);
  EXPECT_EQ(session_->closed().value().kind(), ErrorKind::PeerLost);
}

TEST_F(SessionTest, TooManyCallsAreRefused) {
  limits_.max_calls_per_peer = 1;
  session_ = std::make_shared<Session>(link_, clock_, limits_, FailureDetectorOptions{}, handler_,
                                       events_, nullptr);
  call();
  EXPECT_TRUE(answers_.empty());
  call();
  EXPECT_EQ(only_error(), ErrorKind::Overloaded);
}

// FLOW-1
TEST_F(SessionTest, CallsOfAnySizeWaitForRoomWithoutBeingTouched) {
  limits_.max_bytes_in_flight_per_peer = 100;
  std::shared_ptr<Event> no_room;
  const auto offer = [&](std::size_t bytes, bool one_way = false) {
    OutstandingCall outstanding{
        .function = "f",
        .started = clock_.now(),
        .deadline = Deadline::never(),
        .bytes = bytes,
        .on_answer = [this](Answer answer) { answers_.push_back(std::move(answer)); }};
    wire::Call message;
    message.function = "f";
    message.one_way = one_way;
    no_room = nullptr;
    const CallId id = session_->call(std::move(outstanding), std::move(message), &no_room);
    EXPECT_EQ(static_cast<bool>(outstanding.on_answer), no_room != nullptr);
    return id;
  };
  const CallId alone = offer(1000);
  EXPECT_FALSE(no_room) << "larger than the limit, and alone";
  offer(1);
  ASSERT_TRUE(no_room);
  const auto told = no_room;
  EXPECT_FALSE(told->happened());
  receive(wire::encode(wire::Reply{.id = alone}));
  EXPECT_TRUE(told->happened());
  for (int i = 0; i < 100; ++i) {
    offer(1);
    EXPECT_FALSE(no_room);
  }
  offer(1);
  EXPECT_TRUE(no_room);
  EXPECT_EQ(session_->outstanding(), 100u);
  offer(1, /*one_way=*/true);
  EXPECT_FALSE(no_room) << "nobody answers it";
  call();
  EXPECT_EQ(session_->outstanding(), 101u) << "one that may not wait passes";

  offer(1);
  const auto at_the_end = no_room;
  session_->close(Error(ErrorKind::PeerLost, "gone"));
  EXPECT_TRUE(at_the_end->happened());
}

// FLOW-2
TEST_F(SessionTest, ACallIsNotStartedUntilThePeerHasTakenWhatIsQueued) {
  link_->counted.bytes_queued = limits_.max_bytes_queued_per_peer + 1;
  for (const std::uint64_t id : {5, 6}) receive_call(CallId{id})->run();
  EXPECT_TRUE(handler_.calls.empty());
  EXPECT_EQ(session_->calls_put_aside(), 2u);
  EXPECT_EQ(session_->serving(), 2u);
  EXPECT_FALSE(session_->resume());

  link_->counted.bytes_queued = limits_.max_bytes_queued_per_peer;
  while (const auto task = session_->resume()) task->run();
  EXPECT_EQ(handler_.calls.size(), 2u);
  EXPECT_EQ(session_->calls_put_aside(), 0u);
}

// FLOW-2: reading goes on, so that two nodes cannot wait for each other.
TEST_F(SessionTest, EverythingButCallsPassesWhileTooMuchIsQueued) {
  const CallId ours = call();
  take_sent<wire::ReceivedCall>();
  receive_call(CallId{5})->run();
  link_->counted.bytes_queued = limits_.max_bytes_queued_per_peer + 1;
  receive(wire::encode(wire::Reply{.id = ours}));
  EXPECT_EQ(answers_.size(), 1u);
  receive(wire::encode(wire::Heartbeat{}));
  take_sent<wire::HeartbeatEcho>();
  receive(wire::encode(wire::Arrival{4}));
  EXPECT_EQ(events_.messages.size(), 1u);
  handler_.calls.at(0)->reply({});
  EXPECT_EQ(take_sent<wire::ReceivedReply>().id, CallId{5}) << "what was started is answered";
}

TEST_F(SessionTest, AOneWayCallIsRefusedWhereTooMuchIsQueuedAndStartedWhereItArrives) {
  link_->counted.bytes_queued = limits_.max_bytes_queued_per_peer + 1;
  call(Deadline::never(), true);
  EXPECT_EQ(only_error(), ErrorKind::Overloaded);
  wire::Call message;
  message.id = CallId{5};
  message.function = "g";
  message.one_way = true;
  receive(wire::encode(std::move(message)))->run();
  EXPECT_EQ(handler_.calls.size(), 1u) << "its answer queues nothing";
}

// FLOW-2: the peer takes everything between the first look at the link and the last.
TEST_F(SessionTest, ACallThatNeedNotWaitAfterAllIsStarted) {
  link_->counted.bytes_queued = limits_.max_bytes_queued_per_peer + 1;
  link_->taken_after_next_look = true;
  receive_call(CallId{5})->run();
  EXPECT_EQ(handler_.calls.size(), 1u);
  EXPECT_EQ(session_->calls_put_aside(), 0u);
}

TEST_F(SessionTest, ACallThatIsCancelledWhileItWaitsIsNotStarted) {
  link_->counted.bytes_queued = limits_.max_bytes_queued_per_peer + 1;
  receive_call(CallId{5})->run();
  receive(wire::encode(wire::Cancel{CallId{5}}));
  link_->counted.bytes_queued = 0;
  session_->resume()->run();
  EXPECT_TRUE(handler_.calls.empty());
  EXPECT_TRUE(link_->sent.empty());
  EXPECT_EQ(session_->serving(), 0u);
}

TEST_F(SessionTest, CallsThatWaitEndWithTheConnection) {
  link_->counted.bytes_queued = limits_.max_bytes_queued_per_peer + 1;
  receive_call(CallId{5})->run();
  session_->close(Error(ErrorKind::PeerLost, "gone"));
  EXPECT_EQ(session_->calls_put_aside(), 0u);
  EXPECT_EQ(session_->serving(), 0u);
  EXPECT_FALSE(session_->resume());
  EXPECT_TRUE(handler_.calls.empty());
}

TEST_F(SessionTest, TooManyCallsThatWaitAreRefused) {
  limits_.max_requests_queued = 1;
  link_->counted.bytes_queued = limits_.max_bytes_queued_per_peer + 1;
  for (const std::uint64_t id : {5, 6}) receive_call(CallId{id})->run();
  const auto failure = take_sent<wire::ReceivedFailure>();
  EXPECT_EQ(failure.id, CallId{6});
  EXPECT_EQ(failure.error.kind(), ErrorKind::Overloaded);
  EXPECT_EQ(session_->calls_put_aside(), 1u);
  session_->drop_put_aside();
  EXPECT_EQ(take_sent<wire::ReceivedFailure>().id, CallId{5});
}

TEST_F(SessionTest, SilenceIsNoticedAndBrokenByHeartbeats) {
  EXPECT_EQ(session_->check_health(clock_.now()), Liveness::Alive);
  take_sent<wire::Heartbeat>();
  clock_.advance(2s);
  EXPECT_EQ(session_->check_health(clock_.now()), Liveness::Suspect);
  take_sent<wire::Heartbeat>();
  receive(wire::encode(wire::HeartbeatEcho{}));
  EXPECT_EQ(session_->check_health(clock_.now()), Liveness::Alive);
  clock_.advance(10s);
  EXPECT_EQ(session_->check_health(clock_.now()), Liveness::Lost);
}

// A link with a pulse needs no heartbeats, but for this.
TEST_F(SessionTest, TheRoundTripIsMeasuredOnceAndAgainAfterUse) {
  link_->beat = 1;
  const auto check = [&] {
    clock_.advance(1s);
    ++*link_->beat;
    EXPECT_EQ(session_->check_health(clock_.now()), Liveness::Alive);
  };
  const auto measured = [&](Duration round_trip) {
    const auto asked = take_sent<wire::Heartbeat>();
    clock_.advance(round_trip);
    receive(wire::encode(wire::HeartbeatEcho{asked.sent_at_ns, 0}));
    EXPECT_EQ(session_->round_trip(), round_trip);
  };
  EXPECT_FALSE(session_->round_trip());
  check();
  measured(3ms);
  for (int i = 0; i < 20; ++i) check();
  EXPECT_TRUE(link_->sent.empty()) << "nobody uses it";

  call();
  take_sent<wire::ReceivedCall>();
  check();
  measured(2ms);
  receive_call(CallId{5})->run();
  for (int i = 0; i < 4; ++i) check();
  EXPECT_TRUE(link_->sent.empty()) << "so soon";
  check();
  measured(4ms);
}

TEST_F(SessionTest, AProbeIsAnsweredByAnythingThatArrives) {
  EXPECT_TRUE(session_->probe(clock_.now()));
  take_sent<wire::Heartbeat>();
  EXPECT_FALSE(session_->probe(clock_.now())) << "one at a time";
  EXPECT_TRUE(link_->sent.empty());
  EXPECT_TRUE(session_->is_silent_since_probe());
  EXPECT_FALSE(session_->is_silent_since_probe()) << "nobody asks any more";

  EXPECT_TRUE(session_->probe(clock_.now()));
  receive(wire::encode(wire::HeartbeatEcho{}));
  EXPECT_FALSE(session_->is_silent_since_probe());
}

TEST_F(SessionTest, OtherMessagesGoOn) {
  receive(wire::encode(wire::Arrival{4}));
  ASSERT_EQ(events_.messages.size(), 1u);
  EXPECT_EQ(std::get<wire::Arrival>(events_.messages[0]).rank, 4u);
}

}  // namespace
}  // namespace hawser::agent
