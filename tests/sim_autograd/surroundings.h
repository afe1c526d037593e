#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hawser/autograd/desk.h"
#include "hawser/base/unique_function.h"
#include "sim_autograd/model.h"

namespace hawser::autograd::simulation {

using CallNumber = std::uint64_t;

// What the callee of a forward call is to do.
struct Order {
  int depth = 0;          // of calls within calls that it may make
  bool all_used = false;  // of all it gets and makes, a part must be in the reply
  bool fetch = false;     // only return what was put aside (as a reference does)
};

// All that travels, in calls and in replies. Fields that are not meant are empty.
struct Parcel {
  std::optional<Message> message{};   // between conductors,
  std::vector<Gradient> gradients{};  // with Gradients
  std::optional<Note> note{};         // between programs:
  FunctionNumber send_function = 0;   // what was sent; 0: nothing that has a gradient
  Order order{};
  Reply reply{};  // of a conductor
};

// How a call ended. `left`: with an error, whether it may have been received.
using Done = UniqueFunction<void(const Result<Parcel>& reply, const Party& from, bool left)>;

// What a node needs of its world.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual transport::sim::SimWorld& world() = 0;
  virtual Model& model() = 0;
  virtual transport::sim::SeededRandom& whims() = 0;
  // To this incarnation, or to whoever has the name. `done` is run once, later, while `from` lives.
  virtual void call(const Party& from, const Party& to, Parcel parcel, Duration budget,
                    Done done) = 0;
  virtual void answer(CallNumber call, Result<Parcel> reply) = 0;
  // Runs the task then, if this life of the node still goes on.
  virtual void later(const Party& whose, Duration delay, UniqueFunction<void()> task) = 0;
  virtual Duration ask_after() const = 0;
  virtual std::vector<std::string> others(const std::string& than) = 0;
  // Of a pass that has failed: in a while nobody may know of it any more.
  virtual void check_that_it_goes(PassId pass) = 0;
  // Of a context that is quiet: every node that is in it.
  virtual void check_gradients(ContextId context) = 0;
};

// `ask_after`: short where inquiries are to be common, long where nothing else may lean on them.
ConductorOptions conductor_options(Duration ask_after);

}  // namespace hawser::autograd::simulation
