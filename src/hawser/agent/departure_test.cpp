#include "hawser/agent/departure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

namespace hawser::agent {
namespace {

using Names = std::vector<std::string>;
using Actions = Departure::Actions;

// Several departures and the messages between them, delivered at once and in order.
class LeavingTogether : public ::testing::Test {
 protected:
  void build(const Names& names) {
    for (std::uint32_t rank = 0; rank < names.size(); ++rank) {
      members_.emplace(rank, names[rank]);
      nodes_.emplace(names[rank], names[rank]);
    }
  }

  void begin(const std::string& name) {
    perform(name, nodes_.at(name).begin(members_, activity_[name]));
  }
  void tick_all() {
    for (auto& [name, node] : nodes_) {
      if (!gone_.contains(name)) perform(name, node.tick(activity_[name]));
    }
  }
  // The process is gone, and everybody who looks for it finds out.
  void lose(const std::string& name) {
    gone_.insert(name);
    for (auto& [other, node] : nodes_) {
      if (gone_.contains(other)) continue;
      perform(other, node.disconnected(name, activity_[other]));
      perform(other, node.given_up(name, activity_[other]));
    }
  }
  bool finished(const std::string& name) const { return results_.contains(name); }

  void perform(const std::string& name, const Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* send = std::get_if<Departure::Send>(&action)) {
        mail_.push_back({name, *send});
      } else if (const auto* finish = std::get_if<Departure::Finish>(&action)) {
        EXPECT_FALSE(results_.contains(name)) << name << " finished twice";
        results_[name] = finish->lost;
      }
    }
    if (delivering_) return;
    delivering_ = true;
    while (!mail_.empty()) {
      const auto [from, send] = mail_.front();
      mail_.pop_front();
      if (lose_mail_ || gone_.contains(send.to)) continue;
      perform(send.to, nodes_.at(send.to).receive(from, send.message, activity_[send.to]));
    }
    delivering_ = false;
  }

  Departure::Members members_;
  std::map<std::string, Departure> nodes_;
  std::map<std::string, Activity> activity_;
  std::map<std::string, Names> results_;
  std::set<std::string> gone_;
  std::deque<std::pair<std::string, Departure::Send>> mail_;
  bool delivering_ = false;
  bool lose_mail_ = false;
};

TEST_F(LeavingTogether, EndsWhenTheLastOneAsks) {
  build({"a", "b", "c"});
  begin("b");
  begin("a");
  EXPECT_EQ(nodes_.at("a").waiting_for(), Names{"c"});
  EXPECT_EQ(nodes_.at("b").waiting_for(), Names{"a"});
  EXPECT_TRUE(results_.empty());
  begin("c");
  EXPECT_TRUE(finished("b"));
  EXPECT_TRUE(finished("c"));
  EXPECT_FALSE(finished("a")) << "the steward stays until the others are gone";
  lose("b");
  lose("c");
  EXPECT_TRUE(finished("a"));
  EXPECT_EQ(results_["a"], Names{});
}

TEST_F(LeavingTogether, AWorldOfOneEndsAtOnce) {
  build({"a"});
  begin("a");
  EXPECT_TRUE(finished("a"));
}

TEST_F(LeavingTogether, AStewardThatAsksLastKnowsWhoHasAsked) {
  build({"a", "b"});
  begin("b");
  begin("a");
  EXPECT_TRUE(finished("b"));
}

TEST_F(LeavingTogether, TheStewardDoesNotWaitForThoseWhoStay) {
  build({"a", "b"});
  begin("a");
  begin("b");
  for (int i = 0; i < 10; ++i) tick_all();
  EXPECT_TRUE(finished("a")) << "b has finished but not closed";
}

TEST_F(LeavingTogether, WaitsForCallsThatRun) {
  build({"a", "b"});
  activity_["b"].busy = 1;
  begin("a");
  begin("b");
  for (int i = 0; i < 5; ++i) tick_all();
  EXPECT_TRUE(results_.empty());
  EXPECT_EQ(nodes_.at("a").waiting_for(), Names{"b"});
  activity_["b"].busy = 0;
  tick_all();
  EXPECT_TRUE(finished("b"));
}

TEST_F(LeavingTogether, WaitsForCallsThatFly) {
  build({"a", "b"});
  activity_["a"].sent = 3;
  activity_["b"].received = 2;
  begin("a");
  begin("b");
  for (int i = 0; i < 50; ++i) tick_all();
  EXPECT_TRUE(results_.empty()) << "one call is on its way";
  activity_["b"].received = 3;
  tick_all();
  EXPECT_TRUE(finished("b"));
}

