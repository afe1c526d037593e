#pragma once

#include <ATen/record_function.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hawser/agent/agent.h"
#include "hawser/agent/crew.h"
#include "hawser/agent/incoming_call.h"
#include "hawser/autograd/conductor.h"
#include "hawser/base/future.h"
#include "hawser/base/guarded.h"
#include "hawser/base/timers.h"
#include "hawser/engine/functions.h"
#include "hawser/engine/local_pass.h"
#include "hawser/node/backward.h"
#include "hawser/node/briefness.h"
#include "hawser/trace/pass_record.h"

namespace hawser {

// One context as this node sees it.
struct AutogradContextReport {
  autograd::ContextId id{};
  std::string creator;
  std::vector<std::string> known;  // nodes that it sent to or received from
  std::map<autograd::MessageId, c10::intrusive_ptr<engine::SendFunction>> sends;
  std::map<autograd::MessageId, c10::intrusive_ptr<engine::RecvFunction>> recvs;
};

// The distributed autograd of a node: joins the conductor (autograd/DESIGN.md, which says what is
// called when) to the agent and to libtorch's engine. One lock is around the conductor and what
// belongs to contexts and passes.
//
//   ACTION-1  What the conductor wants done is queued under that lock and done without it, in that
//             order, by one thread at a time: whoever finds nobody at work.
//
// Thread-safe. Nothing but a future waits.
class Autograd final : public engine::LocalPass::Events,
                       public std::enable_shared_from_this<Autograd> {
 public:
  struct Surroundings {
    agent::Agent& agent;
    Timers& timers;
    const Clock& clock;
    std::shared_ptr<agent::Crew> crew;
    trace::ServingProfiles& serving_profiles;
    // While this is there, so is all of the above.
    std::weak_ptr<void> alive;
    std::shared_ptr<trace::PeerClocks> peer_clocks;
    wire::TraceProcess process;
  };
  Autograd(autograd::Self self, Surroundings surroundings);

  // ------ for the program ------
  autograd::ContextId create();
  // False when this node is not in that context.
  bool release(autograd::ContextId context);
  bool is_in(autograd::ContextId context);
  // The gradients are in gradients() of every node then, or the future has the error. Throws
  // Error(Invalid) for roots and contexts that make no sense.
  Future<void> backward(autograd::ContextId context, const engine::Tensors& roots,
                        const BackwardOptions& options);
  // For who waits for the pass that it begins next, around both. To profilers it is one scope of
  // the program. Waiting does what work of the pass comes to this thread: not where a function that
  // does not return must not hold up who waits, because a time limit was given; nor where this
  // thread is already in one.
  class Waiting {
   public:
    Waiting(Autograd& autograd, const BackwardOptions& options);
    Waiting(const Waiting&) = delete;

   private:
    at::RecordFunction scope_{at::RecordScope::USER_SCOPE};
    std::unique_ptr<agent::Crew::Helper> helper_;
  };
  // Of the leaves of this node. Throws Error(Invalid) when it is not in that context.
  Gradients gradients(autograd::ContextId context);
  AutogradContextReport report(autograd::ContextId context);
  AutogradCounts count();

  // ------ for messages ------
  // The note for a call or reply that is about to be sent in that context, whose payload gets its
  // end of the graph. Nothing: this node is not in it.
  std::optional<wire::AutogradNote> record_send(autograd::ContextId context,
                                                const autograd::Party& to,
                                                const wire::Payload& payload);
  void send_failed(const wire::AutogradNote& note, bool left);
  // A payload with a note has been received. The note is removed if its context is over.
  void received(wire::Notes& notes, wire::ReceivedPayload& payload, const autograd::Party& from);
  // A message of another conductor. Answers now or later.
  void serve(std::shared_ptr<agent::IncomingCall> call);

  // ------ what the agent reports ------
  void connected(const std::string& peer, Incarnation incarnation);
  void disconnected(const std::string& peer);
  void barred(const std::string& peer, Incarnation incarnation);
  void given_up(const std::string& peer);
  void rejoined(Incarnation incarnation);

  // Everything ends: passes fail, contexts go. A function that runs goes on until it returns.
  void close();

  // engine::LocalPass::Events
  void gradients_leave(autograd::PassId pass, autograd::MessageId recv,
                       engine::Tensors gradients) override;
  void part_ended(autograd::PassId pass, std::exception_ptr failure, std::string warnings) override;
  void lend_thread(autograd::PassId pass, UniqueFunction<void()> work) override;

 private:
  // What belongs to a context beside the conductor's knowledge of it.
  struct Graph {
    std::map<autograd::MessageId, c10::intrusive_ptr<engine::SendFunction>> sends;
    std::map<autograd::MessageId, c10::intrusive_ptr<engine::RecvFunction>> recvs;
    Gradients gradients;
  };
  // What belongs to a pass.
  struct Part {
    std::shared_ptr<engine::LocalPass> local;
    std::unique_ptr<agent::Crew::Expectation> expectation;
  };
  struct Arrived {
    std::shared_ptr<agent::IncomingCall> call;
    std::optional<autograd::GradientHandle> gradients{};
    std::shared_ptr<trace::PassService> service{};  // if the pass is recorded
    std::optional<autograd::PassId> commits{};
  };
  struct State {
    explicit State(autograd::Self self)
        : party(self.party()), rank(self.rank), conductor(std::move(self), {}) {}
    autograd::Party party;
    std::optional<std::uint32_t> rank;
    autograd::Conductor conductor;
    std::unordered_map<autograd::ContextId, Graph> graphs{};
    std::unordered_map<autograd::PassId, Part> passes{};
    std::unordered_map<autograd::PassId, Promise<void>> begun{};  // here
    std::unordered_map<autograd::GradientHandle, engine::Tensors> gradients{};
    std::unordered_map<autograd::Incoming, Arrived> arrived{};
    std::unordered_map<autograd::PassId, Error> not_committed{};  // until that has been told
    std::uint64_t next_number = 1;                                // of gradients and arrivals
    std::deque<autograd::Action> to_do{};
    bool working = false;  // somebody does it
    TimePoint timer_due = TimePoint::max();
    bool closed = false;
  };

  // Runs `event` on the state under the lock, then does what is to be done. False when closed.
  template <class Event>
  bool tell(Event event);
  void work();
  // Of the messages by which a node can hear of a pass.
  static const autograd::PassHeader* header_of(const autograd::Message& message);
  void keep_time(State& state);
  Error closed_error() const;
  engine::Tensors take_gradients(autograd::GradientHandle handle);
  std::shared_ptr<engine::LocalPass> find_pass(autograd::PassId pass);
  std::shared_ptr<engine::LocalPass> take_pass(autograd::PassId pass);
  void destroy(std::shared_ptr<void> graph);
  void commit(const engine::LocalPass& pass);
  std::optional<Error> take_commit_error(autograd::PassId pass);
  std::unique_ptr<agent::Crew::Expectation> expectation();
  std::shared_ptr<engine::LocalPass> find_or_add_pass(autograd::PassId pass,
                                                      autograd::ContextId context);
  std::vector<c10::intrusive_ptr<engine::SendFunction>> find_sends(
      autograd::ContextId context, const std::vector<autograd::MessageId>& messages);

  // An action has thrown: whoever waits for what it should have done is told.
  void failed(const autograd::Action& action, const Error& error);
  Error raised_here(std::exception_ptr thrown) const;
  void perform(autograd::Send&& action);
  void perform(autograd::Answer&& action);
  void perform(autograd::Explore&& action);
  void perform(autograd::StartLocal&& action);
  void perform(autograd::Deliver&& action);
  void perform(autograd::AbortLocal&& action);
  void perform(autograd::CommitLocal&& action);
  void perform(autograd::Finished&& action);
  void perform(autograd::DropContext&& action);

  const Surroundings out_;
  const std::shared_ptr<Scheduler> waiting_;  // how the program waits for a pass
  const std::string self_;
  // Backward functions, between two waits for gradients. What arrives meanwhile is mostly for them.
  Briefness running_{std::chrono::microseconds(250)};
  trace::PassRecords records_;
  Guarded<State> state_;
};

template <class Event>
bool Autograd::tell(Event event) {
  const auto alive = out_.alive.lock();
  if (!alive) return false;
  {
    auto state = state_.lock();
    if (state->closed) return false;
    const TimePoint now = out_.clock.now();
    event(*state, now);
    for (autograd::Action& action : state->conductor.take_actions(now)) {
      state->to_do.push_back(std::move(action));
    }
    keep_time(*state);
    if (state->working || state->to_do.empty()) return true;
    state->working = true;
  }
  work();
  return true;
}

}  // namespace hawser
