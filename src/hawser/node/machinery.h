#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "hawser/agent/agent.h"
#include "hawser/agent/crew.h"
#include "hawser/agent/departure_driver.h"
#include "hawser/agent/store_directory.h"
#include "hawser/base/buffer_pool.h"
#include "hawser/base/log.h"
#include "hawser/base/random.h"
#include "hawser/node/autograd.h"
#include "hawser/node/function_table.h"
#include "hawser/node/node.h"
#include "hawser/node/references.h"
#include "hawser/tensor/operators.h"
#include "hawser/trace/peer_clocks.h"
#include "hawser/trace/service.h"
#include "hawser/transport/control_loop.h"
#include "hawser/transport/doorbell.h"
#include "hawser/transport/poll_set.h"
#include "hawser/transport/transport.h"

namespace hawser {

// The composition root: builds everything a node consists of, connects it, and takes it apart in
// the right order. What it owns is kept alive by whoever still serves a call (Session), so that a
// handler that outlives its node finds its surroundings in place, closed.
class Node::Machinery final : public agent::Workshop,
                              public agent::RequestHandler,
                              public std::enable_shared_from_this<Machinery> {
 public:
  explicit Machinery(NodeOptions options);
  ~Machinery() override;

  void start(Node& node);
  // Leaves together with the other members; false when the deadline passed first. May be called
  // again after that.
  bool depart(Deadline deadline);
  Deadline leaving_deadline(Duration timeout) const;  // none for a time-out of 0
  std::vector<std::string> departure_waits_for() const;
  bool close(Duration patience);
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // In a forked child everything but the memory is gone.
  bool inherited() const;
  void refuse_if_inherited() const;  // throws Error(Invalid)

  void release_references();
  bool await_release(Deadline deadline);
  void log_references(log::Level level, std::string_view what,
                      const std::vector<std::string>& lines) const;

  void add(std::shared_ptr<Function> function);
  bool withdraw(std::string_view name);
  void add_method(const std::type_info& type, std::string name,
                  std::shared_ptr<const Method> method);
  std::shared_ptr<const Method> find_method(const std::type_info& type,
                                            std::string_view name) const;

  bool connect(const std::string& to, Deadline deadline);
  std::map<std::uint32_t, std::string> members(Deadline deadline);
  std::optional<std::uint32_t> look_up(std::string_view name, Deadline deadline);

  std::uint32_t rank_of(const std::string& name);

  Duration call_timeout() const { return call_timeout_.load(std::memory_order_relaxed); }
  void set_call_timeout(Duration timeout) { call_timeout_.store(timeout); }

  // Waits until there is room for it, at most until its deadline.
  agent::CallHandle request(agent::Request&& request, agent::AnswerHandler&& handler);
  void notice(std::string_view to, wire::Call message, agent::AnswerHandler on_sent);
  NodeReport report() const;

  const NodeOptions& options() const { return options_; }
  const std::shared_ptr<agent::Crew>& crew() const { return crew_; }
  agent::Agent& agent() { return *agent_; }
  agent::StoreDirectory& directory() { return *directory_; }
  tensor::OperatorCatalog& operators() { return operators_; }
  References& references() { return *references_; }
  Autograd& autograd() { return *autograd_; }
  ScriptHost& scripts() { return *scripts_; }
  trace::ServingProfiles& serving_profiles() { return serving_profiles_; }
  const std::shared_ptr<trace::PeerClocks>& peer_clocks() const { return peer_clocks_; }
  const wire::TraceProcess& process() const { return process_; }
  const SteadyClock& clock() const { return clock_; }

  // agent::Workshop
  void attach(std::shared_ptr<transport::Link> link,
              std::shared_ptr<transport::FrameSink> sink) override;
  void watch_writable(transport::Link& link) override;
  bool held_back(std::shared_ptr<transport::Link> link) override {
    return crew_->held_back(std::move(link));
  }
  std::shared_ptr<transport::Link> decorate(std::shared_ptr<transport::Link> link) override;
  void outstanding_changed(int by) override;
  void beat() override;
  std::shared_ptr<void> keep_alive() override { return shared_from_this(); }

  // agent::RequestHandler
  void handle(std::shared_ptr<agent::IncomingCall> call) override;
  bool needs_no_run(const std::shared_ptr<agent::IncomingCall>& call) override;
  agent::Preparation prepare(wire::ReceivedCall& call,
                             const transport::PeerIdentity& from) override;
  void answer_received(wire::ReceivedPayload& payload, wire::Notes& notes,
                       const transport::PeerIdentity& from) override;

 private:
  using Functions = std::map<std::string, std::shared_ptr<Function>, std::less<>>;

  std::shared_ptr<agent::WorldStore> open_store();
  std::vector<std::byte> secret();
  void open_transports(const std::string& towards);
  std::vector<transport::Transport*> listen();
  void connect_protocols();
  bool await_own_calls(Deadline deadline);
  std::optional<agent::Departure::Members> await_members(Deadline deadline);
  std::optional<agent::Departure::Members> await_members_to_leave_with(Deadline deadline);
  bool depart_together(Deadline deadline);
  bool pause(Duration duration, Deadline deadline);
  void report_references();
  std::shared_ptr<Function> find(wire::TargetKind kind, std::string_view name) const;
  std::shared_ptr<trace::Service> recorded(const wire::ReceivedCall& call);

  NodeOptions options_;
  const std::uint64_t fork_depth_;
  SteadyClock clock_;
  SystemRandom random_;
  Node* node_ = nullptr;

  // Built top to bottom, destroyed bottom to top.
  std::shared_ptr<BufferPool> pool_;
  std::shared_ptr<transport::Doorbell> bell_;
  std::shared_ptr<transport::PollSet> set_;
  std::shared_ptr<agent::Crew> crew_;
  std::unique_ptr<agent::StoreDirectory> directory_;
  transport::ControlLoop control_;
  std::unique_ptr<agent::Agent> agent_;
  std::unique_ptr<agent::DepartureDriver> departure_;
  std::shared_ptr<References> references_;  // handles of the program share it
  std::shared_ptr<Autograd> autograd_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::string> endpoints_;
  std::vector<std::string> unavailable_;
  tensor::OperatorCatalog operators_;
  std::unique_ptr<ScriptHost> scripts_;
  Guarded<std::unordered_map<std::string, std::uint32_t>> ranks_;  // that do not change
  wire::TraceProcess process_;                                     // as recordings name it
  trace::ServingProfiles serving_profiles_;
  const std::shared_ptr<trace::PeerClocks> peer_clocks_;  // calls on their way share it
  std::uint64_t chain_base_ = 0;
  std::atomic<std::uint64_t> chains_{0};

  std::atomic<Duration> call_timeout_;

  mutable std::shared_mutex functions_mutex_;
  Functions functions_;
  std::map<std::pair<std::type_index, std::string>, std::shared_ptr<const Method>> methods_;
  const tensor::OperatorRule operator_rule_;
  mutable FunctionTable operator_functions_;
  mutable FunctionTable script_functions_;
  FunctionTable method_calls_;  // by the name of the method, for what is learnt about it
  const std::shared_ptr<Function> refused_creation_;

  Guarded<Future<void>> dismissed_;  // valid once this node has asked to leave
  mutable Guarded<std::vector<std::string>> not_yet_joined_;  // that depart() waits for
  std::atomic<bool> departed_{false};  // the world of a graceful shutdown has ended
  std::atomic<bool> closing_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace hawser
