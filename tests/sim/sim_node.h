#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hawser/agent/agent.h"
#include "hawser/agent/departure_driver.h"
#include "hawser/transport/sim/sim_transport.h"
#include "sim/model.h"
#include "sim/sim_directory.h"

namespace hawser::simulation {

using transport::sim::SimNetwork;
using transport::sim::SimProcess;
using transport::sim::SimWorld;

// Everything that simulated nodes share.
struct Stage {
  explicit Stage(std::uint64_t seed);

  SimWorld world;
  SimNetwork network{world};
  SimRendezvous rendezvous{world};
  Model model{world};
  transport::sim::SeededRandom whims;  // of handlers and pollers
  std::vector<std::string> names;
};

// Times are shorter than in production, by the same factor.
agent::AgentOptions node_options();
Duration longest_silence();  // until a peer is given up

// One life of a node: a real Agent with everything around it simulated. Handlers do what the
// function they are called by says.
class SimNode final : public agent::Workshop, public agent::RequestHandler {
 public:
  SimNode(Stage& stage, std::string name, std::uint32_t rank, std::string address);
  ~SimNode() override;
  SimNode(const SimNode&) = delete;

  const std::string& name() const { return name_; }
  bool joined() const { return joined_; }
  SimProcess& process() { return *process_; }
  agent::Agent& agent() { return *agent_; }
  agent::DepartureDriver& departure() { return *departure_; }
  const std::string& address() const { return address_; }

  CallNumber call(const std::string& to, Function function, Deadline deadline, bool one_way,
                  CallNumber parent);
  void cancel(CallNumber number);
  std::vector<CallNumber> calls_in_flight() const;

  // Compares the agent's tables with the model.
  void check_tables();
  void check_rest();

  // agent::Workshop
  void attach(std::shared_ptr<transport::Link> link,
              std::shared_ptr<transport::FrameSink> sink) override;
  void watch_writable(transport::Link&) override {}
  void outstanding_changed(int by) override { outstanding_ += by; }
  void beat() override {}
  std::shared_ptr<void> keep_alive() override { return nullptr; }

  // agent::RequestHandler
  void handle(std::shared_ptr<agent::IncomingCall> call) override;
  agent::Preparation prepare(wire::ReceivedCall& call,
                             const transport::PeerIdentity& from) override;
  void answer_received(wire::ReceivedPayload&, wire::Notes&,
                       const transport::PeerIdentity&) override {}

 private:
  struct Watched {
    std::shared_ptr<transport::sim::SimLink> link;
    std::shared_ptr<transport::FrameSink> sink;
    bool poll_scheduled = false;
  };
  struct Work {
    std::shared_ptr<agent::IncomingCall> call;
    CallNumber number = 0;
    std::optional<CallNumber> nested;
  };
  using ExecutionId = Model::ExecutionId;

  void join();
  void start(agent::Card card);
  void schedule_poll(const std::shared_ptr<Watched>& watched);
  void poll(const std::shared_ptr<Watched>& watched);
  void run(std::shared_ptr<transport::Task> task);
  void work_on(ExecutionId id, Function function);
  void start_nested(ExecutionId id);
  void finish_nested(CallNumber nested);
  void relay(ExecutionId id);
  void told_to_stop(ExecutionId id);
  void answer(ExecutionId id);
  // The work is over, and what is left is to say so.
  std::shared_ptr<agent::IncomingCall> take(ExecutionId id, bool with_value);

  Stage& stage_;
  const std::string name_;
  const std::uint32_t rank_;
  std::string address_;
  const std::shared_ptr<SimProcess> process_;
  SimDirectory directory_;
  std::unique_ptr<agent::Agent> agent_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<agent::DepartureDriver> departure_;
  bool joined_ = false;
  int outstanding_ = 0;
  std::map<ExecutionId, Work> working_;
  std::map<CallNumber, agent::CallHandle> handles_;
};

}  // namespace hawser::simulation
