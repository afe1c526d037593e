#include "hawser/engine/local_pass.h"

#include <ATen/ops/ones_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/distributed/autograd/context/context.h>

#include <algorithm>
#include <stdexcept>

#include "hawser/base/error.h"

namespace hawser::engine {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::GraphTask;
using torch::autograd::Node;
using torch::autograd::variable_list;
using torch::distributed::autograd::DistAutogradContext;
using torch::distributed::autograd::ThreadLocalDistAutogradContext;

// By the number of the graph task, which is all that libtorch says about what a thread runs.
Guarded<std::unordered_map<std::uint64_t, std::weak_ptr<LocalPass>>>& passes_by_task() {
  static auto* const passes =
      new Guarded<std::unordered_map<std::uint64_t, std::weak_ptr<LocalPass>>>;
  return *passes;
}

class WarningText final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (!text.empty()) text += '\n';
    text += warning.msg();
  }
  std::string text;
};

// The engine has threads of its own for functions on accelerators.
TaskRunner::Devices devices_of(const std::unordered_set<Node*>& functions) {
  const auto on_cpu = [](Node* function) { return function->device().is_cpu(); };
  return std::all_of(functions.begin(), functions.end(), on_cpu) ? TaskRunner::Devices::Cpu
                                                                 : TaskRunner::Devices::Others;
}

std::string warnings_of(GraphTask& task) {
  WarningText collected;
  const c10::WarningUtils::WarningHandlerGuard guard(&collected);
  task.warning_handler_.replay_warnings();
  return std::move(collected.text);
}

}  // namespace

// Takes the gradient of a leaf instead of AccumulateGrad itself, which would add it to `.grad`.
class LocalPass::Collector final : public GraphTask::ExecInfo::Capture::GradCaptureHook {
 public:
  Collector(LocalPass& pass, AccumulateGrad& leaf) : pass_(pass), leaf_(leaf) {}
  at::Tensor operator()(const at::Tensor& gradient) override {
    pass_.collect(leaf_, gradient);
    return gradient;
  }

 private:
  LocalPass& pass_;  // owns the graph task, which owns this
  AccumulateGrad& leaf_;
};

LocalPass::LocalPass(PassId pass, ContextId context, std::weak_ptr<Events> events)
    : id_(pass),
      context_(context),
      events_(std::move(events)),
      bag_(std::make_shared<DistAutogradContext>(
          static_cast<std::int64_t>(autograd::number(context)))) {}

LocalPass::~LocalPass() {
  if (task_) passes_by_task().lock()->erase(task_->id_);
}

void LocalPass::begin_at(const Tensors& roots) {
  torch::autograd::edge_list edges;
  variable_list gradients;
  for (const at::Tensor& root : roots) {
    edges.push_back(torch::autograd::impl::gradient_edge(root));
    gradients.push_back(at::ones_like(root, at::MemoryFormat::Preserve));
  }
  root_ = c10::make_intrusive<torch::autograd::GraphRoot>(std::move(edges), std::move(gradients));
  thread_state_.emplace();
}

// ------------------------------------------------------------------------------- exploring

std::vector<MessageId> LocalPass::explore_roots() {
  return root_ ? walk(root_.get()) : std::vector<MessageId>{};
}

std::vector<MessageId> LocalPass::explore(const c10::intrusive_ptr<SendFunction>& start) {
  starts_.push_back(start);
  return walk(start.get());
}

// Every edge is counted once, when the function that it leaves is first met.
std::vector<MessageId> LocalPass::walk(Node* start) {
  std::vector<MessageId> recvs;
  if (!nodes_.insert(start).second) return recvs;
  std::vector<Node*> pending{start};
  while (!pending.empty()) {
    Node* const node = pending.back();
    pending.pop_back();
    for (const auto& edge : node->next_edges()) {
      Node* const next = edge.function.get();
      if (!next) continue;
      ++dependencies_[next];
      if (!nodes_.insert(next).second) continue;
      if (next->num_outputs() != 0) {
        pending.push_back(next);
      } else if (auto* leaf = dynamic_cast<AccumulateGrad*>(next)) {
        leaves_.push_back(leaf);
      } else if (auto* recv = dynamic_cast<RecvFunction*>(next)) {
        if (recv->context() == context_) recvs.push_back(recv->message());
      }
    }
  }
  return recvs;
}

// ------------------------------------------------------------------------------- running

