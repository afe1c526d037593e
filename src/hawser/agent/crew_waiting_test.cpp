// Threads that wait for a crew: what they read themselves, what they run, who has the seat.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <thread>

#include "hawser/agent/crew.h"
#include "support/crew_node.h"

namespace hawser::agent {
namespace {

using namespace std::chrono_literals;

TEST(Crew, WhoSleepsLeavesTheSeatToHands) {
  TestNode node({.spin_limit = 10s});
  for (int round = 0; round < 100; ++round) {
    Event reply, served;
    node.reply(reply);
    EXPECT_TRUE(node.crew().wait(reply, Deadline::never()));  // and means to come back
    node.request(task([&] { served.set(); }));
    EXPECT_TRUE(node.crew().sleep(served, Deadline::never()));
  }
}

// Unless the reply is there before it has sat down, as may happen now and then.
TEST(Crew, AHandlerThatWaitsReadsItsReplyItself) {
  TestNode node({.spin_limit = 1s});
  bool by_itself = false;
  for (int attempt = 0; attempt < 100 && !by_itself; ++attempt) {
    Event replied;
    std::thread::id handler;
    std::latch waits(1), done(1);
    node.request(task([&] {
      handler = std::this_thread::get_id();
      waits.count_down();
      EXPECT_TRUE(node.crew().wait(replied, Deadline::never()));
      done.count_down();
    }));
    waits.wait();
    node.reply(replied);
    done.wait();
    by_itself = node.last_reply_read_by() == handler;
  }
  EXPECT_TRUE(by_itself);
}

// A brief handler is brief although it waits: afterwards it lends the seat again, so that nobody is
// woken for what arrives before it returns. Where others compute it may have left the seat
// meanwhile: then it is tried again.
TEST(Crew, ABriefHandlerThatHasWaitedLendsTheSeat) {
  for (bool lent = false; !lent;) {
    TestNode node({.spin_limit = 1s});
    Event replied;
    std::latch waits(1), done(1);
    node.request(task(
        [&] {
          waits.count_down();
          EXPECT_TRUE(node.crew().wait(replied, Deadline::never()));
          lent = node.is_polled();
          done.count_down();
        },
        {.brief = true}));
    waits.wait();
    node.reply(replied);
    done.wait();
  }
}

// A hand that gave the seat away for the time of a handler's wait takes it again and serves on.
TEST(Crew, BriefHandlersThatWaitAreServedOneAfterAnother) {
  TestNode node;
  for (int i = 0; i < 500; ++i) {
    Event replied;
    std::latch waits(1), done(1);
    node.request(task(
        [&] {
          waits.count_down();
          EXPECT_TRUE(node.crew().wait(replied, Deadline::never()));
          done.count_down();
        },
        {.brief = true}));
    waits.wait();
    node.request(task([&] { node.reply(replied); }, {.brief = i % 2 == 0}));
    done.wait();
  }
}

// Where others compute, a hand may give up looking on before anybody has seen it: then messages are
// expected anew.
std::unique_ptr<Crew::Expectation> expect_until_polled(TestNode& node) {
  for (;;) {
    auto expected = std::make_unique<Crew::Expectation>(node.crew().shared_from_this());
    for (int look = 0; look < 10'000; ++look) {
      if (node.is_polled()) return expected;
      std::this_thread::yield();
    }
  }
}

TEST(Crew, AHandPollsWhileMessagesAreExpected) {
  TestNode node({.spin_limit = 1s});
  while (node.is_polled()) std::this_thread::yield();
  expect_until_polled(node).reset();
  while (node.is_polled()) std::this_thread::yield();  // nothing was served
}

// Whoever waits for a reply would otherwise have to be woken for it. Now and then the reply is
// there first, or others compute and nobody looks on: then it is tried again, with a crew that has
// not met them.
TEST(Crew, AHandThatLooksOnGivesTheSeatToAThreadThatWaits) {
  for (bool by_itself = false; !by_itself;) {
    TestNode node({.spin_limit = 10s});
    const auto expected = expect_until_polled(node);  // by a hand, and for long
    Event replied;
    std::latch waits(1);
    std::thread replier([&] {
      waits.wait();
      node.reply(replied);
    });
    waits.count_down();
    EXPECT_TRUE(node.crew().wait(replied, Deadline::never()));
    replier.join();
    by_itself = node.last_reply_read_by() == std::this_thread::get_id();
  }
}

TEST(Crew, WaitEndsWithTheDeadline) {
  for (const auto spin_limit : {0us, 50us}) {
    TestNode node({.spin_limit = spin_limit});
    Event never;
    EXPECT_FALSE(node.crew().wait(never, soon()));
    EXPECT_FALSE(node.crew().wait(never, Deadline(TimePoint{})));
  }
}

// CALL-1.
TEST(Crew, AWaitingThreadRunsNothing) {
  TestNode node;
  for (int i = 0; i < 500; ++i) {
    Event answered;
    const auto waiting = std::this_thread::get_id();
    node.request(task(
        [&] {
          EXPECT_NE(std::this_thread::get_id(), waiting);
          node.crew().post([&] {
            EXPECT_NE(std::this_thread::get_id(), waiting);
            node.reply(answered);
          });
        },
        {.brief = i % 2 == 0}));
    EXPECT_TRUE(node.crew().wait(answered, Deadline::never()));
  }
}

// ------------------------------------------------------------------------------- helping, CREW-5

constexpr std::uint64_t kOurs = 1, kOthers = 2;

TEST(Crew, AHelperRunsTheWorkItReadsAndNoOther) {
  for (const bool brief : {true, false}) {
    SCOPED_TRACE(brief ? "said to be brief" : "not said to be brief");
    TestNode node({.spin_limit = 1s});
    const auto me = std::this_thread::get_id();
    int by_itself = 0;
    for (int attempt = 0; attempt < 1000 && by_itself < 10; ++attempt) {
      Event ours_done, others_done;
      std::atomic<std::thread::id> reader, ours, others;
      Crew::Helper helper(node.crew().shared_from_this());
      helper.helps_with(kOurs);
      node.notify([&] {
        reader = std::this_thread::get_id();
        const auto run = [&node](auto& by, Event& done) {
          return [&] {
            by = std::this_thread::get_id();
            node.reply(done);  // which the helper may have to read itself
          };
        };
        node.crew().post_for(kOurs, run(ours, ours_done), brief);
        node.crew().post_for(kOthers, run(others, others_done), brief);
      });
      EXPECT_TRUE(node.crew().wait(ours_done, Deadline::never()));
      EXPECT_TRUE(node.crew().wait(others_done, Deadline::never()));
      EXPECT_NE(others.load(), me);
      EXPECT_EQ(ours.load() == me, reader.load() == me);
      by_itself += ours.load() == me ? 1 : 0;
    }
    EXPECT_EQ(by_itself, 10);
  }
}

// It may read it at the very last moment, while it leaves the seat.
TEST(Crew, AHelperDoesNotSleepOnWorkThatItHasRead) {
  for (const auto spin_limit : {0us, 20us}) {
    TestNode node({.spin_limit = spin_limit});
    for (int round = 0; round < 2000; ++round) {
      Event done;
      Crew::Helper helper(node.crew().shared_from_this());
      helper.helps_with(kOurs);
      std::latch begins(1);
      std::thread other([&] {
        begins.wait();
        node.notify([&] {
          node.crew().post_for(
              kOurs, [&] { done.set(); }, round % 2 == 0);
        });
      });
      begins.count_down();
      EXPECT_TRUE(node.crew().wait(done, Deadline::never()));
      other.join();
    }
  }
}

TEST(Crew, WhatAHelperIsGivenBeforeItWaitsRunsWhenItWaits) {
  TestNode node;
  Event done;
  Crew::Helper helper(node.crew().shared_from_this());
  helper.helps_with(kOurs);
  const auto me = std::this_thread::get_id();
  node.crew().post_for(
      kOurs,
      [&] {
        EXPECT_EQ(std::this_thread::get_id(), me);
        // It is no helper inside: this would wait for itself.
        Event inner;
        node.crew().post_for(
            kOurs, [&] { inner.set(); }, true);
        EXPECT_TRUE(node.crew().sleep(inner, Deadline::never()));
        done.set();
      },
      true);
  EXPECT_FALSE(done.happened());
  EXPECT_TRUE(node.crew().wait(done, Deadline(TimePoint{})));
}

TEST(Crew, WhatAHelperHasNotRunIsLeftToHands) {
  TestNode node;
  Event done;
  {
    Crew::Helper helper(node.crew().shared_from_this());
    helper.helps_with(kOurs);
    node.crew().post_for(
        kOurs, [&] { done.set(); }, false);
  }
  EXPECT_TRUE(node.crew().sleep(done, Deadline::never()));
}

// ------------------------------------------------------------------------------- coming back

// A thread that has its reply lends the seat if it expects more, and need not come back.
TEST(Crew, RepliesArriveAlthoughTheWaiterWentAway) {
  TestNode node;
  for (int i = 0; i < 50; ++i) {
    Event first, second;
    node.crew().expect_reply();
    node.reply(first);
    EXPECT_TRUE(node.crew().wait(first, Deadline::never()));
    node.reply(second);
    EXPECT_TRUE(second.sleep_until(Deadline::never()));
    node.crew().reply_arrived();
  }
}

}  // namespace
}  // namespace hawser::agent
