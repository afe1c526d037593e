#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "hawser/engine/gradients.h"
#include "hawser/optim/rules.h"
#include "hawser/optim/turns.h"

namespace hawser::optim {

// A parameter of this node, as a step sees it.
template <class Rule>
struct Slot {
  at::Tensor leaf;    // whose gradient it is
  at::Tensor target;  // what is changed: another tensor with the same memory
  typename Rule::State state{};
};

template <class Rule>
struct Group {
  Rule rule;
  std::vector<Slot<Rule>> slots;
};

// What steps do until something changes: options, state that appears or is loaded, parameters that
// are added or get other memory. The tensors are the optimizer's own, and change in place.
struct Plan {
  using AnyGroup = std::variant<Group<Sgd>, Group<Adam>, Group<Adamax>, Group<Adagrad>,
                                Group<Adadelta>, Group<RmsProp>, Group<Rprop>>;
  std::string label;  // for profilers
  std::vector<AnyGroup> groups;
};

// Steps that need no interpreter, of an optimizer that lives in one. Its owner holds the lock while
// it changes the plan, or anything that the plan speaks of. Thread-safe.
class Stepper {
 public:
  // BasicLockable: the own lock comes first, then those of the parameters (TURN-1).
  void lock();
  void unlock();

  // With the lock, which it has afterwards as well.
  void take_turns(Turns turns);
  void follow(std::optional<Plan> plan) { plan_ = std::move(plan); }
  std::optional<Plan>& plan() { return plan_; }
  // Applies the gradients; parameters without one stay as they are. False, and nothing is changed,
  // when there is no plan or it does not provide for these.
  bool step(const Gradients& gradients);

 private:
  std::mutex mutex_;
  Turns turns_;
  std::optional<Plan> plan_;
};

}  // namespace hawser::optim
