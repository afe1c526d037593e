#include "hawser/agent/agent.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "hawser/agent/departure_driver.h"
#include "hawser/transport/sim/sim_transport.h"

// Agents in a quiet simulated world, where each step can be looked at. What happens to them in
// trouble is told in tests/sim.
namespace hawser::agent {
namespace {

using namespace std::chrono_literals;
namespace sim = transport::sim;

class Phonebook final : public Directory {
 public:
  explicit Phonebook(sim::SimWorld& world) : world_(world) {}
  void join(Card card, UniqueFunction<void(Result<Card>)> done) override {
    card.incarnation = Incarnation{++lives_[card.name]};
    cards[card.name] = card;
    world_.after(1ms, [card, done = std::move(done)]() mutable { done(card); });
  }
  void look_up(std::string name, UniqueFunction<void(Result<std::optional<Card>>)> done) override {
    ++look_ups;
    const auto found = cards.find(name);
    std::optional<Card> card;
    if (found != cards.end()) card = found->second;
    world_.after(1ms, [card, done = std::move(done)]() mutable { done(card); });
  }
  void leave(const Card& card) override { cards[card.name].endpoints.clear(); }

  std::map<std::string, Card> cards;
  int look_ups = 0;

 private:
  sim::SimWorld& world_;
  std::map<std::string, std::uint64_t> lives_;
};

// A node whose handler keeps what it gets.
class AgentNode final : public Workshop, public RequestHandler {
  sim::SimWorld& world_;
  sim::SimNetwork& network_;
  Phonebook& book_;
  std::set<transport::Link*> closed_;

 public:
  AgentNode(sim::SimWorld& world, sim::SimNetwork& network, Phonebook& book, std::string the_name,
            Limits limits = {})
      : world_(world),
        network_(network),
        book_(book),
        name(std::move(the_name)),
        process(world.start_process(name)) {
    agent =
        std::make_unique<Agent>(AgentOptions{.detector = {}, .limits = limits},
                                Agent::Surroundings{world.clock(), *process, book, *this, *this});
    agent->introduce({.name = name, .incarnation = {}, .world = {}, .secret = {}});
    transport = sim::create_sim(network, process, *agent, Limits{});
  }
  ~AgentNode() override {
    network_.kill(*process, false);
    transport->close();
  }

  void start() {
    const Card card{.name = name, .rank = 0, .incarnation = {}, .endpoints = {transport->listen()}};
    book_.join(card, [this](Result<Card> joined) {
      const Card& mine = joined.value();
      agent->start({.name = name, .incarnation = mine.incarnation, .world = {}, .secret = {}}, mine,
                   {transport.get()},
                   sim::make_sim_loopback(
                       network_, process,
                       {.name = name, .incarnation = mine.incarnation, .minor = 0, .features = {}},
                       Limits{}));
    });
    world_.run_until(world_.now() + 2ms);
  }

  CallHandle call(std::string_view to, Duration budget, std::size_t bytes = 0) {
    Request request;
    request.to = to;
    request.started = world_.clock().now();
    request.deadline = Deadline::after(world_.clock(), budget);
    request.message.function = "f";
    request.message.payload.value.resize(bytes);
    request.budget = budget;
    return agent->request(std::move(request),
                          [this](Answer answer) { answers.push_back(std::move(answer)); });
  }
  ErrorKind only_error() const {
    EXPECT_EQ(answers.size(), 1u);
    return answers.at(0).error.value().kind();
  }

