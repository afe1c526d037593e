#include "hawser/agent/crew.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "hawser/base/log.h"
#include "support/crew_node.h"

namespace hawser::agent {
namespace {

using namespace std::chrono_literals;

TEST(Crew, NeedsTwoThreads) {
  const auto bell = std::make_shared<transport::Doorbell>();
  const auto set = std::make_shared<transport::PollSet>(*bell);
  EXPECT_THROW(Crew(bell, set, CrewOptions{.max_threads = 1}), Error);
}

TEST(Crew, RunsWhatIsPostedAndWhatIsRequested) {
  TestNode node;
  std::latch done(3);
  node.crew().post([&] { done.count_down(); });
  node.crew().submit(task([&] { done.count_down(); }));
  node.request(task([&] { done.count_down(); }));
  done.wait();
}

TEST(Crew, RunsWhatTasksPost) {
  TestNode node;
  std::latch done(100);
  std::function<void(int)> fan_out = [&](int depth) {
    if (depth > 1) node.crew().post([&fan_out, depth] { fan_out(depth - 1); });
    done.count_down();
  };
  node.crew().post([&] { fan_out(100); });
  done.wait();
}

// Nobody is told of them: the hand that reads the frame sees them next.
TEST(Crew, RunsWhatIsPostedWhileAFrameIsRead) {
  TestNode node;
  for (const bool brief : {false, true}) {
    SCOPED_TRACE(brief ? "said to be brief" : "not said to be brief");
    constexpr int kTasks = 8;
    std::latch all_here(kTasks);
    std::latch done(kTasks);
    node.notify([&] {
      for (int i = 0; i < kTasks; ++i) {
        auto body = [&] {
          all_here.arrive_and_wait();
          done.count_down();
        };
        if (brief) {
          node.crew().post_brief(body);
        } else {
          node.crew().post(body);
        }
      }
    });
    done.wait();
  }
}

TEST(Crew, RunsWhatATaskLeavesBehindOnTheSameHandAfterIt) {  // CREW-4
  struct Gone {
    std::atomic<bool>& said;
    ~Gone() { said = true; }
  };
  for (const bool brief : {false, true}) {
    SCOPED_TRACE(brief ? "said to be brief" : "not said to be brief");
    TestNode node;
    std::atomic<bool> gone{false};
    std::vector<int> order;
    std::thread::id hand;
    std::latch done(1);
    auto owned = std::make_shared<Gone>(gone);
    auto leaves = [&, owned] {
      hand = std::this_thread::get_id();
      node.crew().post_last([&] {
        EXPECT_EQ(std::this_thread::get_id(), hand);
        EXPECT_TRUE(gone);
        order.push_back(2);
        node.crew().post_last([&] {
          EXPECT_EQ(std::this_thread::get_id(), hand);
          order.push_back(4);
          done.count_down();
        });
      });
      node.crew().post_last([] { throw std::runtime_error("thrown by what was left behind"); });
      node.crew().post_last([&] { order.push_back(3); });
      order.push_back(1);
    };
    owned.reset();
    log::set_sink([](auto...) {});
    node.request(task(std::move(leaves), {.brief = brief}));
    done.wait();
    EXPECT_TRUE(node.crew().stop(Deadline::never()));
    log::set_sink(nullptr);
    EXPECT_EQ(order, (std::vector{1, 2, 3, 4}));
  }
}

TEST(Crew, RunsWhatOtherThreadsLeaveBehindAsWhatTheyPost) {
  TestNode node, other;
  std::latch done(2);
  node.crew().post_last([&] { done.count_down(); });
  std::latch left(1);
  other.crew().post([&] {  // a hand, but of another crew
    node.crew().post_last([&] {
      done.count_down();
      left.count_down();
    });
    left.wait();
  });
  done.wait();
}

TEST(Crew, SurvivesATaskThatThrows) {
  TestNode node;
  log::set_sink([](auto...) {});
  node.crew().post([] { throw std::runtime_error("thrown by a callback"); });
  node.crew().post([] { throw 7; });
  std::latch done(1);
  node.request(task([&] { done.count_down(); }));
  done.wait();
  EXPECT_TRUE(node.crew().stop(Deadline::never()));
  node.crew().post([] { throw std::runtime_error("thrown after the end"); });
  log::set_sink(nullptr);
}

TEST(Crew, HandlersThatWaitForEachOtherAllGetAThread) {
  TestNode node;
  for (const bool brief : {false, true}) {
    SCOPED_TRACE(brief ? "said to be brief" : "not said to be brief");
    constexpr int kHandlers = 64;
    std::latch all_here(kHandlers);
    std::latch all_done(kHandlers);
    for (int i = 0; i < kHandlers; ++i) {
      auto handler = task(
          [&] {
            all_here.arrive_and_wait();
            all_done.count_down();
          },
          {.brief = brief});
      if (i % 2 == 0) {
        node.request(std::move(handler));
      } else {
        node.crew().submit(std::move(handler));
      }
    }
    all_done.wait();
  }
}

// Each handler waits for the next one, as a sync call does.
TEST(Crew, NestedCallsGetAThreadEach) {
  TestNode node;
  std::function<void(int)> nest = [&](int depth) {
    if (depth == 0) return;
    Event answered;
    node.request(task(
        [&, depth] {
          nest(depth - 1);
          node.reply(answered);
        },
        {.brief = depth % 3 == 0}));
    EXPECT_TRUE(node.crew().wait(answered, Deadline::never()));
  };
  nest(60);
}

// What was handed to the hand on the seat must not be forgotten when its handler turns out to wait:
// the waiter that the hand has become does not look at the queue.
TEST(Crew, WhatIsPostedWhileABriefHandlerRunsIsNotForgotten) {
  for (int i = 0; i < 100; ++i) {
    TestNode node({.spin_limit = 0us});  // a fresh one: no hand to spare that would take it
    std::latch in_handler(1);
    std::latch may_go_on(1);
    std::latch posted_ran(1);
    Event done;
    node.request(task(
        [&] {
          in_handler.count_down();
          may_go_on.wait();
          Event answered;
          node.reply(answered);
          EXPECT_TRUE(node.crew().wait(answered, Deadline::never()));
          posted_ran.wait();
          done.set();
        },
        {.brief = true}));
    in_handler.wait();
    node.crew().post([&] { posted_ran.count_down(); });
    may_go_on.count_down();
    EXPECT_TRUE(done.sleep_until(Deadline::never()));
  }
}

// A handler that says it is brief and is not holds nobody up: requests, replies, callbacks.
TEST(Crew, ABriefHandlerThatIsNotHoldsNobodyUp) {
  TestNode node;
  std::latch others_done(3);
  std::latch done(1);
  Event answered;
  node.request(task(
      [&] {
        others_done.wait();
        done.count_down();
      },
      {.brief = true}));
  node.request(task([&] { others_done.count_down(); }));
  node.crew().post([&] { others_done.count_down(); });
  node.reply(answered);
  EXPECT_TRUE(answered.sleep_until(Deadline::never()));
  others_done.count_down();
  done.wait();
}

// CREW-2. One thread of the limit always looks after the links.
TEST(Crew, AChainDeeperThanTheThreadsIsRefusedAndDoesNotHang) {
  for (const std::size_t limit : {2u, 3u, 8u}) {
    SCOPED_TRACE(limit);
    TestNode node({.max_threads = limit});
    std::atomic<std::size_t> deepest{0};
    std::atomic<int> refusals{0};
    std::function<void()> call_on = [&] {
      Event answered;
      node.request(task(
          [&] {
            ++deepest;
            call_on();
            node.reply(answered);
          },
          {.chain = ChainId{7}},
          [&](const Error& why) {
            EXPECT_EQ(why.kind(), ErrorKind::Overloaded);
            ++refusals;
            answered.set();
          }));
      EXPECT_TRUE(node.crew().wait(answered, Deadline::never()));
    };
    call_on();
    EXPECT_EQ(deepest, limit - 1);
    EXPECT_EQ(refusals, 1);
    EXPECT_EQ(node.crew().stats().refused, 1u);
  }
}

TEST(Crew, ARequestOfAnotherChainWaitsUntilAThreadIsFree) {
  TestNode node({.max_threads = 2});
  std::latch first_runs(1);
  std::latch first_may_end(1);
  std::latch all_done(4);
  std::atomic<bool> first_ended{false};
  node.request(task(
      [&] {
        first_runs.count_down();
        first_may_end.wait();
        first_ended = true;
        all_done.count_down();
      },
      {.chain = ChainId{1}}));
  first_runs.wait();
  const auto second = [&] {
    EXPECT_TRUE(first_ended);
    all_done.count_down();
  };
  node.request(task(second, {.chain = ChainId{2}}));
  node.crew().submit(task(second, {.chain = ChainId{3}}));
  node.crew().post(second);
  Event answered;  // meanwhile replies arrive
  node.reply(answered);
  EXPECT_TRUE(node.crew().wait(answered, Deadline::never()));
  first_may_end.count_down();
  all_done.wait();
}

// A request that was queued while a thread was free, and is overtaken by its own chain.
TEST(Crew, WhatIsQueuedIsRefusedWhenItsChainTakesTheLastThread) {
  TestNode node({.max_threads = 2});
  for (int i = 0; i < 200; ++i) {
    std::atomic<int> left{2};
    Event done;
    const auto one_less = [&] {
      if (--left == 0) done.set();
    };
    Event sibling_settled;
    const auto sibling = [&] {
      sibling_settled.set();
      one_less();
    };
    node.crew().submit(task(
        [&] {
          // May run second; then the other one is done already.
          EXPECT_TRUE(sibling_settled.sleep_until(Deadline::never()));
          one_less();
        },
        {.chain = ChainId{9}}, [&](const Error&) { one_less(); }));
    node.crew().submit(task(sibling, {.chain = ChainId{9}}, [&](const Error&) { sibling(); }));
    EXPECT_TRUE(done.sleep_until(Deadline::never()));
  }
}

// CREW-1 at the limit: whoever runs handlers, replies are received.
TEST(Crew, RepliesArriveHoweverManyHandlersWait) {
  for (const std::size_t limit : {2u, 3u}) {
    TestNode node({.max_threads = limit, .spin_limit = 0us});
    constexpr int kRounds = 2000;
    std::latch done(2 * kRounds);
    const auto call_and_wait = [&] {
      Event answered;
      node.reply(answered);
      EXPECT_TRUE(node.crew().wait(answered, Deadline::never()));
      done.count_down();
    };
    for (int i = 0; i < kRounds; ++i) {
      node.request(task(call_and_wait, {.brief = i % 2 == 0}));
      node.crew().submit(task(call_and_wait));
    }
    done.wait();
  }
}

TEST(Crew, RefusesMoreThanItMayQueue) {
  TestNode node({.max_threads = 2, .max_queued = 3});
  std::latch runs(1);
  std::latch may_end(1);
  std::latch settled(10);
  std::atomic<int> refused{0};
  node.crew().submit(task([&] {
    runs.count_down();
    may_end.wait();
  }));
  runs.wait();
  for (int i = 0; i < 10; ++i) {
    node.crew().submit(task([&] { settled.count_down(); }, {},
                            [&](const Error& why) {
                              EXPECT_EQ(why.kind(), ErrorKind::Overloaded);
                              ++refused;
                              settled.count_down();
                            }));
  }
  EXPECT_EQ(refused, 7);
  EXPECT_EQ(node.crew().stats().queued, 3u);
  may_end.count_down();
  settled.wait();
}

// ------------------------------------------------------------------------------- stopping

TEST(Crew, RefusesAfterStop) {
  TestNode node;
  EXPECT_TRUE(node.crew().stop(Deadline::never()));
  EXPECT_TRUE(node.crew().stop(Deadline::never()));
  int refused = 0;
  node.crew().submit(task([] { ADD_FAILURE(); }, {},
                          [&](const Error& why) {
                            EXPECT_EQ(why.kind(), ErrorKind::Invalid);
                            ++refused;
                          }));
  EXPECT_EQ(refused, 1);
  bool ran = false;
  node.crew().post([&] { ran = true; });  // somebody may wait for what a callback does
  EXPECT_TRUE(ran);
  EXPECT_EQ(node.crew().stats().threads, 0u);
}

TEST(Crew, StopsWithoutEverHavingStarted) {
  const auto bell = std::make_shared<transport::Doorbell>();
  const auto set = std::make_shared<transport::PollSet>(*bell);
  const auto crew = std::make_shared<Crew>(bell, set, CrewOptions{});
  EXPECT_TRUE(crew->stop(Deadline::never()));
}

TEST(Crew, StopWaitsForHandlersAndLeavesWaitersAlone) {
  TestNode node;
  std::latch runs(1);
  std::latch may_end(1);
  std::atomic<bool> ended{false};
  node.request(task([&] {
    runs.count_down();
    may_end.wait();
    ended = true;
  }));
  runs.wait();
  Event never_answered;
  std::latch waits(2);
  std::vector<std::thread> waiters;
  for (int i = 0; i < 2; ++i) {
    waiters.emplace_back([&] {
      waits.count_down();
      EXPECT_TRUE(node.crew().wait(never_answered, Deadline::never()));
    });
  }
  waits.wait();
  EXPECT_FALSE(node.crew().stop(soon()));
  may_end.count_down();
  EXPECT_TRUE(node.crew().stop(Deadline::never()));
  EXPECT_TRUE(ended);
  never_answered.set();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST(Crew, AStuckHandlerOutlivesTheNode) {
  std::latch runs(1);
  std::latch may_end(1);
  std::latch ended(1);
  {
    TestNode node;
    node.request(task([&] {
      runs.count_down();
      may_end.wait();
      ended.count_down();
    }));
    runs.wait();
    EXPECT_FALSE(node.crew().stop(soon()));
    EXPECT_EQ(node.crew().stats().running, 1u);
    node.do_not_wait_for_handlers();
  }
  may_end.count_down();
  ended.wait();
}

TEST(Crew, RunsBesideTheHandsWhatTheyAllWaitFor) {
  TestNode node({.max_threads = 2});
  Event told;
  std::latch ended(1);
  node.request(task([&] {
    EXPECT_TRUE(told.sleep_until(Deadline::after(SteadyClock(), std::chrono::seconds(20))));
    ended.count_down();
  }));
  node.crew().post_beside([&] { told.set(); });
  ended.wait();
}

TEST(Crew, StopLeavesBehindWhatDoesNotReturnBesideTheHands) {
  TestNode node;
  Event may_end;
  std::latch runs(1);
  std::atomic<bool> ran{false};
  node.crew().post_beside([&] {
    runs.count_down();
    may_end.sleep_until(Deadline::never());
  });
  node.crew().post_beside([&] { ran = true; });
  runs.wait();
  EXPECT_FALSE(node.crew().stop(soon()));
  may_end.set();
  EXPECT_TRUE(node.crew().stop(Deadline::never()));
  EXPECT_TRUE(ran);
}

TEST(Crew, AHandlerMayStopItsOwnCrew) {
  TestNode node;
  Event stopped;
  node.request(task([&] {
    EXPECT_TRUE(node.crew().stop(Deadline::never()));
    stopped.set();
  }));
  EXPECT_TRUE(stopped.sleep_until(Deadline::never()));
}

// Whatever is submitted while it stops is run or refused; the traps in the tasks look after that.
TEST(Crew, StopsInTheMiddleOfWork) {
  for (int i = 0; i < 50; ++i) {
    TestNode node({.spin_limit = std::chrono::microseconds(i % 2 * 50)});
    std::atomic<int> settled{0};
    std::vector<std::thread> submitters;
    std::latch all_started(3);
    for (int t = 0; t < 3; ++t) {
      submitters.emplace_back([&, t] {
        all_started.arrive_and_wait();
        for (int n = 0; n < 200; ++n) {
          node.crew().submit(
              task([&] { ++settled; }, {.brief = t == 1}, [&](const Error&) { ++settled; }));
          Event event;
          node.crew().wait(event, Deadline(TimePoint{}));
        }
      });
    }
    all_started.wait();
    EXPECT_TRUE(node.crew().stop(Deadline::never()));
    for (std::thread& submitter : submitters) submitter.join();
    EXPECT_EQ(settled, 600);
  }
}

// Would hang if a destructor ran under the crew's lock.
TEST(Crew, TasksDieOutsideOfItsLocks) {
  struct Asks {
    explicit Asks(Crew& crew) : crew(crew) {}
    ~Asks() { crew.stats(); }
    Crew& crew;
  };
  TestNode node({.max_threads = 2, .max_queued = 2});
  Crew& crew = node.crew();
  std::latch runs(1);
  std::latch may_end(1);
  crew.post([&, asks = std::make_unique<Asks>(crew)] {
    runs.count_down();
    may_end.wait();
  });
  runs.wait();
  for (int i = 0; i < 4; ++i) crew.post([asks = std::make_unique<Asks>(crew)] {});
  std::thread opener([&] { may_end.count_down(); });
  EXPECT_TRUE(crew.stop(Deadline::never()));
  opener.join();
  crew.post([asks = std::make_unique<Asks>(crew)] {});
}

}  // namespace
}  // namespace hawser::agent
