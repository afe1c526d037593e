#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hawser/autograd/messages.h"
#include "hawser/transport/sim/sim_world.h"
#include "sim_autograd/graph.h"

namespace hawser::autograd::simulation {

// A pass as the program that begins it means it.
struct PassPlan {
  ContextId context{};
  std::vector<Value> roots{};
  Mode mode = Mode::Smart;
  bool all_used = false;  // the roots depend on everything that was sent in the context
  bool retain_graph = true;
  std::optional<Duration> budget{};
  std::optional<FunctionNumber> fails_at{};  // this function raises an error
};

// What is true of the simulated world, kept apart from the conductors: what depends on what, which
// passes there are, where they are at work, and how they ended. Every event is held against it;
// what does not fit becomes a complaint that names the promise of DESIGN.md.
class Model {
 public:
  Model(transport::sim::SimWorld& world, Duration abort_grace)
      : world_(world), abort_grace_(abort_grace) {}

  Graph& graph() { return graph_; }

  // --- lives and trouble ---
  void started(const Party& party) { alive_[party.name] = party.incarnation; }
  void ended(const Party& party);
  bool is_alive(const Party& party) const;
  // Something happened that may fail a pass: a crash, a cut, a node given up.
  void trouble() { last_trouble_ = std::max(last_trouble_.value_or(world_.now()), world_.now()); }
  // It may show much later, when the two meet again.
  void lasting_trouble() { last_trouble_ = TimePoint::max(); }
  // With that, those who could have told others are gone.
  void life_ended_early() { lives_ended_early_ = true; }

  // --- contexts ---
  void created(ContextId context, const Party& by);
  void joined(ContextId context, const Party& party);
  void dropped(ContextId context, const Party& party);
  void released(ContextId context);
  // A forward call in it has failed: not everything that was sent is used.
  void call_failed(ContextId context) { contexts_[context].call_failed = true; }
  bool has_failed_calls(ContextId context) const { return contexts_.at(context).call_failed; }
  // No pass of it is under way on a node that lives.
  bool is_quiet(ContextId context) const;
  // GRAD-4: what was collected for it on that node, while the context is quiet.
  void check_gradients(ContextId context, const Party& on,
                       const std::map<FunctionNumber, Gradient>& gradients);

  // --- passes ---
  void begun(PassId pass, const Party& by, PassPlan plan);
  void cancelled(PassId pass) { passes_[pass].cancelled = true; }
  void local_started(PassId pass, const Party& on, const std::set<FunctionNumber>& awaited);
  // It has got the roots, or a gradient.
  void local_computes(PassId pass, const Party& on);
  void local_stopped(PassId pass, const Party& on);
  void committed(PassId pass, const Party& on);
  void finished(PassId pass, const Party& on, const Result<void>& result);
  bool raises(PassId pass, FunctionNumber function) const;
  bool is_freed(FunctionNumber function) const { return freed_.contains(function); }
  void freed(FunctionNumber function) { freed_.insert(function); }

  // At the end: all that began has ended.
  void check_rest();
  void complain(const std::string& what);
  const std::vector<std::string>& complaints() const { return complaints_; }

  struct Counts {
    std::uint64_t contexts = 0, joined = 0, refused = 0, passes = 0, succeeded = 0, failed = 0;
    std::uint64_t fast = 0, spread = 0, compared = 0, torn = 0;
    std::map<ErrorKind, std::uint64_t> errors;
  };
  const Counts& counts() const { return counts_; }
  void refused() { ++counts_.refused; }

 private:
  struct TrueContext {
    Party creator;
    TimePoint made{};
    std::set<Party> members{}, left{};
    std::vector<PassId> passes{};
    bool released = false;
    bool call_failed = false;
  };
  struct TruePass {
    PassPlan plan;
    Party initiator;
    Graph::Backward truth;
    TimePoint begun{};
    bool cancelled = false;
    // At work: started and not stopped, though it may only wait. Computing: given something to do.
    std::set<Party> started, at_work, computing, committed;
    std::optional<Result<void>> result;
  };

  // Nothing has happened to the nodes since its context was made.
  bool is_calm(const TruePass& pass) const;
  // An earlier pass, or one beside it, may have freed what it needs.
  bool may_find_freed(const TruePass& pass, PassId id) const;
  void check_success(PassId id, const TruePass& pass);
  void check_failure(PassId id, const TruePass& pass, const Error& why);
  std::set<Party> parties_of(const TruePass& pass) const;

  transport::sim::SimWorld& world_;
  const Duration abort_grace_;
  Graph graph_;
  std::map<std::string, Incarnation> alive_;
  std::optional<TimePoint> last_trouble_;
  bool lives_ended_early_ = false;
  std::map<ContextId, TrueContext> contexts_;
  std::map<PassId, TruePass> passes_;
  std::set<FunctionNumber> freed_;
  std::vector<std::string> complaints_;
  Counts counts_;
};

}  // namespace hawser::autograd::simulation
