// Whoever is told that somebody will flush what a link holds back can rely on it.
#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <thread>

#include "support/crew_node.h"

namespace hawser::agent {
namespace {

using namespace std::chrono_literals;

// Holds something back until it is flushed, once.
class HoldingLink final : public transport::Link {
 public:
  std::string_view transport() const override { return "holding"; }
  const transport::PeerIdentity& peer() const override { return peer_; }
  bool send(wire::OutFrame) override { return true; }
  Duration flush() override {
    flushed.set();
    return 1us;
  }
  bool backlogged(std::size_t) override { return false; }
  Received receive(wire::InFrame&) override { return Received::Nothing; }
  bool pending() const override { return false; }
  int descriptor() const override { return -1; }
  bool wants_write() const override { return false; }
  void close() override {}
  std::optional<std::string> close_reason() const override { return std::nullopt; }
  transport::LinkStats stats() const override { return {}; }

  Event flushed;

 private:
  const transport::PeerIdentity peer_{};
};

// Waits as somebody who has called does: for an event that a task sets.
void wait_once(TestNode& node) {
  Event event;
  node.request(task([&] { event.set(); }));
  EXPECT_TRUE(node.crew().wait(event, Deadline::never()));
}

bool is_flushed(HoldingLink& link) {
  return link.flushed.sleep_until(Deadline(std::chrono::steady_clock::now() + 30s));
}

// A link that holds something back after this thread has waited. Null if the thread lost its core
// in between for so long that it is not trusted to come back.
std::shared_ptr<HoldingLink> hold_after_waiting(TestNode& node) {
  wait_once(node);
  auto link = std::make_shared<HoldingLink>();
  return node.crew().held_back(link) ? link : nullptr;
}

TEST(CrewHolding, NothingIsHeldBackWhileFewRepliesAreAwaited) {
  TestNode node;
  const int many = CrewOptions{}.many_replies;
  for (int i = 0; i < many; ++i) {
    node.crew().expect_reply();
    EXPECT_FALSE(hold_after_waiting(node));
  }
  node.crew().expect_reply();
  std::shared_ptr<HoldingLink> link;
  for (int attempt = 0; attempt < 100 && !link; ++attempt) link = hold_after_waiting(node);
  ASSERT_TRUE(link);
  EXPECT_TRUE(is_flushed(*link));
  for (int i = 0; i <= many; ++i) node.crew().reply_arrived();
}

TEST(CrewHolding, WhoWaitsAgainFlushes) {
  TestNode node({.spin_limit = 0us, .many_replies = -1});
  int held = 0;
  for (int i = 0; i < 200; ++i) {
    const auto link = hold_after_waiting(node);
    if (!link) continue;
    ++held;
    wait_once(node);
    ASSERT_TRUE(is_flushed(*link));
  }
  EXPECT_GT(held, 0);
}

TEST(CrewHolding, AnAnchorFlushesForWhoDoesNotComeBack) {
  TestNode node({.spin_limit = 0us, .many_replies = -1});
  int held = 0;
  for (int i = 0; i < 50; ++i) {
    const auto link = hold_after_waiting(node);
    if (!link) continue;
    ++held;
    ASSERT_TRUE(is_flushed(*link)) << "this thread sleeps, but not with the crew";
  }
  EXPECT_GT(held, 0);
}

TEST(CrewHolding, AStrangerIsToldThatNobodyWillOrSomebodyDoes) {
  TestNode node({.spin_limit = 0us, .many_replies = -1});
  std::thread stranger([&] {
    for (int i = 0; i < 1000; ++i) {
      const auto link = std::make_shared<HoldingLink>();
      if (node.crew().held_back(link)) {
        EXPECT_TRUE(is_flushed(*link));
      }
    }
  });
  for (int i = 0; i < 1000; ++i) wait_once(node);
  stranger.join();
}

TEST(CrewHolding, EndsWhereCallsAreLate) {
  TestNode node({.many_replies = -1, .hold_limit = 0us});     // they always are
  for (int refused = 0, tried = 0; refused < 100; ++tried) {  // in a row
    ASSERT_LT(tried, 1000);
    const auto link = hold_after_waiting(node);
    refused = link ? 0 : refused + 1;
    if (link) {
      ASSERT_TRUE(is_flushed(*link));
    }
  }
}

}  // namespace
}  // namespace hawser::agent
