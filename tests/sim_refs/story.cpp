#include "sim_refs/story.h"

#include <algorithm>
#include <iostream>

namespace hawser::refs::simulation {
namespace {

using namespace std::chrono_literals;
using transport::sim::SeededRandom;
using transport::sim::SimWorld;

constexpr std::string_view kRecords[] = {"Claim",   "Share", "Drop",   "Refuse",
                                         "Confirm", "Deny",  "Inquire"};
constexpr Duration kGivenUpAfter = 500ms;  // without a sign of life
constexpr Duration kPromptly = 100ms;      // where nothing is lost: some round trips

// How the network behaves.
struct Conditions {
  bool orderly = true;  // in order and without loss, while a connection lasts
  unsigned lost = 0;    // per mille, all of them
  unsigned repeated = 0;
  unsigned slow = 0;
  unsigned late = 0;  // later than anybody waits for
  Duration usual = 3ms;
  Duration slowest = 600ms;  // less than LedgerOptions::ask_after
  Duration latest = 2500ms;  // less than LedgerOptions::remember
};

enum class Trouble { Crash, Cut, Part };

class Story final : public Surroundings {
 public:
  Story(std::uint64_t seed, StoryOptions options)
      : seed_(seed),
        world_(seed),
        model_(world_, ledger_options().ask_after),
        dice_(world_.stream("story")),
        whims_(world_.stream("programs")) {
    if (options.log) world_.listen([](const std::string& line) { std::cout << line << '\n'; });
    for (std::uint64_t i = 3 + dice_.below(3); i > 0; --i) {
      names_.push_back("n" + std::to_string(names_.size()));
    }
    draw_conditions();
  }

  Outcome run() {
    for (const auto& name : names_) start(name);
    next_act();
    next_trouble();
    run_for(1500ms + dice_.between(0ms, 1000ms));
    make_peace();
    run_for(longest_call() + ledger_options().await_creation + 1500ms);
    check_rest();
    for (auto& [name, life] : lives_) life.node->use_everything();
    run_for(longest_call() + 100ms);
    if (good()) model_.check_rest();
    for (auto& [name, life] : lives_) life.node->drop_everything();
    run_for(2s);
    check_empty();
    return outcome();
  }

  // --- Surroundings ---
  SimWorld& world() override { return world_; }
  Model& model() override { return model_; }
  SeededRandom& whims() override { return whims_; }
  std::optional<Incarnation> send(Envelope envelope) override;
  void reach(const Party& from, const std::string& to) override { connect(from.name, to); }
  void tell_lost(const Party& from, const Party& to) override;
  void later(const Party& whose, Duration delay, UniqueFunction<void()> task) override;
  CallNumber next_call() override { return ++calls_; }
  std::vector<std::string> others(const std::string& than) override;

 private:
  struct Life {
    std::unique_ptr<SimNode> node;  // nothing while it is not running
    std::uint64_t incarnation = 0;
  };
  using Pair = std::pair<std::string, std::string>;
  static Pair pair(const std::string& one, const std::string& other) {
    return one < other ? Pair(one, other) : Pair(other, one);
  }

  bool good() const { return model_.complaints().empty(); }
  void draw_conditions();
  void run_for(Duration while_);
  void check_rest();
  void check_empty();
  Outcome outcome() const;

  void next_act();
  void next_trouble();
  void cause(Trouble trouble);
  void make_peace();

  void start(const std::string& name);
  void crash(const std::string& name);
  void rejoin(const Party& party);
  void cut(const std::string& one, const std::string& other);
  void part(const std::string& one, const std::string& other);
  void give_up(const std::string& by, const Party& party);
  bool connect(const std::string& one, const std::string& other);
  SimNode* node(const std::string& name) { return lives_[name].node.get(); }

  void schedule(const Envelope& envelope, std::uint64_t connection);
  void deliver(const Envelope& envelope, std::uint64_t connection);
  void lie_in_wait(const Envelope& envelope, Duration flight);
  void count(const Envelope& envelope, Mishap mishap);

