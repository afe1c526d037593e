#pragma once

#include <torch/csrc/autograd/graph_task.h>

#include <functional>
#include <memory>
#include <vector>

#include "hawser/base/guarded.h"
#include "hawser/base/unique_function.h"

namespace hawser::engine {

// Runs the functions of one graph task of libtorch's engine on threads that are lent for it. A
// thread is a CPU thread of the engine only while it runs functions, so the thread that received a
// gradient can go on with it at once: no other has to be woken.
//
//   RUN-1  At most one thread runs functions of a task. Whoever adds one while nobody does asks for
//          a thread.
//   RUN-2  A thread leaves when nothing is ready to run. Where functions run on other devices too
//          it stays until the task has ended: the engine's threads of those devices hand functions
//          back to it without telling anybody.
//
// Thread-safe.
class TaskRunner : public std::enable_shared_from_this<TaskRunner> {
 public:
  // Runs what it is given soon, on another thread or after the caller has returned.
  using Lend = std::function<void(UniqueFunction<void()>)>;
  enum class Devices { Cpu, Others };
  struct Ready {
    c10::intrusive_ptr<torch::autograd::Node> function;
    torch::autograd::variable_list inputs;
  };

  TaskRunner(std::shared_ptr<torch::autograd::GraphTask> task, Devices devices, Lend lend)
      : task_(std::move(task)), devices_(devices), lend_(std::move(lend)) {}
  TaskRunner(const TaskRunner&) = delete;

  // The function is among the task's outstanding ones already.
  void add(Ready ready);

  // For a task whose future has been failed. Adds nothing more; `stopped` is called when no
  // function runs: now, or by the thread that runs one.
  void stop(UniqueFunction<void()> stopped);

 private:
  struct State {
    std::vector<Ready> ready;                            // until a thread has come
    bool running = false;                                // a thread has come, or has been asked for
    std::shared_ptr<torch::autograd::ReadyQueue> queue;  // of the thread that has come
    bool closed = false;
    UniqueFunction<void()> stopped;
  };

  void run();
  bool leave();
  void push(torch::autograd::ReadyQueue& queue, Ready ready);

  const std::shared_ptr<torch::autograd::GraphTask> task_;
  const Devices devices_;
  const Lend lend_;
  Guarded<State> state_;
};

}  // namespace hawser::engine
