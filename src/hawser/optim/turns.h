#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace hawser::optim {

// Who may change some parameters: steps that have a parameter in common take turns, others do not
// wait for each other. Parameters that are new get one lock together, since they are usually used
// together: a step takes one lock then, however many parameters there are.
//
//   TURN-1  Locks are taken in the order in which they were made, so nobody waits in a circle.
class Turns {
 public:
  Turns() = default;
  static Turns of(std::span<const at::Tensor> parameters);

  // BasicLockable.
  void lock();
  void unlock();

 private:
  struct Turn {
    std::uint64_t number;
    std::mutex mutex;
  };
  friend class TurnBook;
  explicit Turns(std::vector<std::shared_ptr<Turn>> in_order) : in_order_(std::move(in_order)) {}

  std::vector<std::shared_ptr<Turn>> in_order_;
};

}  // namespace hawser::optim
