#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hawser/agent/call_table.h"
#include "hawser/transport/sim/sim_world.h"

namespace hawser::simulation {

// What functions of simulated nodes do. The names are those of the functions.
enum class Function { Echo, Slow, Hang, Nested, Relay, Fail, Forget, AnswerTwice };
std::string_view to_string(Function function);
std::optional<Function> function_named(std::string_view name);

using CallNumber = std::uint64_t;  // counts all calls of a world

// What is true of the simulated world, kept apart from the classes under test: which calls were
// made, what became of them, who was disturbed by which fault. Every event is checked against it;
// what does not fit becomes a complaint.
//
//   A call completes once. Its result was made for it by its callee. Timeout comes at its deadline,
//   not before and not later; Cancelled after somebody cancelled; PeerLost after something happened
//   to one of the two nodes or between them; Remote from functions that fail.
class Model {
 public:
  struct Call {
    std::string from, to;
    Function function{};
    bool one_way = false;
    TimePoint started;
    Deadline deadline;
    CallNumber parent = 0;  // the call whose handler made this one
    bool done = false;
    bool cancelled = false;  // by its caller
    bool orphaned = false;   // its caller died with it
    int executions = 0;
    bool answered_with_value = false;
  };
  // A handler at work.
  struct Execution {
    CallNumber call = 0;
    std::string node;
  };

  explicit Model(transport::sim::SimWorld& world) : world_(world) {}

  // --- nodes ---
  void node_started(const std::string& node);
  void node_gone(const std::string& node);  // killed or left: what it waited for is nobody's
  // It has said goodbye: its calls fail, nobody need reach it, and its process ends soon.
  void node_leaving(const std::string& node);
  void node_stopped(const std::string& node) { stopped_.insert(node); }
  void node_resumed(const std::string& node);
  bool is_up(const std::string& node) const { return up_.contains(node); }
  TimePoint up_since(const std::string& node) const { return up_.at(node); }

  // --- faults ---
  void disturbed(const std::string& node);
  void disturbed(const std::string& one, const std::string& other);
  // From now on everything may go wrong between any two nodes.
  void everything_disturbed() { all_disturbed_ = world_.now(); }
  bool recently_disturbed(const std::string& one, const std::string& other, TimePoint since) const;

  // --- calls ---
  CallNumber open(Call call);
  void cancelled(CallNumber number) { calls_[number].cancelled = true; }
  void answered(CallNumber number, const agent::Answer& answer);
  const Call& call(CallNumber number) const { return calls_.at(number); }
  // How many calls led to this one.
  std::uint16_t depth(CallNumber number) const;
  const std::map<CallNumber, Call>& calls() const { return calls_; }
  // Calls a node waits for.
  const std::set<std::pair<Deadline, CallNumber>>& outstanding(const std::string& node) const;

  // --- handlers ---
  using ExecutionId = std::uint64_t;
  ExecutionId execution_started(CallNumber number, const std::string& node);
  void execution_answers(ExecutionId id, bool with_value);
  const std::map<ExecutionId, Execution>& executions() const { return executions_; }

  // --- sessions ---
  void session_made(const std::string& node, const std::string& peer, std::uint64_t incarnation,
                    std::uint64_t given_up);

  // After every event.
  void check_deadlines();
  // When everything should have come to an end.
  void check_rest();

  void complain(const std::string& what);
  const std::vector<std::string>& complaints() const { return complaints_; }
  std::uint64_t succeeded() const { return succeeded_; }

 private:
  void check_error(CallNumber number, const Call& call, const Error& error);
  void check_value(CallNumber number, const Call& call, const agent::Answer& answer);
  std::string describe(CallNumber number) const;

  transport::sim::SimWorld& world_;
  std::map<std::string, TimePoint> up_;
  std::set<std::string> stopped_;
  std::map<std::string, TimePoint> resumed_;
  std::map<std::string, TimePoint> node_disturbed_;
  std::map<std::pair<std::string, std::string>, TimePoint> pair_disturbed_;
  std::optional<TimePoint> all_disturbed_;

  std::map<CallNumber, Call> calls_;
  std::map<std::string, std::set<std::pair<Deadline, CallNumber>>> outstanding_;
  std::map<ExecutionId, Execution> executions_;
  ExecutionId next_execution_ = 1;
  // The highest incarnation of each peer that each node has been connected to.
  std::map<std::pair<std::string, std::string>, std::uint64_t> met_;
  std::uint64_t succeeded_ = 0;
  std::vector<std::string> complaints_;
};

// What a call carries and what its result must be.
wire::Payload arguments_of(CallNumber number);
CallNumber number_in(const wire::ReceivedPayload& payload);
wire::Payload result_of(CallNumber number);
bool is_result_of(CallNumber number, const wire::ReceivedPayload& payload);

}  // namespace hawser::simulation
