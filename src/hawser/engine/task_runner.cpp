#include "hawser/engine/task_runner.h"

#include <torch/csrc/autograd/engine.h>

namespace hawser::engine {
namespace {

using torch::autograd::Engine;
using torch::autograd::GraphTask;
using torch::autograd::InputBuffer;
using torch::autograd::Node;
using torch::autograd::NodeTask;
using torch::autograd::ReadyQueue;
using torch::autograd::variable_list;

// The queue from which this thread runs functions, now and whenever the program uses the engine on
// it: queues must not be shared between threads, or reentrant passes wait for ever.
const std::shared_ptr<ReadyQueue>& queue_of_this_thread() {
  struct Access : Engine {
    static auto initialiser() { return &Access::init_local_ready_queue; }
  };
  thread_local const auto queue = std::make_shared<ReadyQueue>();
  (Engine::get_default_engine().*Access::initialiser())(queue);
  return queue;
}

// Does nothing. In a task of its own it comes last in the queue, having the lowest number there is,
// and so has the engine let the thread go.
class Nothing final : public Node {
 public:
  Nothing() : Node(/*sequence_nr=*/0) {}
  variable_list apply(variable_list&&) override { return {}; }
};

std::shared_ptr<GraphTask> empty_task(const std::shared_ptr<ReadyQueue>& queue) {
  return std::make_shared<GraphTask>(/*keep_graph=*/false, /*grad_mode=*/false,
                                     /*reentrant_depth=*/0, queue, c10::SmallVector<Node*, 4>{},
                                     /*exit_on_error=*/true);
}

void run_until_nothing_is_ready(const std::shared_ptr<ReadyQueue>& queue) {
  Engine::get_default_engine().execute_with_graph_task(
      empty_task(queue), c10::make_intrusive<Nothing>(), InputBuffer(0));
}

void run_until_ended(const std::shared_ptr<GraphTask>& task) {
  const auto nothing = c10::make_intrusive<Nothing>();
  task->exec_info_[nothing.get()].needed_ = true;
  Engine::get_default_engine().execute_with_graph_task(task, nothing, InputBuffer(0));
}

}  // namespace

void TaskRunner::add(Ready ready) {
  {
    auto state = state_.lock();
    if (state->closed) return;
    if (state->queue) return push(*state->queue, std::move(ready));
    state->ready.push_back(std::move(ready));
    if (std::exchange(state->running, true)) return;
  }
  lend_([self = shared_from_this()] { self->run(); });
}

void TaskRunner::stop(UniqueFunction<void()> stopped) {
  {
    auto state = state_.lock();
    state->closed = true;
    // The engine may be waiting for something to run.
    if (state->queue) state->queue->push(NodeTask(task_, nullptr, InputBuffer(0)));
    if (state->running) {
      state->stopped = std::move(stopped);
      return;
    }
  }
  stopped();
}

void TaskRunner::run() {
  const auto& queue = queue_of_this_thread();
  task_->cpu_ready_queue_ = queue;
  {
    auto state = state_.lock();
    state->queue = queue;
    for (Ready& each : state->ready) push(*queue, std::move(each));
    state->ready.clear();
  }
  if (devices_ == Devices::Others) run_until_ended(task_);
  do run_until_nothing_is_ready(queue);
  while (!leave());
}

// False when something has been added meanwhile.
bool TaskRunner::leave() {
  UniqueFunction<void()> stopped;
  {
    auto state = state_.lock();
    if (!state->queue->empty()) return false;
    state->queue.reset();
    state->running = false;
    stopped = std::move(state->stopped);
  }
  if (stopped) stopped();
  return true;
}

void TaskRunner::push(ReadyQueue& queue, Ready ready) {
  queue.push(NodeTask(task_, std::move(ready.function), InputBuffer(std::move(ready.inputs))),
             /*incrementOutstandingTasks=*/false);
}

}  // namespace hawser::engine