TEST_F(LeavingTogether, ConnectionsThatChangedBetweenRoundsAreNoRest) {
  build({"a", "b"});
  begin("a");
  lose_mail_ = true;
  begin("b");
  lose_mail_ = false;
  Departure& steward = nodes_.at("a");
  steward.receive("b", wire::Arrival{1}, {});
  const wire::CensusReport idle{1, 0, 0, 0};
  const Actions next = steward.receive("b", idle, {});
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0], Actions::value_type(Departure::Send{"b", wire::Census{2}}));

  Departure& member = nodes_.at("b");
  Activity activity;
  EXPECT_EQ(member.receive("a", wire::Census{1}, activity),
            (Actions{Departure::Send{"a", wire::CensusReport{1, 0, 0, 0}}}));
  activity.changes = 1;
  EXPECT_EQ(member.receive("a", wire::Census{1}, activity),
            (Actions{Departure::Send{"a", wire::CensusReport{1, 0, 0, 0}}}))
      << "the same question has the same answer";
  EXPECT_EQ(member.receive("a", wire::Census{2}, activity),
            (Actions{Departure::Send{"a", wire::CensusReport{2, 1, 0, 0}}}));
}

TEST_F(LeavingTogether, TheLostAreNotWaitedForAndAreNamed) {
  build({"a", "b", "c"});
  begin("a");
  begin("b");
  lose("c");
  EXPECT_TRUE(finished("b"));
  EXPECT_EQ(results_["b"], Names{"c"});
}

TEST_F(LeavingTogether, SumsThatCannotAgreeAreBelievedInTheEndWhenSomebodyIsLost) {
  build({"a", "b", "c"});
  activity_["a"].sent = 1;  // to c, which only a cannot see
  begin("a");
  begin("b");
  lose("c");
  for (int i = 0; i < 10; ++i) tick_all();
  EXPECT_FALSE(finished("b"));
  for (int i = 0; i < 20; ++i) tick_all();
  EXPECT_TRUE(finished("b"));
}

TEST_F(LeavingTogether, TheNextRankTakesOver) {
  build({"a", "b", "c"});
  begin("b");
  begin("c");
  EXPECT_EQ(nodes_.at("c").waiting_for(), Names{"a"});
  lose("a");
  EXPECT_TRUE(finished("c"));
  EXPECT_EQ(results_["c"], Names{"a"});
}

TEST_F(LeavingTogether, AStewardLostAfterTheCensusIsReplaced) {
  build({"a", "b", "c"});
  begin("b");
  begin("c");
  lose_mail_ = true;
  begin("a");  // its census is lost with it
  lose_mail_ = false;
  lose("a");
  EXPECT_TRUE(finished("c"));
}

TEST_F(LeavingTogether, WhoHeardNothingLeavesWhenEverybodyIsGone) {
  build({"a", "b"});
  begin("a");
  lose_mail_ = true;
  begin("b");
  lose_mail_ = false;
  perform("b", nodes_.at("b").given_up("a", {}));
  EXPECT_TRUE(finished("b"));
  EXPECT_EQ(results_["b"], Names{"a"});
}

TEST_F(LeavingTogether, EveryMessageMayBeLostOnce) {
  build({"a", "b", "c"});
  lose_mail_ = true;
  begin("a");
  begin("b");
  begin("c");
  lose_mail_ = false;
  for (int i = 0; i < 5; ++i) tick_all();
  EXPECT_TRUE(finished("b"));
  EXPECT_TRUE(finished("c"));
}

TEST_F(LeavingTogether, AMemberThatComesBackHasToAskAgain) {
  build({"a", "b"});
  begin("b");
  perform("a", nodes_.at("a").disconnected("b", {}));
  begin("a");
  EXPECT_EQ(nodes_.at("a").waiting_for(), Names{"b"});
  EXPECT_TRUE(results_.empty());
}

TEST_F(LeavingTogether, ALostMemberThatIsHeardOfIsWaitedForAgain) {
  build({"a", "b", "c"});
  begin("a");
  perform("a", nodes_.at("a").given_up("c", {}));
  perform("a", nodes_.at("a").reached("c", {}));
  begin("b");
  EXPECT_TRUE(results_.empty());
  begin("c");
  EXPECT_TRUE(finished("b"));
}

TEST_F(LeavingTogether, ANodeThatHasNotAskedIsNotDismissed) {
  build({"a", "b"});
  EXPECT_TRUE(nodes_.at("b").receive("a", wire::Dismissal{}, {}).empty());
  EXPECT_FALSE(nodes_.at("b").finished());
  EXPECT_TRUE(nodes_.at("b").waiting_for().empty());
}

TEST_F(LeavingTogether, TheStewardReachesForTheAbsent) {
  build({"a", "b", "c"});
  lose_mail_ = true;
  begin("a");
  begin("c");
  const Actions steward = nodes_.at("a").tick({});
  EXPECT_NE(std::find(steward.begin(), steward.end(), Actions::value_type(Departure::Reach{"b"})),
            steward.end());
  const Actions member = nodes_.at("c").tick({});
  EXPECT_NE(std::find(member.begin(), member.end(), Actions::value_type(Departure::Reach{"a"})),
            member.end());
  EXPECT_EQ(std::find(member.begin(), member.end(), Actions::value_type(Departure::Reach{"b"})),
            member.end())
      << "only the steward needs a connection to everybody";
}

}  // namespace
}  // namespace hawser::agent
