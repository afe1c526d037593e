#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "hawser/autograd/messages.h"

namespace hawser::autograd {

// A call of this node to another, by a number of the conductor.
enum class Outgoing : std::uint64_t {};
// A call of another node to this one, by a number of the layer above.
enum class Incoming : std::uint64_t {};
// One question about the local graph.
enum class Exploration : std::uint64_t {};

// What a conductor wants done. All of it may be done after the conductor's lock is released, in
// order.

// To exactly this incarnation (to whoever has the name, if it is zero), connecting if need be.
// Tell by answered(), exactly once. `budget`: give up after that.
struct Send {
  Party to;
  Outgoing call{};
  Message message;
  Duration budget = Duration::max();
};
// Once for each receive(), at once or later. With an error the gradients that came with the call
// are not wanted. Nothing is to be done if the connection it came by is gone.
struct Answer {
  Incoming call{};
  Result<Reply> reply;
};
// Which recv functions of the context can be reached in the local graph from the roots, or from
// these send functions? Tell by explored(). What was found before in this pass need not be told
// again; after AbortLocal nothing need be told.
struct Explore {
  PassId pass{};
  ContextId context{};
  Exploration exploration{};
  bool from_roots = false;
  std::vector<MessageId> sends{};
};
// Run the local part: from the roots, if this node has them, and from each of these send functions
// once its gradient is delivered. A function runs when everything of this pass that it depends on
// has run. Gradients of leaves are collected for this pass, apart from the context's. Tell each
// gradient that leaves the node by send_gradients(), then by local_ended() that all have run.
struct StartLocal {
  PassId pass{};
  ContextId context{};
  bool from_roots = false;
  RunOptions run{};
  std::vector<MessageId> awaited{};  // in order of their numbers
};
struct Deliver {
  PassId pass{};
  MessageId send{};
  GradientHandle gradients{};
};
// Stop, and forget all that belongs to this pass: gradients, what was collected, what was
// explored. If the local part is at work, local_ended() is still wanted when it has stopped.
struct AbortLocal {
  PassId pass{};
  Error why;
};
// Add what was collected to the context, and forget the rest that belongs to this pass.
struct CommitLocal {
  PassId pass{};
};
// The end of a pass that this node began: once for each.
struct Finished {
  PassId pass{};
  Result<void> result;
};
// Forget the context: its send functions, its gradients. Once for each.
struct DropContext {
  ContextId context{};
};

using Action = std::variant<Send, Answer, Explore, StartLocal, Deliver, AbortLocal, CommitLocal,
                            Finished, DropContext>;
using Actions = std::vector<Action>;

}  // namespace hawser::autograd
