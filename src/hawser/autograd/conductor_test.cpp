#include "hawser/autograd/conductor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <map>
#include <string>

namespace hawser::autograd {
namespace {

using namespace std::chrono_literals;

// Several conductors, and messages that are delivered at once and in order, unless held back. What
// the layer above does is done by hand.
class ConductorTest : public ::testing::Test {
 protected:
  ConductorTest() {
    std::uint16_t rank = 0;
    for (const std::string name : {"a", "b", "c"}) {
      nodes_.emplace(std::piecewise_construct, std::forward_as_tuple(name),
                     std::forward_as_tuple(Self{name, Incarnation{1}, rank++}, ConductorOptions{}));
    }
  }

  static Party party(const std::string& name, std::uint64_t life = 1) {
    return {name, Incarnation{life}};
  }
  Conductor& at(const std::string& name) { return nodes_.at(name); }

  // A call or reply with one tensor that requires a gradient; before a reply there is a call.
  MessageId pass_on(ContextId context, const std::string& from, const std::string& to) {
    if (!at(from).is_in(context)) {
      const auto call = at(to).record_send(context, party(from), false);
      EXPECT_TRUE(at(from).record_recv(*call, party(to), false, now_));
    }
    const auto note = at(from).record_send(context, party(to), true);
    EXPECT_TRUE(note);
    EXPECT_TRUE(at(to).record_recv(*note, party(from), true, now_));
    return note->message;
  }

  void settle() {
    for (bool more = true; more;) {
      more = false;
      for (auto& [name, node] : nodes_) {
        for (Action& action : node.take_actions(now_)) {
          more = true;
          if (auto* send = std::get_if<Send>(&action)) {
            mail_.push_back({name, std::move(*send)});
          } else if (auto* answer = std::get_if<Answer>(&action)) {
            const auto [caller, call] = owed_.at(answer->call);
            owed_.erase(answer->call);
            at(caller).answered(call, answer->reply, now_);
          } else {
            done_[name].push_back(std::move(action));
          }
        }
      }
      while (!mail_.empty() && !hold_) {
        more = true;
        deliver_next();
      }
    }
  }
  void deliver_next() {
    auto [from, send] = std::move(mail_.front());
    mail_.pop_front();
    ++sent_[send.message.index()];
    if (cut_) {
      return at(from).answered(send.call, Error(ErrorKind::PeerLost, "cut"), now_);
    }
    const Incoming call{++last_call_};
    owed_[call] = {from, send.call};
    at(send.to.name).receive(party(from), call, send.message, now_);
  }
  template <class T>
  std::size_t sent() const {
    const auto at = sent_.find(Message(std::in_place_type<T>).index());
    return at == sent_.end() ? 0 : at->second;
  }

  // The actions of one kind since the last question.
  template <class T>
  std::vector<T> take(const std::string& name) {
    std::vector<T> found;
    std::erase_if(done_[name], [&](Action& action) {
      auto* wanted = std::get_if<T>(&action);
      if (wanted) found.push_back(std::move(*wanted));
      return wanted != nullptr;
    });
    return found;
  }
  template <class T>
  T take_one(const std::string& name) {
    auto found = take<T>(name);
    EXPECT_EQ(found.size(), 1u);
    return found.at(0);
  }

  void explore(const std::string& name, std::vector<MessageId> recvs) {
    const auto wanted = take_one<Explore>(name);
    at(name).explored(wanted.pass, wanted.exploration, recvs, now_);
    settle();
  }
  void run(const std::string& name, PassId pass, const std::vector<MessageId>& recvs) {
    for (const MessageId recv : recvs) {
      EXPECT_TRUE(at(name).send_gradients(pass, recv, GradientHandle{number(recv)}, now_));
    }
    settle();
    at(name).local_ended(pass, {}, now_);
    settle();
  }
  PassId begin(const std::string& name, ContextId context, Mode mode = Mode::Smart,
               Duration budget = Duration::max()) {
    const auto pass = at(name).backward(context, mode, {}, Deadline::from(now_, budget), now_);
    EXPECT_TRUE(pass.ok());
    settle();
    return pass.value();
  }
  void pass_time(Duration time) {
    now_ += time;
    for (auto& [name, node] : nodes_) {
      if (node.next_due().passed(now_)) node.tick(now_);
    }
    settle();
  }
  void expect_idle() {
    for (auto& [name, node] : nodes_) EXPECT_TRUE(node.idle()) << name;
  }