  const std::uint64_t seed_;
  SimWorld world_;
  Model model_;
  SeededRandom dice_;
  SeededRandom whims_;
  std::vector<std::string> names_;
  std::map<std::string, Life> lives_;
  std::set<Pair> parted_;
  std::map<Pair, std::uint64_t> connections_;
  std::map<Pair, TimePoint> last_arrival_;  // from, to
  Conditions conditions_;
  std::vector<Trouble> troubles_;
  std::string_view prey_;
  int ambushes_left_ = 0;
  bool calm_ = false;
  bool peace_ = false;
  std::uint64_t calls_ = 0;
  std::uint64_t made_connections_ = 0;
  std::uint64_t crashes_ = 0, rejoins_ = 0;
  std::map<std::pair<std::string_view, Mishap>, std::uint64_t> mishaps_;
};

// ------------------------------------------------------------------------------- the course of it

void Story::draw_conditions() {
  calm_ = dice_.per_mille(100);
  if (calm_) return;
  conditions_.orderly = dice_.per_mille(300);
  if (!conditions_.orderly) {
    conditions_.lost = dice_.per_mille(500) ? static_cast<unsigned>(dice_.below(300)) : 0;
    conditions_.repeated = dice_.per_mille(500) ? static_cast<unsigned>(dice_.below(200)) : 0;
    conditions_.slow = dice_.per_mille(700) ? static_cast<unsigned>(dice_.below(400)) : 0;
    conditions_.late = dice_.per_mille(200) ? static_cast<unsigned>(dice_.below(50)) : 0;
    if (dice_.per_mille(300)) conditions_.usual = 60ms;
  }
  for (const Trouble each : {Trouble::Crash, Trouble::Cut, Trouble::Part}) {
    if (dice_.per_mille(500)) troubles_.push_back(each);
  }
  if (dice_.per_mille(400)) {
    prey_ = dice_.one_of(all_contents());
    ambushes_left_ = 4;
  }
}

void Story::run_for(Duration while_) {
  bool there = false;
  const auto mark = world_.after(while_, [&] { there = true; });
  for (int i = 0; good() && !there && world_.step(); ++i) {
    model_.check();
    if (i % 16 != 0) continue;
    if (calm_) model_.check_promptness(kPromptly);
    for (auto& [name, life] : lives_) {
      if (life.node) life.node->check_tables();
    }
  }
  world_.cancel(mark);
}

void Story::next_act() {
  if (peace_) return;
  world_.after(dice_.between(1ms, 12ms), [this] { next_act(); });
  SimNode* actor = node(dice_.one_of(names_));
  if (actor) actor->do_something();
}

void Story::next_trouble() {
  if (peace_ || troubles_.empty()) return;
  world_.after(dice_.between(30ms, 400ms), [this] { next_trouble(); });
  cause(dice_.one_of(troubles_));
}

void Story::cause(Trouble trouble) {
  const std::string one = dice_.one_of(names_);
  const std::string other = dice_.one_of(others(one));
  switch (trouble) {
    case Trouble::Crash:
      return crash(one);
    case Trouble::Cut:
      return cut(one, other);
    case Trouble::Part:
      return part(one, other);
  }
}

void Story::make_peace() {
  world_.note("peace");
  peace_ = true;
  conditions_ = {};
  ambushes_left_ = 0;
  parted_.clear();
  for (const auto& name : names_) start(name);
  for (const auto& one : names_) {
    for (const auto& other : others(one)) {
      // Who has been given up is told at the first contact, and comes again.
      for (int i = 0; i < 3; ++i) {
        world_.after(i * 50ms, [this, one, other] { connect(one, other); });
      }
    }
  }
}

void Story::check_rest() {
  if (!good()) return;
  model_.check_rest();
  for (auto& [name, life] : lives_) life.node->check_rest();
}

void Story::check_empty() {
  if (!good()) return;
  for (auto& [name, life] : lives_) life.node->check_empty();
}

Outcome Story::outcome() const {
  return {.seed = seed_,
          .history = world_.history(),
          .events = world_.events_run(),
          .counts = model_.counts(),
          .mishaps = mishaps_,
          .crashes = crashes_,
          .rejoins = rejoins_,
          .complaints = model_.complaints()};
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
      static_cast<std::uint32_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  life.node = std::make_unique<SimNode>(*this, self, rank);
}

void Story::crash(const std::string& name) {
  Life& life = lives_[name];
  if (!life.node) return;
  ++crashes_;
  const Party gone = life.node->self();
  world_.note("crashes", name);
  model_.crashed(gone);
  life.node.reset();
  std::erase_if(connections_, [&](const auto& each) {
    return each.first.first == name || each.first.second == name;
  });
  // The others notice one by one; some meet its next life before.
  for (const auto& other : others(name)) {
    world_.after(dice_.between(1ms, 400ms), [this, other, gone] {
      SimNode* witness = node(other);
      if (!witness) return;
      world_.note(other, "notices the end of", gone.name);
      witness->lost(gone);
      const bool nobody = !node(gone.name);
      if (!nobody || !dice_.per_mille(300)) return;
      model_.told_unreachable(witness->self(), gone.name);
      witness->lost({gone.name, {}});
    });
  }
  world_.after(dice_.between(20ms, 600ms), [this, name] { start(name); });
}

// It has been told that somebody gave it up.
void Story::rejoin(const Party& party) {
  Life& life = lives_[party.name];
  if (!life.node || life.node->self() != party) return;
  ++rejoins_;
  const Incarnation next{++life.incarnation};
  world_.note(party.name, "comes again as", life.incarnation);
  std::vector<std::string> peers;
  for (const auto& [ends, connection] : connections_) {
    if (ends.first == party.name) peers.push_back(ends.second);
    if (ends.second == party.name) peers.push_back(ends.first);
  }
  for (const auto& peer : peers) connections_.erase(pair(party.name, peer));
  life.node->rejoin(next);
  for (const auto& peer : peers) {
    if (SimNode* other = node(peer)) other->disconnected(party.name);
  }
}

void Story::tell_lost(const Party&, const Party& to) {
  world_.after(dice_.between(1ms, 20ms), [this, to] { rejoin(to); });
}

// ------------------------------------------------------------------------------- connections

bool Story::connect(const std::string& one, const std::string& other) {
  SimNode* const first = node(one);
  SimNode* const second = node(other);
  if (!first || !second || parted_.contains(pair(one, other))) return false;
  if (one == other || connections_.contains(pair(one, other))) return true;
  const bool first_bars = model_.has_barred(first->self(), second->self());
  const bool second_bars = model_.has_barred(second->self(), first->self());
  if (first_bars) tell_lost(first->self(), second->self());
  if (second_bars) tell_lost(second->self(), first->self());
  if (first_bars || second_bars) return false;
  connections_[pair(one, other)] = ++made_connections_;
  world_.note("connected", one, other);
  first->met(second->self());
  second->met(first->self());
  return true;
}

void Story::cut(const std::string& one, const std::string& other) {
  if (connections_.erase(pair(one, other)) == 0) return;
  world_.note("cut", one, other);
  if (SimNode* each = node(one)) each->disconnected(other);
  if (SimNode* each = node(other)) each->disconnected(one);
}

void Story::part(const std::string& one, const std::string& other) {
  if (peace_ || !parted_.insert(pair(one, other)).second) return;
  world_.note("part", one, other);
  world_.after(dice_.between(20ms, 200ms), [this, one, other] {
    if (parted_.contains(pair(one, other))) cut(one, other);
  });
  // Each judges for itself.
  for (const auto& [by, lost] : {std::pair(one, other), std::pair(other, one)}) {
    if (!dice_.per_mille(400) || !node(lost)) continue;
    const Party party = node(lost)->self();
    world_.after(kGivenUpAfter + dice_.between(0ms, 300ms), [this, by = by, party] {
      if (parted_.contains(pair(by, party.name))) give_up(by, party);
    });
  }
  world_.after(dice_.between(50ms, 1200ms), [this, one, other] {
    if (parted_.erase(pair(one, other)) == 0) return;
    world_.note("healed", one, other);
    connect(one, other);
  });
}

void Story::give_up(const std::string& by, const Party& party) {
  SimNode* const judge = node(by);
  if (!judge || !model_.is_alive(party)) return;
  world_.note(by, "gives up", party.name, number(party.incarnation));
  connections_.erase(pair(by, party.name));
  model_.barred(judge->self(), party);
  judge->lost(party);
}

// ------------------------------------------------------------------------------- messages

std::optional<Incarnation> Story::send(Envelope envelope) {
  const std::string from = envelope.from.name, to = envelope.to.name;
  if (!connect(from, to)) {
    if (parted_.contains(pair(from, to))) count(envelope, Mishap::Parted);
    return std::nullopt;
  }
  const Incarnation there = node(to)->self().incarnation;
  if (envelope.to.incarnation == Incarnation{}) envelope.to.incarnation = there;
  // Connecting may have taught the sender that it writes to the dead.
  if (envelope.to.incarnation != there) return std::nullopt;
  const std::uint64_t connection = from == to ? 0 : connections_.at(pair(from, to));
  schedule(envelope, connection);
  if (!conditions_.orderly && from != to && dice_.per_mille(conditions_.repeated)) {
    count(envelope, Mishap::Repeated);
    schedule(envelope, connection);
  }
  return there;
}

void Story::schedule(const Envelope& envelope, std::uint64_t connection) {
  const bool carries = envelope.kind == Kind::Carry || envelope.kind == Kind::CarryReply;
  if (connection != 0 && dice_.per_mille(conditions_.lost)) {
    count(envelope, Mishap::Lost);
    world_.note("lost", envelope.from.name, envelope.to.name, to_string(envelope.kind));
    return;
  }
  Duration flight = dice_.between(50us, conditions_.usual);
  if (dice_.per_mille(conditions_.slow)) flight = dice_.between(1ms, conditions_.slowest);
  if (carries && dice_.per_mille(conditions_.late)) {
    flight = dice_.between(conditions_.slowest, conditions_.latest);
  }
  TimePoint arrival = world_.now() + flight;
  TimePoint& last = last_arrival_[{envelope.from.name, envelope.to.name}];
  if (conditions_.orderly) {
    arrival = std::max(arrival, last + 1ns);
  } else if (arrival < last) {
    count(envelope, Mishap::Overtaken);
  }
  last = std::max(last, arrival);
  if (carries) {
    for (const SimTicket& each : envelope.tickets) model_.flies(each.number, envelope.to);
  }
  if (ambushes_left_ > 0) lie_in_wait(envelope, flight);
  world_.at(arrival, [this, envelope, connection] { deliver(envelope, connection); });
}

void Story::deliver(const Envelope& envelope, std::uint64_t connection) {
  const std::string &from = envelope.from.name, &to = envelope.to.name;
  if (envelope.kind == Kind::Carry || envelope.kind == Kind::CarryReply) {
    for (const SimTicket& each : envelope.tickets) model_.landed(each.number);
  }
  if (!model_.is_alive(envelope.to)) return count(envelope, Mishap::Undeliverable);
  if (!model_.is_alive(envelope.from)) count(envelope, Mishap::Orphaned);
  if (parted_.contains(pair(from, to))) return count(envelope, Mishap::Parted);
  if (connection != 0) {
    const auto now = connections_.find(pair(from, to));
    const bool same = now != connections_.end() && now->second == connection;
    if (!same) count(envelope, Mishap::Cut);
    if (!same && conditions_.orderly) return;
  }
  if (model_.has_barred(envelope.to, envelope.from)) return;
  world_.note(from, to, to_string(envelope.kind), envelope.call, envelope.letter.first,
              envelope.letter.records.size());
  for (const auto what : contents_of(envelope)) world_.note(what);
  node(to)->receive(envelope);
}

// Strikes while a message of the kind this seed waits for is on its way.
void Story::lie_in_wait(const Envelope& envelope, Duration flight) {
  const auto contents = contents_of(envelope);
  if (std::find(contents.begin(), contents.end(), prey_) == contents.end()) return;
  if (!dice_.per_mille(300)) return;
  --ambushes_left_;
  const Duration when = dice_.between(0ns, flight + 1ms);
  const auto victim = dice_.below(5);
  world_.after(when, [this, victim, from = envelope.from.name, to = envelope.to.name] {
    if (peace_) return;
    if (victim < 2) return crash(from);
    if (victim < 4) return crash(to);
    cut(from, to);
  });
}

void Story::count(const Envelope& envelope, Mishap mishap) {
  for (const auto what : contents_of(envelope)) ++mishaps_[{what, mishap}];
}

}  // namespace

// ------------------------------------------------------------------------------- words

std::string_view to_string(Mishap mishap) {
  static constexpr std::string_view kNames[] = {"lost",   "repeated", "overtaken", "cut",
                                                "parted", "orphaned", "undeliv."};
  return kNames[static_cast<std::size_t>(mishap)];
}

std::vector<std::string_view> contents_of(const Envelope& envelope) {
  if (envelope.kind != Kind::Letter) return {to_string(envelope.kind)};
  std::vector<std::string_view> contents;
  for (const Record& record : envelope.letter.records) contents.push_back(kRecords[record.index()]);
  if (contents.empty()) contents.push_back("Ack");
  return contents;
}

std::vector<std::string_view> all_contents() {
  std::vector<std::string_view> all(std::begin(kRecords), std::end(kRecords));
  all.push_back("Ack");
  for (const Kind kind : {Kind::Create, Kind::CreateReply, Kind::Carry, Kind::CarryReply, Kind::Use,
                          Kind::UseReply}) {
    all.push_back(to_string(kind));
  }
  return all;
}

std::string Outcome::text() const {
  std::string text = "seed " + std::to_string(seed) + ":";
  for (const auto& complaint : complaints) text += "\n  " + complaint;
  return text;
}

Outcome tell(std::uint64_t seed, StoryOptions options) { return Story(seed, options).run(); }

}  // namespace hawser::refs::simulation
