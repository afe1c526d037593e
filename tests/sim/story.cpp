#include "sim/story.h"

#include <algorithm>
#include <iostream>
#include <utility>

namespace hawser::simulation {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLastWords = 20ms;  // from saying goodbye to the end of the process

}  // namespace

std::string Outcome::text() const {
  std::string text = "seed " + std::to_string(seed) + ":";
  for (const auto& complaint : complaints) text += "\n  " + complaint;
  return text;
}

Story::Story(std::uint64_t seed, StoryOptions options)
    : stage_(seed), dice_(stage_.world.stream("story")), seed_(seed) {
  if (options.log) {
    stage_.world.listen([](const std::string& line) { std::cout << line << '\n'; });
  }
  const std::size_t nodes = 3 + dice_.below(4);
  for (std::size_t i = 0; i < nodes; ++i) {
    stage_.names.push_back("node" + std::to_string(i));
    actors_[stage_.names.back()];
  }
  stage_.rendezvous.on_join = [this](const agent::Card& card) {
    stage_.model.disturbed(card.name);
  };
  for (const Trouble each :
       {Trouble::Kill, Trouble::Leave, Trouble::Stop, Trouble::Part, Trouble::Cut,
        Trouble::HalfOpen, Trouble::BadDoors, Trouble::SlowRendezvous}) {
    if (dice_.per_mille(500)) troubles_.push_back(each);
  }
  if (dice_.per_mille(100)) troubles_.clear();  // a calm one
}

Story::~Story() {
  stage_.network.on_sent = nullptr;
  for (const auto& [name, actor] : actors_) kill(name, true);
}

Outcome Story::outcome() const {
  return {.seed = seed_,
          .history = stage_.world.history(),
          .events = stage_.world.events_run(),
          .nodes = stage_.names.size(),
          .calls = stage_.model.calls().size(),
          .complaints = stage_.model.complaints(),
          .mishaps = stage_.network.mishaps()};
}

void Story::run_until(TimePoint when) {
  bool there = false;
  const auto mark = stage_.world.at(when, [&] { there = true; });
  constexpr int kStepsPerLook = 16;
  for (int i = 0; !there && stage_.world.step(); ++i) {
    stage_.model.check_deadlines();
    after_event();
    if (i % kStepsPerLook == 0) {
      for (auto& [name, actor] : actors_) {
        if (actor.node) actor.node->check_tables();
      }
    }
    if (!stage_.model.complaints().empty()) break;  // the first one counts
  }
  stage_.world.cancel(mark);
}

// ---------------------------------------------------------------------------------- nodes

std::vector<std::string> Story::running_names() const {
  std::vector<std::string> names;
  for (const auto& [name, actor] : actors_) {
    if (actor.node && actor.node->joined()) names.push_back(name);
  }
  return names;
}

void Story::start(const std::string& name) {
  Actor& actor = actors_.at(name);
  if (actor.node) return;
  const auto rank = static_cast<std::uint32_t>(
      std::find(stage_.names.begin(), stage_.names.end(), name) - stage_.names.begin());
  const bool same_address = !actor.address.empty() && dice_.per_mille(500);
  stage_.world.note("starts", name);
  actor.node = std::make_unique<SimNode>(stage_, name, rank, same_address ? actor.address : "");
  actor.address = actor.node->address().substr(std::string_view("sim:").size());
  if (++actor.lives > 1) restarted(name);
}

void Story::kill(const std::string& name, bool host_vanishes) {
  Actor& actor = actors_.at(name);
  if (!actor.node) return;
  stage_.model.node_gone(name);
  stage_.network.kill(actor.node->process(), host_vanishes);
  actor.node.reset();
}

void Story::leave(const std::string& name) {
  Actor& actor = actors_.at(name);
  stage_.world.note("leaves", name);
  stage_.model.node_leaving(name);
  actor.node->agent().close(Error(ErrorKind::Invalid, "the node is closed"));
  stage_.world.after(kLastWords, [this, name, life = actor.lives] {
    if (actors_.at(name).lives == life) kill(name, false);
  });
}

// ---------------------------------------------------------------------------------- trouble

void Story::start_trouble() {
  in_trouble_ = !troubles_.empty();
  if (in_trouble_) stage_.network.conditions().close_resets = 250;
  next_trouble();
}

void Story::stop_trouble() {
  in_trouble_ = false;
  stage_.world.note("peace");
  stage_.network.conditions() = {};
  stage_.rendezvous.failures = 0;
  stage_.rendezvous.longest_delay = 2ms;
  stage_.network.heal_all();
  for (auto& [name, actor] : actors_) {
    if (!actor.node) continue;
    actor.node->process().resume();
    stage_.model.node_resumed(name);
  }
}

