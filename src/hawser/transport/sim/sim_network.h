#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hawser/base/buffer_pool.h"
#include "hawser/transport/sim/sim_world.h"
#include "hawser/wire/frame.h"

namespace hawser::transport::sim {

class SimCable;
class SimDoor;

// What can happen to a frame on its way.
enum class Mishap : std::uint8_t {
  Cut,         // the connection broke while it flew
  Killed,      // one of the two processes was killed meanwhile
  Partition,   // it waited for the network to heal
  Stopped,     // it arrived at a process that was stopped
  Dropped,     // LINK-1 broken on purpose: gone, the connection stays
  Duplicated,  // ... delivered twice
  Reordered,   // ... overtook another
};
std::string_view to_string(Mishap mishap);

// How the network behaves. Chances are per mille.
struct NetworkConditions {
  Duration shortest_delay = std::chrono::microseconds(20);
  Duration longest_delay = std::chrono::microseconds(500);
  unsigned connect_refused = 0;  // nobody answers the door although somebody is in
  unsigned connect_lost = 0;     // the attempt vanishes, and ends by its deadline
  unsigned close_resets = 0;     // closing loses frames that are on their way
  // Breaks the promise of order and exactly-once (LINK-1), for frames of these kinds: a test of
  // what protocols do with messages that are lost, repeated or late.
  std::set<wire::Kind> loose_kinds;
  unsigned drop = 0;
  unsigned duplicate = 0;
  unsigned reorder = 0;
};

// Joins the processes of a world. Everything here belongs to the simulator's thread, except what a
// link does when it sends.
class SimNetwork {
 public:
  explicit SimNetwork(SimWorld& world);
  ~SimNetwork() { world_.clear(); }  // events refer to it
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  SimWorld& world() { return world_; }
  NetworkConditions& conditions() { return conditions_; }

  // --- faults ---
  // Every connection between two processes breaks: what flies is lost, from a point that the seed
  // decides. The ends learn of it after those delays.
  void cut(const std::string& one, const std::string& other, Duration one_learns,
           Duration other_learns);
  // Silence between two processes: frames and attempts to connect wait.
  void part(const std::string& one, const std::string& other);
  void heal(const std::string& one, const std::string& other);
  void heal_all();
  bool parted(const std::string& one, const std::string& other) const;
  // Kills the process. Peers see its connections end soon, or (when its host is gone) nothing at
  // all; then whatever they send is lost as well.
  void kill(SimProcess& process, bool host_vanishes);

  // Told of every frame that is sent, while it flies: a fault can then be timed to meet it. Must
  // not act at once; an event after no time comes early enough.
  std::function<void(wire::Kind kind, const std::string& from, const std::string& to)> on_sent;

  using MishapCounts = std::map<std::pair<wire::Kind, Mishap>, std::uint64_t>;
  const MishapCounts& mishaps() const { return mishaps_; }

  // --- for transports and cables ---
  std::string open_door(const std::shared_ptr<SimDoor>& door, std::string wanted);
  std::shared_ptr<SimDoor> find_door(const std::string& address) const;
  std::shared_ptr<SimCable> lay_cable(std::shared_ptr<SimProcess> initiator,
                                      std::shared_ptr<SimProcess> acceptor);
  void count(wire::Kind kind, Mishap mishap);
  Duration draw_delay();
  bool per_mille(unsigned chance);
  std::size_t below(std::size_t bound);
  BufferPool& pool() { return pool_; }

 private:
  using PairOfNames = std::pair<std::string, std::string>;
  static PairOfNames pair_of(const std::string& one, const std::string& other);
  std::vector<std::shared_ptr<SimCable>> live_cables();

  SimWorld& world_;
  NetworkConditions conditions_;
  BufferPool pool_{std::size_t{64} << 20};
  Guarded<SeededRandom> random_;  // links draw delays on the threads that send
  std::uint64_t next_door_ = 1;
  std::map<std::string, std::weak_ptr<SimDoor>> doors_;
  std::vector<std::weak_ptr<SimCable>> cables_;
  std::set<PairOfNames> parted_;
  MishapCounts mishaps_;
};

}  // namespace hawser::transport::sim
