#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/sim_node.h"

namespace hawser::simulation {

// What became of one seed.
struct Outcome {
  std::uint64_t seed = 0;
  std::uint64_t history = 0;
  std::size_t events = 0;
  std::size_t nodes = 0;
  std::uint64_t calls = 0;
  std::vector<std::string> complaints;
  SimNetwork::MishapCounts mishaps;

  bool good() const { return complaints.empty(); }
  std::string text() const;
};

struct StoryOptions {
  bool log = false;  // tells every event on standard output
};

// Nodes that call each other while things go wrong, from one seed. Faults are chosen by the seed;
// some seeds are calm, some have only a few kinds, some break the order of frames.
class Story {
 public:
  Story(std::uint64_t seed, StoryOptions options);
  virtual ~Story();

 protected:
  struct Actor {
    std::unique_ptr<SimNode> node;  // nothing while it is not running
    std::string address;            // that it had
    int lives = 0;
  };

  // Runs the world up to then, and checks after every event.
  void run_until(TimePoint when);
  void run_for(Duration while_) { run_until(stage_.world.now() + while_); }
  Outcome outcome() const;

  void start(const std::string& name);
  void kill(const std::string& name, bool host_vanishes);
  // Says goodbye and is gone a moment later.
  void leave(const std::string& name);
  bool running(const std::string& name) const { return actors_.at(name).node != nullptr; }
  SimNode& node(const std::string& name) { return *actors_.at(name).node; }
  std::vector<std::string> running_names() const;

  // Until stop_trouble(), faults of the kinds this seed has, one after another.
  void start_trouble();
  void stop_trouble();
  // Some seeds also wait for frames of one kind, out of these, and strike while one flies; a few
  // times, or until called off.
  void lie_in_wait(const std::vector<wire::Kind>& kinds);
  void call_off() { ambushes_left_ = 0; }
  // Frames of these kinds may be lost, repeated and overtaken.
  void loosen(std::set<wire::Kind> kinds);

  virtual void after_event() {}
  virtual void restarted(const std::string&) {}

  Stage stage_;
  transport::sim::SeededRandom dice_;
  std::map<std::string, Actor> actors_;

 private:
  enum class Trouble { Kill, Leave, Stop, Part, Cut, HalfOpen, BadDoors, SlowRendezvous };
  void next_trouble();
  void strike(const std::string& from, const std::string& to);
  void start_again_later(const std::string& name);
  void cause(Trouble trouble);
  void stop_process(const std::string& name);
  void part(const std::string& one, const std::string& other);
  void cut(const std::string& one, const std::string& other, bool half_open);

  const std::uint64_t seed_;
  bool in_trouble_ = false;
  std::vector<Trouble> troubles_;
  wire::Kind prey_ = wire::Kind::None;
  int ambushes_left_ = 0;
};

}  // namespace hawser::simulation
