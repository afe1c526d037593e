#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "hawser/autograd/contexts.h"
#include "hawser/autograd/desk.h"
#include "hawser/autograd/endings.h"
#include "hawser/autograd/pass.h"

namespace hawser::autograd {

// All that a node knows of distributed autograd: the contexts it is in, and the backward passes it
// takes part in. DESIGN.md is the manual; it names the invariants GRAD-1 to GRAD-6.
//
// Sans-IO: every method is an event with the time at which it happened. What is to be done because
// of it is collected until take_actions(). Ids only: tensors, graphs and gradients are with the
// layer above.
//
// Not thread-safe: the layer above has one lock around it, and performs actions after releasing it.
class Conductor {
 public:
  Conductor(Self self, ConductorOptions options);

  // ------ contexts ------
  ContextId create_context(TimePoint now) { return contexts_.create(now); }
  bool is_in(ContextId context) const { return contexts_.find(context) != nullptr; }
  // False when this node is not in it. Passes in it are aborted.
  bool release(ContextId context, TimePoint now);

  // ------ the forward pass ------
  // For a call or reply to `to`, whose incarnation may be unknown (zero). With a send function of
  // that message's number, if any tensor in it requires a gradient. Nothing: not in that context,
  // send without a note.
  std::optional<Note> record_send(ContextId context, const Party& to, bool with_function) {
    return contexts_.record_send(context, to, with_function);
  }
  // The message was not received (`left` false), or nobody knows whether it was.
  void send_failed(ContextId context, MessageId message, bool left) {
    contexts_.send_failed(context, message, left);
  }
  // A call or reply with a note has come in; with a recv function if the sender had a send
  // function. False: the context is over. Go on without it, and record nothing.
  bool record_recv(const Note& note, const Party& from, bool with_function, TimePoint now);

  // ------ a backward pass that this node begins ------
  // Finished tells the end, unless there is none: Invalid when this node is not in that context.
  Result<PassId> backward(ContextId context, Mode mode, RunOptions run, Deadline deadline,
                          TimePoint now);
  // False when it is too late for that, or there is no such pass.
  bool cancel(PassId pass, TimePoint now);

  // ------ the local part of any pass ------
  void explored(PassId pass, Exploration exploration, const Result<std::vector<MessageId>>& recvs,
                TimePoint now);
  // A recv function has run. False: drop the gradients, the pass is over or about to be.
  bool send_gradients(PassId pass, MessageId recv, GradientHandle gradients, TimePoint now);
  // Exactly once for each StartLocal, after the last send_gradients().
  void local_ended(PassId pass, const Result<void>& result, TimePoint now);

  // ------ messages ------
  void receive(const Party& from, Incoming call, const Message& message, TimePoint now);
  // Exactly once for each Send.
  void answered(Outgoing call, const Result<Reply>& reply, TimePoint now);

  // ------ the world ------
  // This incarnation has been heard of; all before it are over.
  void met(const Party& party, TimePoint now);
  // A connection is gone. Before anything of the next connection to the same peer.
  void disconnected(std::string_view peer, TimePoint now);
  // This incarnation, and all before it, have been given up or have left, and will not be let in
  // again. With incarnation zero: nobody of that name can be found; releases for a life that was
  // never met are void.
  void lost(const Party& party, TimePoint now);
  // This node was given up by others and goes on as a new incarnation: everything is void.
  void rejoined(Self self, TimePoint now);

  void tick(TimePoint now);
  // When tick() is wanted; too early does no harm.
  Deadline next_due() const;

  // What is to be done. After every event or batch of events.
  Actions take_actions(TimePoint now);

  // ------ looking ------
  // Something is to be said to that peer, or was heard from it, in a context that is not over.
  bool concerns(std::string_view peer) const { return contexts_.concerns(peer); }
  // In no context and no pass, and nothing left to be said.
  bool idle() const;
  std::vector<ContextReport> contexts(TimePoint now) const { return contexts_.report(now); }
  std::optional<ContextReport> context(ContextId context, TimePoint now) const;
  std::vector<PassReport> passes(TimePoint now) const;

 private:
  // Of a message that begins or continues a pass; nothing, and an error as the answer, if there is
  // no such pass any more.
  Pass* find_or_join(const PassHeader& header, Incoming call, TimePoint now);
  Pass* find_or_refuse(PassId pass, Incoming call);
  Pass* find(PassId pass);
  void drop(ContextId context, std::string_view told_by, TimePoint now);
  void lives_ended(const Party& up_to, TimePoint now);
  void bury_done(TimePoint now);

  void on(const Party& from, Incoming call, const Discover& message, TimePoint now);
  void on(const Party& from, Incoming call, const Gradients& message, TimePoint now);
  void on(const Party& from, Incoming call, const Proceed& message, TimePoint now);
  void on(const Party& from, Incoming call, const Commit& message, TimePoint now);
  void on(const Party& from, Incoming call, const Abort& message, TimePoint now);
  void on(const Party& from, Incoming call, const Release& message, TimePoint now);
  void on(const Party& from, Incoming call, const Inquire& message, TimePoint now);

  Desk desk_;
  Lives lives_;
  Contexts contexts_;
  std::map<PassId, Pass> passes_;
  Endings endings_;
};

}  // namespace hawser::autograd