  // Workshop
  void attach(std::shared_ptr<transport::Link> link,
              std::shared_ptr<transport::FrameSink> sink) override {
    auto& watched = static_cast<sim::SimLink&>(*link);
    const auto poll = [this, link, sink] {
      process->post([this, link, sink] { drain(*link, *sink); });
    };
    watched.on_ready(poll);
    poll();
  }
  void watch_writable(transport::Link&) override {}
  void outstanding_changed(int by) override { outstanding += by; }
  void beat() override { ++beats; }
  std::shared_ptr<void> keep_alive() override { return nullptr; }
  // RequestHandler
  Preparation prepare(wire::ReceivedCall&, const transport::PeerIdentity&) override { return {}; }
  void answer_received(wire::ReceivedPayload&, wire::Notes&,
                       const transport::PeerIdentity&) override {}
  void handle(std::shared_ptr<IncomingCall> incoming) override {
    if (answers_at_once) incoming->reply({});
    served.push_back(std::move(incoming));
  }

  const std::string name;
  const std::shared_ptr<sim::SimProcess> process;
  std::unique_ptr<Agent> agent;
  std::unique_ptr<transport::Transport> transport;
  std::vector<Answer> answers;
  std::vector<std::shared_ptr<IncomingCall>> served;
  bool answers_at_once = true;
  int outstanding = 0;
  int beats = 0;

 private:
  void drain(transport::Link& link, transport::FrameSink& sink) {
    for (wire::InFrame frame;;) {
      switch (link.receive(frame)) {
        case transport::Link::Received::Nothing:
          while (const auto task = sink.resume()) task->run();
          return;
        case transport::Link::Received::Closed:
          static_cast<sim::SimLink&>(link).on_ready(nullptr);
          if (closed_.insert(&link).second) sink.on_closed();
          return;
        case transport::Link::Received::Frame:
          if (const auto task = sink.on_frame(std::move(frame))) task->run();
      }
    }
  }
};

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() {
    a_.start();
    b_.start();
  }
  void run(Duration how_long) { world_.run_until(world_.now() + how_long); }
  static PeerReport report_of(const AgentNode& node, const std::string& peer) {
    for (const auto& report : node.agent->report_peers()) {
      if (report.name == peer) return report;
    }
    return {};
  }