void Story::next_trouble() {
  if (!in_trouble_) return;
  cause(dice_.one_of(troubles_));
  stage_.world.after(dice_.between(20ms, 600ms), [this] { next_trouble(); });
}

void Story::cause(Trouble trouble) {
  const auto names = running_names();
  if (names.size() < 2) return;
  const std::string one = dice_.one_of(names);
  std::string other = dice_.one_of(names);
  if (other == one) other = names[one == names[0] ? 1 : 0];
  switch (trouble) {
    case Trouble::Kill:
      kill(one, dice_.per_mille(300));
      return start_again_later(one);
    case Trouble::Leave:
      leave(one);
      return start_again_later(one);
    case Trouble::Stop:
      return stop_process(one);
    case Trouble::Part:
      return part(one, other);
    case Trouble::Cut:
      return cut(one, other, false);
    case Trouble::HalfOpen:
      return cut(one, other, true);
    case Trouble::BadDoors:
      stage_.network.conditions().connect_refused = 300;
      stage_.network.conditions().connect_lost = 200;
      stage_.model.everything_disturbed();
      stage_.world.after(500ms, [this] {
        stage_.network.conditions().connect_refused = 0;
        stage_.network.conditions().connect_lost = 0;
        stage_.model.everything_disturbed();
      });
      return;
    case Trouble::SlowRendezvous:
      stage_.rendezvous.longest_delay = 200ms;
      stage_.rendezvous.failures = 300;
      stage_.world.after(500ms, [this] {
        stage_.rendezvous.longest_delay = 2ms;
        stage_.rendezvous.failures = 0;
      });
      return;
  }
}

void Story::start_again_later(const std::string& name) {
  stage_.world.after(dice_.between(50ms, 2s), [this, name] { start(name); });
}

void Story::lie_in_wait(const std::vector<wire::Kind>& kinds) {
  if (troubles_.empty() || dice_.per_mille(400)) return;
  prey_ = dice_.one_of(kinds);
  ambushes_left_ = static_cast<int>(1 + dice_.below(4));
  stage_.network.on_sent = [this](wire::Kind kind, const std::string& from, const std::string& to) {
    if (kind != prey_ || from == to || ambushes_left_ == 0 || dice_.per_mille(700)) return;
    --ambushes_left_;
    stage_.world.after(Duration::zero(), [this, from, to] { strike(from, to); });
  };
}

void Story::strike(const std::string& from, const std::string& to) {
  if (!running(from) || !running(to)) return;
  stage_.world.note("ambush", wire::to_string(prey_), from, to);
  switch (dice_.below(4)) {
    case 0:
      return cut(from, to, dice_.per_mille(300));
    case 1:
      return part(from, to);
    case 2:
      return stop_process(to);
    default: {
      const std::string& victim = dice_.per_mille(500) ? from : to;
      kill(victim, dice_.per_mille(300));
      if (dice_.per_mille(700)) start_again_later(victim);
    }
  }
}

void Story::stop_process(const std::string& name) {
  SimProcess& process = node(name).process();
  if (process.state() != SimProcess::State::Running) return;
  stage_.world.note("stopped", name);
  process.stop();
  stage_.model.node_stopped(name);
  stage_.model.disturbed(name);
  const Duration how_long = dice_.between(1ms, longest_silence() * 3 / 2);
  stage_.world.after(how_long, [this, name, life = actors_.at(name).lives] {
    if (!running(name) || actors_.at(name).lives != life) return;
    stage_.world.note("resumed", name);
    node(name).process().resume();
    stage_.model.node_resumed(name);
    stage_.model.disturbed(name);
  });
}

void Story::part(const std::string& one, const std::string& other) {
  const auto note = [this, one, other] {
    stage_.model.disturbed(one);
    stage_.model.disturbed(other);
  };
  note();
  stage_.network.part(one, other);
  stage_.world.after(dice_.between(1ms, longest_silence() * 3 / 2), [this, one, other, note] {
    note();
    stage_.network.heal(one, other);
  });
}

void Story::cut(const std::string& one, const std::string& other, bool half_open) {
  stage_.model.disturbed(one, other);
  Duration one_learns = dice_.between(Duration::zero(), 5ms);
  if (half_open) {
    one_learns = dice_.between(100ms, 2 * longest_silence());
    stage_.model.disturbed(one);  // who is given up for its silence leaves all its peers
    stage_.model.disturbed(other);
  }
  stage_.network.cut(one, other, one_learns, dice_.between(Duration::zero(), 5ms));
}

void Story::loosen(std::set<wire::Kind> kinds) {
  auto& conditions = stage_.network.conditions();
  conditions.loose_kinds = std::move(kinds);
  conditions.drop = 40;
  conditions.duplicate = 60;
  conditions.reorder = 300;
}

}  // namespace hawser::simulation
