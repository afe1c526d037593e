#include "hawser/transport/sim/sim_network.h"

#include <algorithm>

#include "hawser/transport/sim/sim_cable.h"
#include "hawser/transport/sim/sim_transport.h"

namespace hawser::transport::sim {

std::string_view to_string(Mishap mishap) {
  switch (mishap) {
    case Mishap::Cut:
      return "cut";
    case Mishap::Killed:
      return "killed";
    case Mishap::Partition:
      return "partition";
    case Mishap::Stopped:
      return "stopped";
    case Mishap::Dropped:
      return "dropped";
    case Mishap::Duplicated:
      return "duplicated";
    case Mishap::Reordered:
      return "reordered";
  }
  return "unknown";
}

SimNetwork::SimNetwork(SimWorld& world) : world_(world), random_(world.stream("network")) {}

// ---------------------------------------------------------------------------------- faults

void SimNetwork::cut(const std::string& one, const std::string& other, Duration one_learns,
                     Duration other_learns) {
  world_.note("cut", one, other);
  for (const auto& cable : live_cables()) {
    if (!cable->joins(one, other)) continue;
    const bool one_is_first = cable->process(0)->name() == one;
    cable->cut(one_is_first ? one_learns : other_learns, one_is_first ? other_learns : one_learns);
  }
}

void SimNetwork::part(const std::string& one, const std::string& other) {
  world_.note("parted", one, other);
  parted_.insert(pair_of(one, other));
}

void SimNetwork::heal(const std::string& one, const std::string& other) {
  if (parted_.erase(pair_of(one, other)) == 0) return;
  world_.note("healed", one, other);
  for (const auto& cable : live_cables()) {
    if (cable->joins(one, other)) cable->healed();
  }
}

void SimNetwork::heal_all() {
  while (!parted_.empty()) {
    const PairOfNames pair = *parted_.begin();
    heal(pair.first, pair.second);
  }
}

bool SimNetwork::parted(const std::string& one, const std::string& other) const {
  return !parted_.empty() && parted_.contains(pair_of(one, other));
}

void SimNetwork::kill(SimProcess& process, bool host_vanishes) {
  world_.note("killed", process.name(), host_vanishes ? "with its host" : "alone");
  // First, so that what dies with the process cannot send any more.
  for (const auto& cable : live_cables()) cable->process_killed(process, host_vanishes);
  process.kill();
}

// ---------------------------------------------------------------------------------- doors, cables

std::string SimNetwork::open_door(const std::shared_ptr<SimDoor>& door, std::string wanted) {
  if (wanted.empty()) wanted = std::to_string(next_door_++);
  doors_[wanted] = door;
  return wanted;
}

std::shared_ptr<SimDoor> SimNetwork::find_door(const std::string& address) const {
  const auto found = doors_.find(address);
  return found == doors_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<SimCable> SimNetwork::lay_cable(std::shared_ptr<SimProcess> initiator,
                                                std::shared_ptr<SimProcess> acceptor) {
  auto cable = std::make_shared<SimCable>(*this, std::move(initiator), std::move(acceptor));
  cables_.push_back(cable);
  return cable;
}

std::vector<std::shared_ptr<SimCable>> SimNetwork::live_cables() {
  std::vector<std::shared_ptr<SimCable>> live;
  std::erase_if(cables_, [&](const std::weak_ptr<SimCable>& cable) {
    auto held = cable.lock();
    if (!held) return true;
    live.push_back(std::move(held));
    return false;
  });
  return live;
}

// ---------------------------------------------------------------------------------- chance

SimNetwork::PairOfNames SimNetwork::pair_of(const std::string& one, const std::string& other) {
  return one < other ? PairOfNames(one, other) : PairOfNames(other, one);
}

void SimNetwork::count(wire::Kind kind, Mishap mishap) {
  world_.note(to_string(mishap), wire::to_string(kind));
  ++mishaps_[{kind, mishap}];
}

Duration SimNetwork::draw_delay() {
  return random_.lock()->between(conditions_.shortest_delay, conditions_.longest_delay);
}

bool SimNetwork::per_mille(unsigned chance) {
  return chance > 0 && random_.lock()->per_mille(chance);
}

std::size_t SimNetwork::below(std::size_t bound) { return random_.lock()->below(bound); }

}  // namespace hawser::transport::sim