  sim::SimWorld world_{1};
  sim::SimNetwork network_{world_};
  Phonebook book_{world_};
  AgentNode a_{world_, network_, book_, "a"};
  AgentNode b_{world_, network_, book_, "b"};
};

TEST_F(AgentTest, ConnectsWhenFirstCalled) {
  EXPECT_EQ(report_of(a_, "b").state, "");
  a_.call("b", 1s);
  EXPECT_EQ(report_of(a_, "b").state, "seeking");
  run(20ms);
  ASSERT_EQ(a_.answers.size(), 1u);
  EXPECT_FALSE(a_.answers[0].error);
  EXPECT_EQ(report_of(a_, "b").state, "connected");
  EXPECT_EQ(report_of(b_, "a").state, "connected");
  EXPECT_EQ(b_.served.at(0)->caller().name, "a");
  const Activity activity = a_.agent->activity();
  EXPECT_EQ(activity.busy, 0u);
  EXPECT_EQ(activity.sent, 1u);
  EXPECT_EQ(b_.agent->activity().received, 1u);
}

TEST_F(AgentTest, CallsThatWaitForSomebodyWhoIsNotThereAreLimited) {
  Limits limits;
  limits.max_calls_per_peer = 3;
  limits.max_bytes_in_flight_per_peer = 100;
  AgentNode narrow(world_, network_, book_, "narrow", limits);
  narrow.start();
  narrow.call("nobody", 1s, 60);
  EXPECT_TRUE(narrow.answers.empty());
  narrow.call("nobody", 1s, 60);
  EXPECT_EQ(narrow.only_error(), ErrorKind::Overloaded) << "too many bytes";
  narrow.answers.clear();
  for (int i = 0; i < 2; ++i) narrow.call("nobody", 1s);
  EXPECT_TRUE(narrow.answers.empty());
  narrow.call("nobody", 1s);
  EXPECT_EQ(narrow.only_error(), ErrorKind::Overloaded) << "too many calls";
  EXPECT_EQ(report_of(narrow, "nobody").waiting, 3u);
}

TEST_F(AgentTest, CallsItself) {
  a_.call("a", 1s);
  run(5ms);
  ASSERT_EQ(a_.answers.size(), 1u);
  EXPECT_FALSE(a_.answers[0].error);
}

TEST_F(AgentTest, BothConnectingAtOnceGetOneConnection) {
  a_.call("b", 1s);
  b_.call("a", 1s);
  run(100ms);
  EXPECT_FALSE(a_.answers.at(0).error);
  EXPECT_FALSE(b_.answers.at(0).error);
  EXPECT_EQ(a_.agent->activity().changes, 2u) << "itself, and one to b";
}

// PEER-1
TEST_F(AgentTest, DoesNotConnectToWhoHasBeenWelcomedAndIsOnItsWay) {
  wire::Hello hello;
  hello.from = "b";
  hello.incarnation = b_.agent->incarnation();
  ASSERT_FALSE(a_.agent->welcome(hello));
  a_.call("b", 1s);
  run(100ms);
  EXPECT_EQ(report_of(a_, "b").state, "seeking");
  EXPECT_EQ(a_.agent->activity().changes, 1u) << "itself";
  b_.call("a", 1s);
  run(100ms);
  EXPECT_FALSE(a_.answers.at(0).error);
  EXPECT_FALSE(b_.answers.at(0).error);
  EXPECT_EQ(a_.agent->activity().changes, 2u);
}

// PEER-1: it does not wait for ever.
TEST_F(AgentTest, ConnectsIfWhoHasBeenWelcomedDoesNotCome) {
  wire::Hello hello;
  hello.from = "b";
  hello.incarnation = b_.agent->incarnation();
  ASSERT_FALSE(a_.agent->welcome(hello));
  a_.call("b", 60s);
  run(10s);
  EXPECT_FALSE(a_.answers.at(0).error);
}

// PEER-2: the cable is cut, and only one end learns of it.
TEST_F(AgentTest, AConnectionThatIsDeadAtTheOtherEndIsReplaced) {
  for (const bool a_learns : {true, false}) {
    SCOPED_TRACE(a_learns);
    AgentNode& knows = a_learns ? a_ : b_;
    AgentNode& believes = a_learns ? b_ : a_;
    a_.answers_at_once = b_.answers_at_once = true;
    knows.call(believes.name, 1s);
    run(20ms);
    ASSERT_FALSE(knows.answers.back().error);
    knows.answers_at_once = false;
    believes.call(knows.name, 60s);
    run(20ms);

    network_.cut("a", "b", a_learns ? 0ms : 1h, a_learns ? 1h : 0ms);
    run(10ms);
    knows.call(believes.name, 8s);  // sooner than silence would be noticed
    run(500ms);
    EXPECT_EQ(report_of(believes, knows.name).state, "connected") << "it has not noticed yet";
    run(3s);
    EXPECT_FALSE(knows.answers.back().error);
    ASSERT_FALSE(believes.answers.empty());
    EXPECT_EQ(believes.answers.back().error.value().kind(), ErrorKind::PeerLost);
    EXPECT_EQ(report_of(believes, knows.name).incarnation, 1u) << "nobody had to rejoin";
    EXPECT_EQ(report_of(believes, knows.name).given_up, 0u);
    knows.served.clear();
  }
}

// PEER-2: an attempt that is older than the connection does it no harm.
TEST_F(AgentTest, ALateAttemptLeavesALiveConnectionAlone) {
  b_.answers_at_once = false;
  a_.call("b", 60s);
  run(20ms);
  wire::Hello hello;
  hello.from = "b";
  hello.incarnation = b_.agent->incarnation();
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(a_.agent->admit(hello)) << "told to somebody who has proved nothing";
    EXPECT_EQ(a_.agent->welcome(hello).value().reason, wire::RefusalReason::Duplicate);
    run(1500ms);
  }
  EXPECT_TRUE(a_.answers.empty());
  b_.served.at(0)->reply({});
  run(20ms);
  EXPECT_FALSE(a_.answers.at(0).error);
}