  TimePoint now_{1h};
  std::map<std::string, Conductor> nodes_;
  std::deque<std::pair<std::string, Send>> mail_;
  std::map<Incoming, std::pair<std::string, Outgoing>> owed_;
  std::map<std::size_t, std::size_t> sent_;
  std::map<std::string, std::vector<Action>> done_;
  std::uint64_t last_call_ = 0;
  bool hold_ = false;
  bool cut_ = false;
};

// ------------------------------------------------------------------------------- SMART

TEST_F(ConductorTest, AUsedResultCostsNoExtraRoundTripButTheDiscovery) {
  const ContextId context = at("a").create_context(now_);
  const MessageId call = pass_on(context, "a", "b");
  const MessageId reply = pass_on(context, "b", "a");
  const PassId pass = begin("a", context);
  explore("a", {reply});
  EXPECT_TRUE(take<StartLocal>("a").empty());  // whether its own send function waits is not known
  explore("b", {call});
  EXPECT_EQ(take_one<StartLocal>("b").awaited, std::vector{reply});
  explore("a", {});
  const auto start = take_one<StartLocal>("a");
  EXPECT_EQ(start.awaited, std::vector{call});
  EXPECT_TRUE(start.from_roots);

  EXPECT_TRUE(at("a").send_gradients(pass, reply, GradientHandle{7}, now_));
  settle();
  EXPECT_EQ(take_one<Deliver>("b").send, reply);
  run("b", pass, {call});
  EXPECT_TRUE(take<CommitLocal>("b").empty());
  EXPECT_EQ(take_one<Deliver>("a").send, call);
  at("a").local_ended(pass, {}, now_);
  settle();
  EXPECT_EQ(take<CommitLocal>("a").size(), 1u);
  EXPECT_EQ(take<CommitLocal>("b").size(), 1u);
  EXPECT_TRUE(take_one<Finished>("a").result.ok());
  EXPECT_EQ(sent<Discover>(), 2u);
  EXPECT_EQ(sent<Proceed>(), 0u);
  EXPECT_EQ(sent<Gradients>(), 2u);
  EXPECT_EQ(sent<Commit>(), 1u);
  EXPECT_TRUE(at("b").passes(now_).empty());
}

TEST_F(ConductorTest, WhoHasSentNothingStartsAtOnce) {
  const ContextId context = at("a").create_context(now_);
  const MessageId reply = pass_on(context, "b", "a");
  begin("a", context);
  hold_ = true;
  explore("a", {reply});
  EXPECT_EQ(take<StartLocal>("a").size(), 1u);
}

TEST_F(ConductorTest, AnUnusedResultIsNotWaitedFor) {
  const ContextId context = at("a").create_context(now_);
  pass_on(context, "a", "b");
  pass_on(context, "b", "a");
  const MessageId used_call = pass_on(context, "a", "b");
  const MessageId used_reply = pass_on(context, "b", "a");
  const PassId pass = begin("a", context);
  explore("a", {used_reply});
  explore("b", {used_call});
  explore("a", {});
  // Discovery is over; b had an unused function as well, and was told.
  EXPECT_EQ(take_one<StartLocal>("a").awaited, std::vector{used_call});
  EXPECT_EQ(take_one<StartLocal>("b").awaited, std::vector{used_reply});
  EXPECT_EQ(sent<Proceed>(), 1u);
  at("a").send_gradients(pass, used_reply, GradientHandle{1}, now_);
  settle();
  run("b", pass, {used_call});
  at("a").local_ended(pass, {}, now_);
  settle();
  EXPECT_TRUE(take_one<Finished>("a").result.ok());
}

TEST_F(ConductorTest, GradientsThatOvertakeTheirDiscoveryAreHeld) {
  const ContextId context = at("a").create_context(now_);
  const MessageId reply = pass_on(context, "b", "a");
  const PassId pass = begin("a", context);
  hold_ = true;
  explore("a", {reply});
  at("a").send_gradients(pass, reply, GradientHandle{1}, now_);
  settle();
  ASSERT_EQ(mail_.size(), 2u);
  std::swap(mail_[0], mail_[1]);
  hold_ = false;
  settle();
  EXPECT_TRUE(take<Deliver>("b").empty());
  explore("b", {});
  EXPECT_EQ(take<StartLocal>("b").size(), 1u);
  EXPECT_EQ(take_one<Deliver>("b").send, reply);  // GRAD-1
}

// ------------------------------------------------------------------------------- FAST

TEST_F(ConductorTest, FastWaitsForAllAndSaysSoWhenItIsInVain) {
  const ContextId context = at("a").create_context(now_);
  const MessageId call = pass_on(context, "a", "b");
  begin("a", context, Mode::Fast, 5s);
  EXPECT_EQ(take_one<StartLocal>("a").awaited, std::vector{call});
  EXPECT_EQ(sent<Discover>(), 0u);
  pass_time(5s);
  const auto why = take_one<AbortLocal>("a").why;
  EXPECT_EQ(why.kind(), ErrorKind::Timeout);
  EXPECT_NE(why.message().find("1 of 1 send functions; FAST"), std::string::npos) << why.what();
}

TEST_F(ConductorTest, FastDoesNotWaitForFunctionsOfCallsThatFailed) {
  const ContextId context = at("a").create_context(now_);
  const auto timed_out = at("a").record_send(context, party("b"), true);
  const auto never_left = at("a").record_send(context, party("b"), true);
  at("a").send_failed(context, timed_out->message, true);
  at("a").send_failed(context, never_left->message, false);
  begin("a", context, Mode::Fast);
  EXPECT_TRUE(take_one<StartLocal>("a").awaited.empty());
  EXPECT_EQ(at("a").context(context, now_)->sends, std::vector{timed_out->message});
}

// ------------------------------------------------------------------------------- failure

class FailingPass : public ConductorTest {
 protected:
  // a has begun, b waits for gradients of a, c for gradients of b.
  FailingPass() {
    context_ = at("a").create_context(now_);
    from_b_ = pass_on(context_, "b", "a");
    from_c_ = pass_on(context_, "c", "b");
    pass_ = begin("a", context_, Mode::Smart, 10s);
    explore("a", {from_b_});
    explore("b", {from_c_});
    explore("c", {});
  }
  void stop(const std::string& name) {
    at(name).local_ended(pass_, Error(ErrorKind::Cancelled, "stopped"), now_);
    settle();
  }
  ContextId context_{};
  MessageId from_b_{}, from_c_{};
  PassId pass_{};
};

TEST_F(FailingPass, AnErrorStopsEverybodyAndKeepsItsNode) {
  at("a").send_gradients(pass_, from_b_, GradientHandle{1}, now_);
  settle();
  at("b").local_ended(pass_, Error(ErrorKind::Remote, "nan in backward"), now_);
  settle();
  for (const std::string name : {"a", "b", "c"}) {
    EXPECT_EQ(take_one<AbortLocal>(name).why.message(), "nan in backward") << name;
  }
  stop("c");
  EXPECT_TRUE(take<Finished>("a").empty());  // GRAD-2: a itself has not stopped
  stop("a");
  const auto result = take_one<Finished>("a").result;
  EXPECT_EQ(result.error().kind(), ErrorKind::Remote);
  EXPECT_EQ(result.error().details().node, "b");
  for (auto& [name, node] : nodes_) EXPECT_TRUE(node.passes(now_).empty()) << name;
  EXPECT_TRUE(at("a").is_in(context_));  // usable
  EXPECT_TRUE(at("a").backward(context_, Mode::Smart, {}, Deadline::never(), now_).ok());
}

TEST_F(FailingPass, WhoDoesNotStopIsNotWaitedForLongerThanTheGrace) {
  ASSERT_TRUE(at("a").cancel(pass_, now_));
  settle();
  EXPECT_FALSE(at("a").cancel(pass_, now_));
  EXPECT_TRUE(take<Finished>("a").empty());
  pass_time(1s);
  EXPECT_EQ(take_one<Finished>("a").result.error().kind(), ErrorKind::Cancelled);
  stop("a");
  EXPECT_TRUE(take<Finished>("a").empty());
}

TEST_F(FailingPass, EverybodyHasTheDeadline) {
  hold_ = true;  // nobody can be told
  pass_time(10s);
  for (const std::string name : {"a", "b", "c"}) {
    EXPECT_EQ(take_one<AbortLocal>(name).why.kind(), ErrorKind::Timeout) << name;
  }
}

TEST_F(FailingPass, LateMessagesAreToldTheErrorThatEndedIt) {
  at("c").local_ended(pass_, Error(ErrorKind::Remote, "the cause"), now_);
  hold_ = true;
  settle();
  hold_ = false;
  mail_.clear();  // what c said is lost, as with its connection
  at("b").send_gradients(pass_, from_c_, GradientHandle{2}, now_);
  settle();
  EXPECT_EQ(take_one<AbortLocal>("b").why.message(), "the cause");
}

TEST_F(FailingPass, ALostConnectionEndsItAtBothEnds) {
  cut_ = true;
  at("b").disconnected("c", now_);
  at("c").disconnected("b", now_);
  settle();
  EXPECT_EQ(take_one<AbortLocal>("b").why.details().node, "c");
  EXPECT_EQ(take_one<AbortLocal>("c").why.details().node, "b");
}

TEST_F(FailingPass, GradientsThatNobodyWaitsForEndIt) {
  at("a").send_gradients(pass_, from_b_, GradientHandle{1}, now_);
  EXPECT_FALSE(at("a").send_gradients(pass_, from_b_, GradientHandle{2}, now_));  // GRAD-1
  settle();
  EXPECT_EQ(take_one<AbortLocal>("a").why.kind(), ErrorKind::Invalid);
}

TEST_F(FailingPass, AForeignDiscoveryEndsIt) {
  const PassHeader header{.context = context_, .pass = pass_, .initiator = party("a")};
  const Incoming call{1000};
  owed_[call] = {"c", Outgoing{}};
  at("b").receive(party("c"), call, Discover{header, {from_b_}}, now_);  // found before
  settle();
  EXPECT_EQ(take_one<AbortLocal>("b").why.kind(), ErrorKind::Invalid);
}

TEST_F(ConductorTest, ADiscoveryOfNothingOrOfWhatIsNotThereIsRefused) {
  const ContextId context = at("a").create_context(now_);
  pass_on(context, "a", "b");
  const std::vector<std::vector<MessageId>> wrong{{}, {MessageId{99}}};
  for (std::uint64_t i = 0; i < wrong.size(); ++i) {
    const PassHeader header{.context = context, .pass = PassId{i + 1}, .initiator = party("b")};
    const Incoming call{1000 + i};
    owed_[call] = {"b", Outgoing{}};
    at("a").receive(party("b"), call, Discover{header, wrong[i]}, now_);
    settle();
    EXPECT_EQ(take_one<AbortLocal>("a").why.kind(), ErrorKind::Invalid);
    EXPECT_TRUE(at("a").passes(now_).empty());
  }
}

TEST_F(FailingPass, ALocalPartThatSkipsSomethingIsNoSuccess) {
  at("a").local_ended(pass_, {}, now_);  // without the gradients for b
  settle();
  EXPECT_EQ(take_one<Finished>("a").result.error().kind(), ErrorKind::Invalid);
}

TEST_F(FailingPass, ReleaseOfTheContextCancelsIt) {
  at("a").release(context_, now_);
  settle();
  stop("b");
  stop("c");
  stop("a");
  EXPECT_EQ(take_one<Finished>("a").result.error().kind(), ErrorKind::Cancelled);
  expect_idle();
}

// ------------------------------------------------------------------------------- contexts

TEST_F(ConductorTest, IdsNameTheRankAndTheLife) {
  const ContextId context = at("b").create_context(now_);
  EXPECT_EQ(number(context) >> 48, 1u);
  at("b").rejoined({"b", Incarnation{2}, 1}, now_);
  EXPECT_NE(at("b").create_context(now_), context);
}

TEST_F(ConductorTest, ReleaseReachesThoseTheCreatorNeverMet) {
  const ContextId context = at("a").create_context(now_);
  pass_on(context, "a", "b");
  pass_on(context, "b", "c");
  EXPECT_TRUE(at("a").release(context, now_));
  settle();
  for (const std::string name : {"a", "b", "c"}) EXPECT_EQ(take<DropContext>(name).size(), 1u);
  EXPECT_FALSE(at("a").release(context, now_));
  expect_idle();
}

TEST_F(ConductorTest, AReleaseIsSentUntilItArrives) {
  const ContextId context = at("a").create_context(now_);
  pass_on(context, "a", "b");
  cut_ = true;
  at("a").release(context, now_);
  settle();
  pass_time(250ms);
  EXPECT_TRUE(at("b").is_in(context));
  cut_ = false;
  pass_time(500ms);
  EXPECT_FALSE(at("b").is_in(context));
  expect_idle();
}

TEST_F(ConductorTest, ReleasesTravelTogether) {
  hold_ = true;
  for (int i = 0; i < 5; ++i) {
    const ContextId context = at("a").create_context(now_);
    pass_on(context, "a", "b");
    at("a").release(context, now_);
  }
  hold_ = false;
  settle();
  EXPECT_EQ(sent<Release>(), 2u);
  expect_idle();
}

TEST_F(ConductorTest, ALateNoteDoesNotRaiseTheDead) {
  const ContextId context = at("a").create_context(now_);
  const auto late = at("a").record_send(context, party("b"), true);
  at("a").release(context, now_);
  settle();
  EXPECT_FALSE(at("b").record_recv(*late, party("a"), true, now_));  // GRAD-6
  EXPECT_FALSE(at("b").is_in(context));
  const auto to_creator = Note{context, late->message, late->creator};
  EXPECT_FALSE(at("a").record_recv(to_creator, party("b"), true, now_));
}

TEST_F(ConductorTest, ContextsOfLostCreatorsAreCollectedEverywhere) {
  const ContextId context = at("a").create_context(now_);
  const auto note = at("a").record_send(context, party("b"), true);
  at("b").record_recv(*note, party("a"), true, now_);
  pass_on(context, "b", "c");
  nodes_.erase("a");
  at("b").lost(party("a"), now_);
  settle();
  EXPECT_FALSE(at("c").is_in(context));
  EXPECT_FALSE(at("b").record_recv(*note, party("a"), true, now_));
  expect_idle();
}

TEST_F(ConductorTest, AMemberThatWasMissedAsksTheCreator) {
  const ContextId context = at("a").create_context(now_);
  pass_on(context, "a", "b");
  pass_on(context, "b", "c");
  at("b").rejoined({"b", Incarnation{2}, 1}, now_);  // the link between a and c is gone
  at("a").release(context, now_);
  settle();
  EXPECT_TRUE(at("c").is_in(context));
  pass_time(30s);
  EXPECT_FALSE(at("c").is_in(context));
}

TEST_F(ConductorTest, ACreatorThatNeverAnswersIsGivenUp) {
  const ContextId context = at("a").create_context(now_);
  pass_on(context, "a", "b");
  cut_ = true;
  for (int i = 0; i < 2; ++i) pass_time(30s);
  EXPECT_TRUE(at("b").is_in(context));
  pass_time(30s);
  EXPECT_FALSE(at("b").is_in(context));
}

TEST_F(ConductorTest, ANewLifeKnowsNothing) {
  const ContextId context = at("a").create_context(now_);
  const MessageId reply = pass_on(context, "b", "a");
  const PassId pass = begin("a", context);
  explore("a", {reply});
  at("a").rejoined({"a", Incarnation{2}, 0}, now_);
  cut_ = true;
  settle();
  const auto end = take_one<Finished>("a");
  EXPECT_EQ(end.pass, pass);
  EXPECT_EQ(end.result.error().kind(), ErrorKind::PeerLost);
  EXPECT_EQ(take<DropContext>("a").size(), 1u);
  EXPECT_TRUE(at("a").idle());
}

TEST_F(ConductorTest, BackwardNeedsAContext) {
  const auto pass = at("a").backward(ContextId{5}, Mode::Smart, {}, Deadline::never(), now_);
  ASSERT_FALSE(pass.ok());
  EXPECT_EQ(pass.error().message(), "Could not find autograd context with id: 5");
}

TEST_F(ConductorTest, PassesOfAContextDoNotMindEachOther) {
  const ContextId context = at("a").create_context(now_);
  const MessageId reply = pass_on(context, "b", "a");
  const PassId one = begin("a", context, Mode::Fast);
  const PassId other = begin("a", context, Mode::Fast);
  at("a").send_gradients(one, reply, GradientHandle{1}, now_);
  at("a").send_gradients(other, reply, GradientHandle{2}, now_);
  settle();
  at("b").local_ended(one, Error(ErrorKind::Remote, "only this one"), now_);
  run("b", other, {});
  at("a").local_ended(other, {}, now_);
  at("a").local_ended(one, {}, now_);
  settle();
  const auto ends = take<Finished>("a");
  ASSERT_EQ(ends.size(), 2u);
  for (const Finished& end : ends) EXPECT_EQ(end.result.ok(), end.pass == other);
}

}  // namespace
}  // namespace hawser::autograd