void LocalPass::start(bool from_roots, autograd::RunOptions options,
                      std::unordered_map<MessageId, c10::intrusive_ptr<SendFunction>> awaited) {
  awaited_ = std::move(awaited);
  c10::SmallVector<Node*, 4> roots;
  if (from_roots) roots.push_back(root_.get());
  for (const auto& [message, function] : awaited_) roots.push_back(function.get());
  task_ =
      std::make_shared<GraphTask>(options.retain_graph, /*grad_mode=*/false, /*reentrant_depth=*/0,
                                  /*cpu_ready_queue=*/nullptr, std::move(roots),
                                  /*exit_on_error=*/true);
  task_->owner_ = torch::autograd::CPU_DEVICE;
  if (thread_state_) {
    task_->thread_locals_ = *thread_state_;
    task_->thread_locals_.set_grad_mode(false);
  }
  task_->dependencies_ = std::move(dependencies_);
  task_->nodes_in_graph_ = std::move(nodes_);
  task_->captured_vars_.resize(leaves_.size());
  task_->exec_info_.reserve(task_->nodes_in_graph_.size());
  for (Node* node : task_->nodes_in_graph_) task_->exec_info_[node].needed_ = true;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    auto& info = task_->exec_info_[leaves_[i]];
    info.needed_ = false;
    info.captures_ = std::make_unique<std::vector<GraphTask::ExecInfo::Capture>>();
    auto& capture = info.captures_->emplace_back(0, static_cast<int>(i));
    capture.DO_NOT_USE_DEPRECATED_register_capture_hook(
        std::make_unique<Collector>(*this, *leaves_[i]));
  }
  task_->outstanding_tasks_ = awaited_.size() + (from_roots ? 1 : 0);
  runner_ = std::make_shared<TaskRunner>(task_, devices_of(task_->nodes_in_graph_),
                                         [events = events_, id = id_](UniqueFunction<void()> work) {
                                           if (const auto lender = events.lock())
                                             lender->lend_thread(id, std::move(work));
                                         });
  passes_by_task().lock()->emplace(task_->id_, weak_from_this());
  anomaly_scope_.emplace(options.anomaly_mode);
  *state_.lock() = State::Running;
  task_->future_result_->addCallback([self = weak_from_this()](c10::ivalue::Future& future) {
    const auto pass = self.lock();
    if (pass && !pass->aborted_) pass->ended(future.hasError() ? future.exception_ptr() : nullptr);
  });
  if (from_roots) runner_->add({root_, {}});
}

void LocalPass::deliver(MessageId send, Tensors gradients) {
  const auto found = awaited_.find(send);
  if (!task_ || found == awaited_.end()) return;
  if (gradients.size() != found->second->num_outputs()) {
    return abort("a message of the pass has " + std::to_string(gradients.size()) +
                 " gradients for " + std::to_string(found->second->num_outputs()) + " tensors");
  }
  runner_->add({found->second, std::move(gradients)});
}

void LocalPass::abort(const std::string& why) {
  if (*state_.lock() != State::Running || aborted_) return;
  // libtorch runs no further function of a task that has failed.
  task_->has_error_ = true;
  if (task_->future_completed_.exchange(true)) return;  // the end is being told
  aborted_ = true;
  const auto failure = std::make_exception_ptr(std::runtime_error(why));
  task_->future_result_->setError(failure);
  runner_->stop([self = shared_from_this(), failure] { self->ended(failure); });
}

void LocalPass::ended(std::exception_ptr failure) {
  {
    auto state = state_.lock();
    if (*state != State::Running) return;
    *state = State::Ended;
  }
  anomaly_scope_.reset();
  if (const auto events = events_.lock()) {
    events->part_ended(id_, std::move(failure), warnings_of(*task_));
  }
}

std::shared_ptr<LocalPass> LocalPass::running() {
  const auto task = torch::autograd::get_current_graph_task_id();
  std::shared_ptr<LocalPass> pass;
  {
    auto passes = passes_by_task().lock();
    const auto found = passes->find(static_cast<std::uint64_t>(task));
    if (found != passes->end()) pass = found->second.lock();
  }
  if (!pass) {
    throw std::runtime_error(
        "the graph leads to tensors of another node, where only a distributed backward pass can "
        "go: use backward() of the distributed autograd context instead");
  }
  return pass;
}

void LocalPass::send(const RecvFunction& function, Tensors gradients) {
  if (function.context() != context_) {
    throw std::runtime_error("the graph has tensors that were received in another context (" +
                             autograd::to_string(function.context()) + ") than that of the pass (" +
                             autograd::to_string(context_) + ")");
  }
  if (const auto events = events_.lock()) {
    events->gradients_leave(id_, function.message(), std::move(gradients));
  }
}

// ------------------------------------------------------------------------------- leaves

void LocalPass::collect(AccumulateGrad& leaf, at::Tensor gradient) {
  const ThreadLocalDistAutogradContext for_ddp{std::shared_ptr<DistAutogradContext>(bag_)};
  variable_list gradients;
  gradients.push_back(std::move(gradient));
  for (const auto& hook : leaf.pre_hooks()) gradients = (*hook)(gradients);
  if (gradients.at(0).defined()) {
    // Also held by the engine: as an input of the leaf, and as what it is about to capture.
    constexpr std::size_t kExpectedReferences = 3;
    Gradients collected = bag_->getGradients();
    at::Tensor none;
    AccumulateGrad::accumulateGrad(
        leaf.variable, none, gradients[0], kExpectedReferences,
        [&](at::Tensor kept) { collected.insert_or_assign(leaf.variable, std::move(kept)); });
  }
  for (const auto& hook : leaf.post_hooks()) (*hook)({}, gradients);
}

Gradients LocalPass::collected() const { return bag_->getGradients(); }

}  // namespace hawser::engine
