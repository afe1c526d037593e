#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim_refs/sim_node.h"

namespace hawser::refs::simulation {

// What can happen to a message.
enum class Mishap {
  Lost,
  Repeated,
  Overtaken,
  Cut,            // with the connection
  Parted,         // it does not get through a partition
  Orphaned,       // its sender died while it flew
  Undeliverable,  // its receiver did
};
inline constexpr std::size_t kMishaps = 7;
std::string_view to_string(Mishap mishap);

// By what is in a message: records of ledgers and kinds of calls.
std::vector<std::string_view> contents_of(const Envelope& envelope);
std::vector<std::string_view> all_contents();

// What became of one seed.
struct Outcome {
  std::uint64_t seed = 0;
  std::uint64_t history = 0;
  std::size_t events = 0;
  Model::Counts counts;
  std::map<std::pair<std::string_view, Mishap>, std::uint64_t> mishaps;
  std::uint64_t crashes = 0, rejoins = 0;
  std::vector<std::string> complaints;

  bool good() const { return complaints.empty(); }
  std::string text() const;
};

struct StoryOptions {
  bool log = false;  // tells every event on standard output
};

// Nodes that share references while things go wrong, from one seed; then peace, in which everything
// must be as it should; then everybody lets go, and nothing may be left.
Outcome tell(std::uint64_t seed, StoryOptions options = {});

}  // namespace hawser::refs::simulation
