#include "hawser/refs/courier.h"

#include <gtest/gtest.h>

namespace hawser::refs {
namespace {

using namespace std::chrono_literals;

const Party kA{"a", Incarnation{1}};
const Party kB{"b", Incarnation{1}};

Record record(std::uint64_t number) { return Drop{{1, number}, {2, number}}; }

// Two couriers; the test carries the messages, or does not.
class CourierTest : public ::testing::Test {
 protected:
  std::vector<Message> collect(Courier& courier) {
    Actions actions;
    courier.collect(now_, actions);
    std::vector<Message> messages;
    for (const Action& action : actions) messages.push_back(std::get<Send>(action).message);
    return messages;
  }
  Message collect_one(Courier& courier) {
    const auto messages = collect(courier);
    EXPECT_EQ(messages.size(), 1u);
    return messages.empty() ? Message{} : messages.front();
  }
  std::vector<Record> to_b(const Message& message) {
    return b_.receive(kA, Message(message), now_);
  }
  void to_a(const Message& message) { EXPECT_TRUE(a_.receive(kB, Message(message), now_).empty()); }

  TimePoint now_{1h};
  Roster roster_a_, roster_b_;
  const CourierOptions options_{
      .first_retry = 100ms, .last_retry = 400ms, .max_records = 4, .plenty = 3};
  Courier a_{options_, roster_a_};
  Courier b_{options_, roster_b_};
};

TEST_F(CourierTest, SendsAtOnceWhenThereIsLittleToSay) {
  a_.post(kB, record(1));
  const Message message = collect_one(a_);
  EXPECT_EQ(message.first, 1u);
  EXPECT_EQ(to_b(message), std::vector<Record>{record(1)});
  const Message ack = collect_one(b_);
  EXPECT_TRUE(ack.records.empty());
  EXPECT_EQ(ack.expected, 2u);
  to_a(ack);
  EXPECT_EQ(a_.unacknowledged(), 0u);
  EXPECT_TRUE(collect(a_).empty()) << "an acknowledgement is not acknowledged";
}

TEST_F(CourierTest, GathersWhileSomethingIsOnItsWay) {
  a_.post(kB, record(1));
  const Message first = collect_one(a_);
  a_.post(kB, record(2));
  a_.post(kB, record(3));
  EXPECT_TRUE(collect(a_).empty());
  to_b(first);
  to_a(collect_one(b_));
  EXPECT_EQ(collect_one(a_).records, (std::vector<Record>{record(2), record(3)}));
}

TEST_F(CourierTest, PlentyDoesNotWait) {
  a_.post(kB, record(1));
  collect(a_);
  for (std::uint64_t i = 2; i <= 4; ++i) {
    EXPECT_FALSE(a_.has_plenty_to_say());
    EXPECT_TRUE(collect(a_).empty());
    a_.post(kB, record(i));
  }
  EXPECT_TRUE(a_.has_plenty_to_say());
  const Message plenty = collect_one(a_);
  EXPECT_EQ(plenty.first, 2u);
  EXPECT_EQ(plenty.records.size(), 3u);
  EXPECT_FALSE(a_.has_plenty_to_say());
}

TEST_F(CourierTest, AMessageHasALimit) {
  for (std::uint64_t i = 1; i <= 7; ++i) a_.post(kB, record(i));
  const auto messages = collect(a_);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].records.size(), 4u);
  EXPECT_EQ(messages[1].records.size(), 3u);
}

TEST_F(CourierTest, RepeatsAfterAPauseThatDoubles) {
  a_.post(kB, record(1));
  const Message message = collect_one(a_);
  for (const Duration pause : {100ms, 200ms, 400ms, 400ms}) {
    EXPECT_EQ(a_.next_due().at(), now_ + pause);
    now_ += pause - 1ns;
    a_.tick(now_);
    EXPECT_TRUE(collect(a_).empty()) << "too early";
    now_ += 1ns;
    a_.tick(now_);
    EXPECT_EQ(collect_one(a_), message);
  }
  to_b(message);
  to_a(collect_one(b_));
  now_ += 1h;
  a_.tick(now_);
  EXPECT_TRUE(collect(a_).empty());
  EXPECT_TRUE(a_.next_due().is_never());
}

TEST_F(CourierTest, WhatComesTwiceIsTakenOnce) {
  a_.post(kB, record(1));
  const Message message = collect_one(a_);
  EXPECT_EQ(to_b(message).size(), 1u);
  collect(b_);
  EXPECT_TRUE(to_b(message).empty());
  EXPECT_EQ(collect_one(b_).expected, 2u) << "the acknowledgement may have been lost: again";
}

TEST_F(CourierTest, ARepetitionThatHoldsMoreBringsOnlyTheRest) {
  a_.post(kB, record(1));
  to_b(collect_one(a_));
  collect(b_);  // the acknowledgement is lost
  a_.post(kB, record(2));
  now_ += 100ms;
  a_.tick(now_);
  const Message again = collect_one(a_);
  EXPECT_EQ(again.records.size(), 2u);
  EXPECT_EQ(to_b(again), std::vector<Record>{record(2)});
}

TEST_F(CourierTest, WhatComesAfterAGapWaitsForItsTurn) {
  a_.post(kB, record(1));
  const Message first = collect_one(a_);
  for (std::uint64_t i = 2; i <= 4; ++i) a_.post(kB, record(i));
  const Message second = collect_one(a_);
  EXPECT_TRUE(to_b(second).empty());
  EXPECT_EQ(collect_one(b_).expected, 1u);
  EXPECT_EQ(to_b(first).size(), 1u);
  EXPECT_EQ(to_b(second).size(), 3u);
}

TEST_F(CourierTest, AcknowledgesWithWhatItHasToSayAnyway) {
  a_.post(kB, record(1));
  to_b(collect_one(a_));
  b_.post(kA, record(7));
  const Message answer = collect_one(b_);
  EXPECT_EQ(answer.expected, 2u);
  EXPECT_EQ(answer.records, std::vector<Record>{record(7)});
}

TEST_F(CourierTest, ANewConnectionRepeatsAtOnce) {
  a_.post(kB, record(1));
  const Message message = collect_one(a_);
  a_.connected("b");
  EXPECT_EQ(collect_one(a_), message);
}

TEST_F(CourierTest, NothingIsKeptForALifeThatIsOver) {
  a_.post(kB, record(1));
  collect(a_);
  roster_a_.of("b").lost = kB.incarnation;
  a_.lost(roster_a_.of("b"));
  EXPECT_EQ(a_.unacknowledged(), 0u);
  a_.post(kB, record(2));
  EXPECT_TRUE(collect(a_).empty());
  now_ += 1h;
  a_.tick(now_);
  EXPECT_TRUE(collect(a_).empty());
}

TEST_F(CourierTest, ANewLifeCountsFromOne) {
  a_.post(kB, record(1));
  to_b(collect_one(a_));
  to_a(collect_one(b_));
  const Party next{"b", Incarnation{2}};
  roster_a_.of("b").current = next.incarnation;
  a_.lost(roster_a_.of("b"));
  a_.post(next, record(2));
  const Message message = collect_one(a_);
  EXPECT_EQ(message.first, 1u);
  EXPECT_EQ(message.expected, 1u);
}

TEST_F(CourierTest, AnAcknowledgementOfWhatWasNeverSaidTakesNothing) {
  a_.post(kB, record(1));
  collect(a_);
  to_a({.expected = 1000});
  a_.post(kB, record(2));
  EXPECT_EQ(collect_one(a_).first, 2u);
}

}  // namespace
}  // namespace hawser::refs