TEST_F(AgentTest, WaitsForANodeThatHasNotJoinedAndSaysWhich) {
  a_.call("c", 1s);
  run(500ms);
  EXPECT_TRUE(a_.answers.empty());
  EXPECT_EQ(a_.agent->activity().busy, 1u);
  run(501ms);
  EXPECT_EQ(a_.only_error(), ErrorKind::Timeout);
  EXPECT_EQ(a_.answers[0].error->details().node, "c");
}

TEST_F(AgentTest, ANodeThatJoinsLateIsReached) {
  a_.call("c", 2s);
  run(500ms);
  AgentNode c(world_, network_, book_, "c");
  c.start();
  run(500ms);
  ASSERT_EQ(a_.answers.size(), 1u);
  EXPECT_FALSE(a_.answers[0].error);
}

TEST_F(AgentTest, AWaitingCallCanBeCancelled) {
  const CallHandle handle = a_.call("c", 10s);
  run(10ms);
  a_.agent->cancel(handle, Error(ErrorKind::Cancelled, "enough"));
  EXPECT_EQ(a_.only_error(), ErrorKind::Cancelled);
  run(10s);
  EXPECT_EQ(a_.answers.size(), 1u);
}

TEST_F(AgentTest, LosingTheConnectionFailsWhatIsOutstanding) {
  b_.answers_at_once = false;
  a_.call("b", 10s);
  run(20ms);
  int lost = 0;
  a_.agent->on_peer_lost = [&](const std::string& peer, const Error&) { lost += peer == "b"; };
  network_.cut("a", "b", 0ms, 0ms);
  run(5ms);
  EXPECT_EQ(a_.only_error(), ErrorKind::PeerLost);
  EXPECT_EQ(a_.answers[0].error->details().incarnation, 1u);
  EXPECT_EQ(lost, 1);
  EXPECT_TRUE(b_.served.at(0)->cancelled());
  EXPECT_EQ(b_.agent->activity().busy, 1u) << "the handler still runs";
  b_.served.clear();
  EXPECT_EQ(b_.agent->activity().busy, 0u);
}

TEST_F(AgentTest, SilenceLosesAPeerAndBothComeBackAsNewIncarnations) {
  a_.call("b", 1s);
  run(20ms);
  network_.part("a", "b");
  run(3s);
  EXPECT_EQ(report_of(a_, "b").state, "suspect");
  run(9s);
  EXPECT_EQ(report_of(a_, "b").given_up, 1u);
  EXPECT_EQ(report_of(b_, "a").given_up, 1u);
  network_.heal("a", "b");
  run(1s);
  for (int i = 0; i < 3; ++i) {
    a_.call("b", 2s);
    run(2s);
  }
  EXPECT_FALSE(a_.answers.back().error) << a_.answers.back().error->what();
  EXPECT_GT(report_of(a_, "b").incarnation, 1u);
}

TEST_F(AgentTest, APeerThatIsGoneIsGivenUp) {
  a_.call("b", 1s);
  run(20ms);
  std::vector<std::string> given_up;
  a_.agent->on_given_up = [&](const std::string& peer, const Error&) { given_up.push_back(peer); };
  network_.kill(*b_.process, false);
  run(20ms);
  EXPECT_FALSE(a_.agent->reach("b"));
  run(50ms);
  EXPECT_EQ(given_up, std::vector<std::string>{"b"});
  a_.answers.clear();
  a_.call("b", 5s);
  run(50ms);
  EXPECT_EQ(a_.only_error(), ErrorKind::PeerLost) << "at once, not at the deadline";
}

