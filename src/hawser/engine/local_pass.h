#pragma once

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/autograd/graph_task.h>

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hawser/autograd/ids.h"
#include "hawser/base/guarded.h"
#include "hawser/engine/anomaly_mode.h"
#include "hawser/engine/functions.h"
#include "hawser/engine/gradients.h"
#include "hawser/engine/task_runner.h"

namespace torch::distributed::autograd {
class DistAutogradContext;
}
namespace torch::autograd {
struct AccumulateGrad;
struct GraphRoot;
}  // namespace torch::autograd

namespace hawser::engine {

using autograd::PassId;

// One node's part of a backward pass: a graph task of libtorch's engine that starts from the roots,
// if they are here, and from send functions whose gradients come from elsewhere.
//
// explore(), start(), deliver() and abort() are called one after the other. Functions run on
// threads that are lent for it (TaskRunner), and what they report is reported there.
class LocalPass : public std::enable_shared_from_this<LocalPass> {
 public:
  class Events {
   public:
    virtual ~Events() = default;
    virtual void gradients_leave(PassId pass, MessageId recv, Tensors gradients) = 0;
    // Exactly once after start(). `warnings` are those of the functions that ran; in anomaly mode
    // they say where in the forward pass the function that failed came from.
    virtual void part_ended(PassId pass, std::exception_ptr failure, std::string warnings) = 0;
    // Runs it soon, on another thread or after the caller has returned.
    virtual void lend_thread(PassId pass, UniqueFunction<void()> work) = 0;
  };

  LocalPass(PassId pass, ContextId context, std::weak_ptr<Events> events);
  ~LocalPass();
  LocalPass(const LocalPass&) = delete;

  PassId id() const { return id_; }
  ContextId context() const { return context_; }

  // On the thread that began the pass, whose thread-local state the functions run with.
  void begin_at(const Tensors& roots);

  // Walks the graph from the roots, if any, or from these; the recv functions of this context that
  // are reached for the first time.
  std::vector<MessageId> explore_roots();
  std::vector<MessageId> explore(const c10::intrusive_ptr<SendFunction>& start);

  // Everything to be run has been explored. Each of `awaited` runs once its gradients are
  // delivered.
  void start(bool from_roots, autograd::RunOptions options,
             std::unordered_map<MessageId, c10::intrusive_ptr<SendFunction>> awaited);
  void deliver(MessageId send, Tensors gradients);
  // Stops; part_ended() is called when no function runs any more. No effect before start() and
  // after the end.
  void abort(const std::string& why);

  // Of the leaves that were reached. To be read after the end.
  Gradients collected() const;

  // The pass on whose behalf this thread runs a function. Throws when there is none.
  static std::shared_ptr<LocalPass> running();
  // Of a recv function that runs in this pass.
  void send(const RecvFunction& function, Tensors gradients);

 private:
  class Collector;
  enum class State { Idle, Running, Ended };

  std::vector<MessageId> walk(torch::autograd::Node* start);
  void collect(torch::autograd::AccumulateGrad& leaf, at::Tensor gradient);
  void ended(std::exception_ptr failure);

  const PassId id_;
  const ContextId context_;
  const std::weak_ptr<Events> events_;
  // Where libtorch's DDP looks for gradients, if it is used inside the pass.
  const std::shared_ptr<torch::distributed::autograd::DistAutogradContext> bag_;

  c10::intrusive_ptr<torch::autograd::Node> root_;
  std::optional<at::ThreadLocalState> thread_state_;
  std::unordered_map<torch::autograd::Node*, int> dependencies_;
  std::unordered_set<torch::autograd::Node*> nodes_;
  std::vector<torch::autograd::AccumulateGrad*> leaves_;
  std::vector<c10::intrusive_ptr<SendFunction>> starts_;  // keep what was walked alive

  std::unordered_map<MessageId, c10::intrusive_ptr<SendFunction>> awaited_;
  std::shared_ptr<torch::autograd::GraphTask> task_;
  std::shared_ptr<TaskRunner> runner_;
  std::optional<AnomalyScope> anomaly_scope_;  // from start() to the end
  bool aborted_ = false;                       // the runner tells the end
  Guarded<State> state_{State::Idle};
};

}  // namespace hawser::engine
