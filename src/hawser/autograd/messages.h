#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "hawser/autograd/ids.h"
#include "hawser/base/clock.h"
#include "hawser/base/error.h"
#include "hawser/base/result.h"

// What conductors tell each other; DESIGN.md says why. Plain values. Each message is a call: it
// arrives once or not at all, and its sender learns the answer or why there is none.
namespace hawser::autograd {

// What torch.autograd.detect_anomaly asks for. Who asks, asks it of every node that takes part.
enum class AnomalyMode : std::uint8_t {
  Off = 0,
  Trace = 1,             // a function that fails says where in the forward pass it comes from
  TraceAndCheckNan = 2,  // one that computes a NaN fails
};

// Travels with calls and replies of the forward pass.
struct Note {
  ContextId context{};
  MessageId message{};
  Party creator{};  // of the context
  AnomalyMode anomaly_mode = AnomalyMode::Off;
  bool operator==(const Note&) const = default;
};

// How a node learns which of its send functions will get a gradient.
enum class Mode : std::uint8_t {
  Smart = 1,  // it is told: exactly those that the roots depend on
  Fast = 2,   // it assumes all of the context
};

// How the functions of a pass are run.
struct RunOptions {
  bool retain_graph = false;
  AnomalyMode anomaly_mode = AnomalyMode::Off;
  bool operator==(const RunOptions&) const = default;
};

// Gradients are with the layer above, under a number of its own.
enum class GradientHandle : std::uint64_t {};

// In the messages by which a node can hear of a pass for the first time.
struct PassHeader {
  ContextId context{};
  PassId pass{};
  Party initiator{};
  Mode mode = Mode::Smart;
  RunOptions run{};
  Duration budget = Duration::max();  // that is left; max: no limit
  bool operator==(const PassHeader&) const = default;
};

// SMART. These send functions of yours will get a gradient in this pass. Answered when everything
// that can be reached from them, on any node, has been told so.
struct Discover {
  PassHeader pass;
  std::vector<MessageId> sends;
  bool operator==(const Discover&) const = default;
};
// SMART. Nothing more will be discovered: what was not, gets no gradient. Passed on to those who
// wait for it.
struct Proceed {
  PassId pass{};
  bool operator==(const Proceed&) const = default;
};
// The gradients of what your send function `message` sent. The first one in a pass makes the
// receiver the sender's child: it is answered when the child and its children are complete. All
// others are answered at once.
struct Gradients {
  PassHeader pass;
  MessageId message{};
  GradientHandle gradients{};
  bool operator==(const Gradients&) const = default;
};
// To children. The pass is complete everywhere: add what you have collected to the context.
// Answered when the receiver and its children have.
struct Commit {
  PassId pass{};
  bool operator==(const Commit&) const = default;
};
// The pass has failed, and leaves nothing. Passed on to all with whom the receiver has spoken in
// it.
struct Abort {
  PassId pass{};
  Error why;
};
// These contexts are over. Passed on to all that the receiver knows of in them.
struct Release {
  std::vector<ContextId> contexts;
  bool operator==(const Release&) const = default;
};
// To their creator: I am in these contexts. Do they still exist?
struct Inquire {
  std::vector<ContextId> contexts;
  bool operator==(const Inquire&) const = default;
};

using Message = std::variant<Discover, Proceed, Gradients, Commit, Abort, Release, Inquire>;

struct Reply {
  bool waits = false;             // to Discover: somebody there needs a Proceed
  bool child = false;             // to Gradients: the receiver was this sender's child
  std::vector<ContextId> gone{};  // to Inquire
  bool operator==(const Reply&) const = default;
};

}  // namespace hawser::autograd