TEST_F(AgentTest, ANodeThatHasLeftIsNotWaitedFor) {
  b_.agent->close(Error(ErrorKind::Invalid, "closed"));
  a_.call("b", 10s);
  run(100ms);
  EXPECT_EQ(a_.only_error(), ErrorKind::PeerLost);
}

TEST_F(AgentTest, CloseAnswersEverything) {
  b_.answers_at_once = false;
  a_.call("b", 10s);
  run(20ms);
  a_.call("c", 10s);
  a_.agent->close(Error(ErrorKind::Invalid, "closed"));
  a_.agent->close(Error(ErrorKind::Invalid, "closed"));
  run(20ms);
  EXPECT_EQ(a_.answers.size(), 2u);
  a_.call("b", 1s);
  ASSERT_EQ(a_.answers.size(), 3u);
  for (const auto& answer : a_.answers) EXPECT_EQ(answer.error->kind(), ErrorKind::Invalid);
  EXPECT_EQ(a_.outstanding, 0);
  EXPECT_EQ(report_of(b_, "a").state, "lost");
}

TEST_F(AgentTest, MessagesOfOtherProtocolsPassThrough) {
  std::vector<std::string> from;
  b_.agent->on_control_message = [&](const transport::PeerIdentity& peer, wire::Message message) {
    EXPECT_TRUE(std::holds_alternative<wire::Arrival>(message));
    from.push_back(peer.name);
  };
  EXPECT_FALSE(a_.agent->send_to("b", wire::encode(wire::Arrival{1}))) << "not connected yet";
  run(50ms);
  EXPECT_TRUE(a_.agent->send_to("b", wire::encode(wire::Arrival{1})));
  run(5ms);
  EXPECT_EQ(from, std::vector<std::string>{"a"});
}

TEST_F(AgentTest, ThoseWhoKeepBooksLearnWhoIsThereAndWhoIsNotLetInAgain) {
  std::vector<transport::PeerIdentity> met;
  a_.agent->on_connected = [&](const transport::PeerIdentity& peer) { met.push_back(peer); };
  std::vector<Incarnation> rejoined;
  b_.agent->on_rejoined = [&](Incarnation incarnation) { rejoined.push_back(incarnation); };
  EXPECT_EQ(a_.agent->reach("b"), std::nullopt);
  EXPECT_EQ(a_.agent->bar("b"), Incarnation{}) << "it never was there";
  run(50ms);
  ASSERT_EQ(met.size(), 1u);
  EXPECT_EQ(met[0].name, "b");
  const Incarnation first = met[0].incarnation;
  EXPECT_EQ(a_.agent->reach("b"), first);
  EXPECT_EQ(a_.agent->bar("b"), std::nullopt) << "it is connected";
  EXPECT_FALSE(
      a_.agent->send_to("b", Incarnation{number(first) + 1}, wire::References{1, 1, {}, {}}));

  a_.agent->tell_lost("b", first);
  run(200ms);
  ASSERT_EQ(rejoined.size(), 1u);
  EXPECT_GT(rejoined[0], first);
  a_.agent->reach("b");
  run(200ms);
  EXPECT_EQ(a_.agent->reach("b"), rejoined[0]);
}

// Whoever waits for `done` learns that it will not come: it is dropped, also if the node is closed
// just before it asks to leave.
TEST_F(AgentTest, ACancelledDepartureDropsWhatWaitsForIt) {
  for (const bool begun_before : {true, false}) {
    DepartureDriver driver("a", *a_.agent, world_.clock(), *a_.process);
    const auto waits = std::make_shared<int>();
    const auto begin = [&] {
      driver.begin({{0, "a"}, {1, "b"}}, [waits](const auto&) { ADD_FAILURE(); });
    };
    if (begun_before) begin();
    driver.cancel();
    if (!begun_before) begin();
    EXPECT_EQ(waits.use_count(), 1) << begun_before;
    run(200ms);
  }
}

}  // namespace
}  // namespace hawser::agent
