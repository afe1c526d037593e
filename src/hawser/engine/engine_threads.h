#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/guarded.h"

namespace torch::autograd {
struct ReadyQueue;
}

namespace hawser::engine {

// Threads on which libtorch's engine runs backward functions, each with a queue of its own (the
// engine's reentrant passes need that). Started when first wanted, up to `most`.
//
// Thread-safe.
class EngineThreads {
 public:
  explicit EngineThreads(std::size_t most) : most_(most) {}
  ~EngineThreads() { stop(Deadline(TimePoint::min())); }
  EngineThreads(const EngineThreads&) = delete;

  // The queue of the next thread in turn. Null when they have been stopped.
  std::shared_ptr<torch::autograd::ReadyQueue> next_queue();

  // False when a function was still running at the deadline; its thread ends when it returns.
  // Not to be called with Python's lock held: a thread needs it to end.
  bool stop(Deadline deadline);

 private:
  struct Thread;
  struct State {
    std::vector<std::shared_ptr<Thread>> threads;
    std::size_t turn = 0;
    bool stopped = false;
  };
  const std::size_t most_;
  Guarded<State> state_;
};

}  // namespace hawser::engine
