#include "sim_autograd/story.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>

namespace hawser::autograd::simulation {
namespace {

using namespace std::chrono_literals;
using transport::sim::SeededRandom;
using transport::sim::SimWorld;

constexpr std::string_view kMessages[] = {"Discover", "Proceed", "Gradients", "Commit",
                                          "Abort",    "Release", "Inquire"};
constexpr Duration kNoticed = 100ms;       // at the latest, that a connection or a node is gone
constexpr Duration kLongestProgram = 20s;  // forward, backward, some idleness
constexpr Duration kForgotten = 1500ms;    // at the latest, a pass that has failed

std::string_view content_of(const Parcel& parcel) {
  return parcel.message ? kMessages[parcel.message->index()] : "Forward";
}

enum class Trouble { Crash, Cut, GiveUp };

class Story final : public Surroundings {
 public:
  Story(std::uint64_t seed, StoryOptions options)
      : seed_(seed),
        world_(seed),
        model_(world_, conductor_options({}).abort_grace),
        dice_(world_.stream("story")),
        whims_(world_.stream("programs")) {
    if (options.log) world_.listen([](const std::string& line) { std::cout << line << '\n'; });
    for (std::uint64_t i = 2 + dice_.below(7); i > 0; --i) {
      names_.push_back("n" + std::to_string(names_.size()));
    }
    draw_conditions();
  }
  ~Story() override { world_.clear(); }

  Outcome run();

  // --- Surroundings ---
  SimWorld& world() override { return world_; }
  Model& model() override { return model_; }
  SeededRandom& whims() override { return whims_; }
  void call(const Party& from, const Party& to, Parcel parcel, Duration budget, Done done) override;
  void answer(CallNumber call, Result<Parcel> reply) override;
  void later(const Party& whose, Duration delay, UniqueFunction<void()> task) override;
  Duration ask_after() const override { return ask_after_; }
  std::vector<std::string> others(const std::string& than) override;
  void check_that_it_goes(PassId pass) override;
  void check_gradients(ContextId context) override;

 private:
  struct Life {
    std::unique_ptr<SimNode> node{};  // nothing while it is not running
    std::uint64_t incarnation = 0;
  };
  struct Route {
    Party from, to;
    std::string_view content{};
    std::uint64_t connection = 0;  // 0: of a node to itself
  };
  struct Call {
    Route route;
    bool arrived = false;
    Done done{};
  };
  struct Connection {
    std::uint64_t number = 0;
    bool up = true;
    std::set<std::string> unaware{};  // those who have not noticed that it is gone
  };
  using Pair = std::pair<std::string, std::string>;
  static Pair pair(const std::string& one, const std::string& other) {
    return one < other ? Pair(one, other) : Pair(other, one);
  }

  bool good() const { return model_.complaints().empty(); }
  void draw_conditions();
  void run_for(Duration while_);
  void next_act();
  void next_trouble();
  void make_peace();
  Outcome outcome() const;

  SimNode* node(const std::string& name) { return lives_[name].node.get(); }
  void start(const std::string& name);
  void crash(const std::string& name);
  void give_up(const std::string& by, const std::string& other);
  void rejoin(const Party& party);

  bool connect(const std::string& one, const std::string& other);
  void cut(const std::string& one, const std::string& other);
  void part(const std::string& one, const std::string& other);
  void notice(const std::string& by, const std::string& other, std::uint64_t connection);
  bool is_up(const Route& route) const;
  Duration flight();
  void lie_in_wait(const Route& route, Duration flight);
  void arrive(CallNumber number, const Route& route, const Parcel& parcel);
  void end(CallNumber number, const Result<Parcel>& reply, bool left);
  void count(std::string_view content, Mishap mishap) { ++mishaps_[{content, mishap}]; }

