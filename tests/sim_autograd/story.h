#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim_autograd/sim_node.h"

namespace hawser::autograd::simulation {

// What can happen to a call between conductors.
enum class Mishap {
  Overtaken,
  CutOnTheWay,    // its connection was lost before it arrived
  CutUnanswered,  // or before its answer did
  Orphaned,       // its sender died while it flew
  Undeliverable,  // its receiver did, or cannot be reached
};
inline constexpr std::size_t kMishaps = 5;
std::string_view to_string(Mishap mishap);
std::vector<std::string_view> all_contents();

// What became of one seed.
struct Outcome {
  std::uint64_t seed = 0;
  std::uint64_t history = 0;
  std::size_t events = 0;
  Model::Counts counts;
  std::map<std::pair<std::string_view, Mishap>, std::uint64_t> mishaps;
  std::map<std::string_view, std::uint64_t> sent;
  std::uint64_t crashes = 0, cuts = 0, rejoins = 0;
  std::vector<std::string> complaints;

  bool good() const { return complaints.empty(); }
  std::string text() const;
};

struct StoryOptions {
  bool log = false;  // tells every event on standard output
};

// Nodes that compute together while things go wrong, from one seed; then peace, in which all
// contexts are released, and nothing may be left.
Outcome tell(std::uint64_t seed, StoryOptions options = {});

}  // namespace hawser::autograd::simulation
