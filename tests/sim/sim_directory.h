#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "hawser/agent/directory.h"
#include "hawser/transport/sim/sim_world.h"

namespace hawser::simulation {

// The rendezvous of a simulated world, as a service that everybody can always reach, though it may
// be slow and may fail a question.
struct SimRendezvous {
  explicit SimRendezvous(transport::sim::SimWorld& the_world)
      : world(the_world), random(the_world.stream("rendezvous")) {}

  transport::sim::SimWorld& world;
  transport::sim::SeededRandom random;
  Duration longest_delay = std::chrono::milliseconds(2);
  unsigned failures = 0;  // per mille
  std::map<std::string, agent::Card> cards;
  std::map<std::string, std::uint64_t> lives;
  std::function<void(const agent::Card&)> on_join;
};

// One node's way to it.
class SimDirectory final : public agent::Directory {
 public:
  SimDirectory(SimRendezvous& rendezvous, std::shared_ptr<transport::sim::SimProcess> process)
      : rendezvous_(rendezvous), process_(std::move(process)) {}

  void join(agent::Card card, UniqueFunction<void(Result<agent::Card>)> done) override;
  void look_up(std::string name,
               UniqueFunction<void(Result<std::optional<agent::Card>>)> done) override;
  void leave(const agent::Card& card) override;

 private:
  // Asks at the service, then answers in the process.
  template <class Answer>
  void ask(UniqueFunction<Answer()> question, UniqueFunction<void(Result<Answer>)> done);

  SimRendezvous& rendezvous_;
  const std::shared_ptr<transport::sim::SimProcess> process_;
};

}  // namespace hawser::simulation