  const std::uint64_t seed_;
  SimWorld world_;
  Model model_;
  SeededRandom dice_;
  SeededRandom whims_;
  std::vector<std::string> names_;
  std::map<std::string, Life> lives_;
  std::map<Pair, Connection> connections_;
  std::map<Pair, TimePoint> parted_;              // until then
  std::set<std::pair<std::string, Party>> bars_;  // who has given up whom
  std::map<CallNumber, Call> calls_;
  std::map<Pair, TimePoint> last_arrival_;  // from, to
  std::vector<Trouble> troubles_;
  unsigned slow_ = 0;  // messages, per mille
  Duration ask_after_ = 5s;
  std::string_view prey_;  // one kind of message, struck while it flies
  int ambushes_left_ = 0;
  bool peace_ = false;
  CallNumber last_call_ = 0;
  std::uint64_t last_connection_ = 0;
  std::uint64_t crashes_ = 0, cuts_ = 0, rejoins_ = 0;
  std::map<std::pair<std::string_view, Mishap>, std::uint64_t> mishaps_;
  std::map<std::string_view, std::uint64_t> sent_;
};

// ------------------------------------------------------------------------------- the course of it

void Story::draw_conditions() {
  if (dice_.per_mille(500)) ask_after_ = 150ms;
  if (dice_.per_mille(250)) return;  // calm
  if (dice_.per_mille(500)) slow_ = static_cast<unsigned>(dice_.below(300));
  for (const Trouble each : {Trouble::Crash, Trouble::Cut, Trouble::GiveUp}) {
    if (dice_.per_mille(400)) troubles_.push_back(each);
  }
  if (troubles_.empty() || dice_.per_mille(500)) return;
  prey_ = dice_.one_of(all_contents());
  ambushes_left_ = 3;
}

Outcome Story::run() {
  for (const auto& name : names_) start(name);
  next_act();
  next_trouble();
  run_for(600ms);
  make_peace();
  // Passes end by their deadlines; who was missed by a release asks.
  const auto options = conductor_options(ask_after_);
  run_for(kLongestProgram +
          (options.ask_after + options.errand_timeout) * (options.asks_in_vain + 1));
  if (good()) model_.check_rest();
  for (const auto& [number, call] : calls_) {
    if (!good()) break;
    model_.complain(std::string(call.route.content) + " of " + call.route.from.name + " to " +
                    call.route.to.name + " was never answered");
  }
  for (auto& [name, life] : lives_) {
    if (good()) life.node->check_empty();
  }
  return outcome();
}

void Story::run_for(Duration while_) {
  bool there = false;
  const auto mark = world_.after(while_, [&] { there = true; });
  while (good() && !there && world_.step()) {
  }
  world_.cancel(mark);
}

void Story::next_act() {
  if (peace_) return;
  world_.after(dice_.between(20ms, 200ms), [this] { next_act(); });
  if (SimNode* actor = node(dice_.one_of(names_))) actor->run_a_context();
}

void Story::next_trouble() {
  if (peace_ || troubles_.empty()) return;
  world_.after(dice_.between(5ms, 150ms), [this] { next_trouble(); });
  const std::string one = dice_.one_of(names_);
  const std::string other = dice_.one_of(others(one));
  switch (dice_.one_of(troubles_)) {
    case Trouble::Crash:
      return crash(one);
    case Trouble::Cut:
      cut(one, other);
      if (dice_.per_mille(500)) part(one, other);
      return;
    case Trouble::GiveUp:
      return give_up(one, other);
  }
}

void Story::make_peace() {
  world_.note("peace");
  peace_ = true;
  parted_.clear();
  for (const auto& name : names_) start(name);
  // Who has been given up is told at the first contact, and comes again.
  for (const auto& one : names_) {
    for (const auto& other : others(one)) {
      for (int i = 0; i < 3; ++i) {
        world_.after(i * 50ms, [this, one, other] { connect(one, other); });
      }
    }
  }
}

Outcome Story::outcome() const {
  return {.seed = seed_,
          .history = world_.history(),
          .events = world_.events_run(),
          .counts = model_.counts(),
          .mishaps = mishaps_,
          .sent = sent_,
          .crashes = crashes_,
          .cuts = cuts_,
          .rejoins = rejoins_,
          .complaints = model_.complaints()};
}

void Story::check_that_it_goes(PassId pass) {
  world_.after(kForgotten, [this, pass] {
    for (auto& [name, life] : lives_) {
      if (life.node) life.node->check_is_gone(pass);
    }
  });
}

void Story::check_gradients(ContextId context) {
  for (auto& [name, life] : lives_) {
    if (life.node) life.node->check_gradients(context);
  }
}

// ------------------------------------------------------------------------------- nodes

std::vector<std::string> Story::others(const std::string& than) {
  std::vector<std::string> names = names_;
  std::erase(names, than);
  return names;
}

void Story::later(const Party& whose, Duration delay, UniqueFunction<void()> task) {
  world_.after(delay, [this, whose, task = std::move(task)]() mutable {
    if (model_.is_alive(whose)) task();
  });
}

void Story::start(const std::string& name) {
  Life& life = lives_[name];
  if (life.node) return;
  const Party self{name, Incarnation{++life.incarnation}};
  world_.note("starts", name, life.incarnation);
  model_.started(self);
  const auto rank =
      static_cast<std::uint16_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  life.node = std::make_unique<SimNode>(*this, self, rank);
}

void Story::crash(const std::string& name) {
  Life& life = lives_[name];
  if (!life.node) return;
  ++crashes_;
  model_.trouble();
  model_.life_ended_early();
  const Party gone = life.node->self();
  world_.note("crashes", name);
  for (const auto& other : others(name)) cut(name, other);
  model_.ended(gone);
  for (const auto& [number, call] : calls_) {
    if (call.route.from == gone) count(call.route.content, Mishap::Orphaned);
  }
  std::erase_if(calls_, [&](const auto& each) { return each.second.route.from == gone; });
  std::erase_if(bars_, [&](const auto& each) { return each.first == name; });
  life.node.reset();
  for (const auto& other : others(name)) {
    world_.after(dice_.between(1ms, 2 * kNoticed), [this, other, gone] {
      model_.trouble();
      if (SimNode* witness = node(other)) witness->lost(gone);
    });
  }
  world_.after(dice_.between(20ms, 500ms), [this, name] { start(name); });
}

void Story::give_up(const std::string& by, const std::string& other) {
  SimNode* const judge = node(by);
  SimNode* const judged = node(other);
  if (!judge || !judged || !bars_.insert({by, judged->self()}).second) return;
  model_.lasting_trouble();
  world_.note(by, "gives up", other);
  cut(by, other);
  judge->lost(judged->self());
}

// It has been told that somebody gave it up.
void Story::rejoin(const Party& party) {
  Life& life = lives_[party.name];
  if (!life.node || life.node->self() != party) return;
  ++rejoins_;
  model_.trouble();
  model_.life_ended_early();
  const Incarnation next{++life.incarnation};
  world_.note(party.name, "comes again as", life.incarnation);
  for (const auto& other : others(party.name)) cut(party.name, other);
  std::erase_if(calls_, [&](const auto& each) { return each.second.route.from == party; });
  life.node->rejoin(next);
}

// ------------------------------------------------------------------------------- connections

bool Story::connect(const std::string& one, const std::string& other) {
  if (!node(one) || !node(other)) return false;
  if (one == other) return true;
  Connection& connection = connections_[pair(one, other)];
  if (connection.number != 0 && connection.up) return true;
  // A node hears of the end of one connection before anything of the next.
  const std::uint64_t before = connection.number;
  notice(one, other, before);
  notice(other, one, before);
  if (connection.number != before) return connection.up;  // made by what they did then
  if (parted_.contains(pair(one, other)) && parted_[pair(one, other)] > world_.now()) return false;
  for (const auto& [judge, judged] : {Pair(one, other), Pair(other, one)}) {
    if (!bars_.contains({judge, node(judged)->self()})) continue;
    world_.after(dice_.between(1ms, 20ms), [this, party = node(judged)->self()] { rejoin(party); });
    return false;
  }
  connection = {.number = ++last_connection_};
  node(one)->met(node(other)->self());
  node(other)->met(node(one)->self());
  return true;
}

void Story::cut(const std::string& one, const std::string& other) {
  const auto at = connections_.find(pair(one, other));
  if (at == connections_.end() || !at->second.up) return;
  ++cuts_;
  model_.trouble();
  world_.note("cut", one, other);
  at->second.up = false;
  at->second.unaware = {one, other};
  const std::uint64_t connection = at->second.number;
  for (const auto& [by, of] : {Pair(one, other), Pair(other, one)}) {
    world_.after(dice_.between(0ms, kNoticed),
                 [this, by = by, of = of, connection] { notice(by, of, connection); });
  }
}

// No new connection for a while.
void Story::part(const std::string& one, const std::string& other) {
  world_.note("part", one, other);
  model_.trouble();
  const TimePoint until = world_.now() + dice_.between(10ms, 400ms);
  parted_[pair(one, other)] = until;
  world_.at(until, [this] { model_.trouble(); });  // until now
}

void Story::notice(const std::string& by, const std::string& other, std::uint64_t number) {
  const auto at = connections_.find(pair(by, other));
  if (at == connections_.end() || at->second.number != number) return;
  if (at->second.unaware.erase(by) == 0) return;
  model_.trouble();  // it shows only now
  std::vector<CallNumber> failed;
  for (const auto& [call, each] : calls_) {
    if (each.route.from.name == by && each.route.connection == number) failed.push_back(call);
  }
  // What comes first, the loss of the connection or that of its calls, is nobody's promise.
  const bool calls_first = dice_.per_mille(500);
  SimNode* const witness = node(by);
  if (witness && !calls_first) witness->disconnected(other);
  for (const CallNumber call : failed) {
    const auto lost = calls_.find(call);
    count(lost->second.route.content,
          lost->second.arrived ? Mishap::CutUnanswered : Mishap::CutOnTheWay);
    end(call, Error(ErrorKind::PeerLost, "the connection was lost", {.node = other}), true);
  }
  if (witness && calls_first) witness->disconnected(other);
}

// ------------------------------------------------------------------------------- calls

Duration Story::flight() {
  if (dice_.per_mille(slow_)) return dice_.between(1ms, 60ms);
  return dice_.between(50us, 3ms);
}

void Story::lie_in_wait(const Route& route, Duration flight) {
  if (peace_ || ambushes_left_ == 0 || route.content != prey_ || route.connection == 0) return;
  if (!dice_.per_mille(200)) return;
  --ambushes_left_;
  const Trouble trouble = dice_.one_of(troubles_);
  world_.after(dice_.between(0us, flight * 2), [this, route, trouble] {
    if (trouble == Trouble::Crash)
      return crash(dice_.one_of<std::string>({route.from.name, route.to.name}));
    cut(route.from.name, route.to.name);
    if (dice_.per_mille(700)) part(route.from.name, route.to.name);
  });
}

bool Story::is_up(const Route& route) const {
  if (route.connection == 0) return true;
  const auto at = connections_.find(pair(route.from.name, route.to.name));
  return at->second.up && at->second.number == route.connection;
}

void Story::call(const Party& from, const Party& to, Parcel parcel, Duration budget, Done done) {
  const CallNumber number = ++last_call_;
  Route route{.from = from, .to = to, .content = content_of(parcel)};
  ++sent_[route.content];
  const bool reachable = connect(from.name, to.name);
  if (reachable && to.incarnation == Incarnation{}) route.to = node(to.name)->self();
  const bool is_there = reachable && node(to.name)->self() == route.to;
  if (!is_there) {
    count(route.content, Mishap::Undeliverable);
    calls_.emplace(number, Call{.route = route, .done = std::move(done)});
    world_.after(dice_.between(10us, 2ms), [this, number, name = to.name] {
      end(number, Error(ErrorKind::PeerLost, name + " cannot be reached", {.node = name}), false);
    });
    return;
  }
  if (from.name != to.name) route.connection = connections_.at(pair(from.name, to.name)).number;
  world_.note(from.name, "calls", to.name, route.content);
  const Duration time = flight();
  lie_in_wait(route, time);
  const TimePoint arrival = world_.now() + time;
  TimePoint& last = last_arrival_[{from.name, to.name}];
  if (arrival < last) count(route.content, Mishap::Overtaken);
  last = std::max(last, arrival);
  calls_.emplace(number, Call{.route = route, .done = std::move(done)});
  world_.at(arrival,
            [this, number, route, parcel = std::move(parcel)] { arrive(number, route, parcel); });
  if (budget == Duration::max()) return;
  world_.after(budget, [this, number] {
    end(number, Error(ErrorKind::Timeout, "no answer in time"), true);
  });
}

// Also when its sender does not wait for the answer any more.
void Story::arrive(CallNumber number, const Route& route, const Parcel& parcel) {
  SimNode* const receiver = node(route.to.name);
  if (!is_up(route) || !receiver || receiver->self() != route.to) return;
  const auto at = calls_.find(number);
  if (at != calls_.end()) at->second.arrived = true;
  world_.note(route.to.name, "receives", route.content, "of", route.from.name);
  receiver->receive(route.from, number, parcel);
}

void Story::answer(CallNumber number, Result<Parcel> reply) {
  world_.after(flight(), [this, number, reply = std::move(reply)] {
    const auto at = calls_.find(number);
    if (at != calls_.end() && is_up(at->second.route)) end(number, reply, true);
  });
}

void Story::end(CallNumber number, const Result<Parcel>& reply, bool left) {
  const auto at = calls_.find(number);
  if (at == calls_.end()) return;
  Call call = std::move(at->second);
  calls_.erase(at);
  if (model_.is_alive(call.route.from)) call.done(reply, call.route.to, left);
}

}  // namespace

// ------------------------------------------------------------------------------- telling

std::string_view to_string(Mishap mishap) {
  static constexpr std::string_view kNames[] = {"Overtaken", "CutOnTheWay", "CutUnanswered",
                                                "Orphaned", "Undeliverable"};
  return kNames[static_cast<std::size_t>(mishap)];
}

std::vector<std::string_view> all_contents() {
  return {std::begin(kMessages), std::end(kMessages)};
}

std::string Outcome::text() const {
  std::string text = "seed " + std::to_string(seed) + ":";
  for (const auto& complaint : complaints) text += "\n  " + complaint;
  return text + "\n  HAWSER_SIM_SEED=" + std::to_string(seed) +
         " sim_autograd_tests --gtest_filter=SimAutograd.Replay";
}

Outcome tell(std::uint64_t seed, StoryOptions options) { return Story(seed, options).run(); }

}  // namespace hawser::autograd::simulation
