// Members of libtorch's engine that its headers declare and its library does not export. Defined
// here they are ours alone (hidden visibility); libtorch's own code goes on using its own. The
// layouts come from the headers at compile time, so hawser refuses to load with another libtorch.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/warnings.h>

#include <atomic>
#include <utility>

namespace torch::autograd {
namespace {

// Far from the numbers that libtorch gives its own tasks, and such that an int holds them: that is
// what get_current_graph_task_id() returns.
std::uint64_t next_task_id() {
  constexpr std::uint32_t kFirst = 1u << 30;
  static std::atomic<std::uint32_t> count{0};
  return kFirst + count.fetch_add(1) % kFirst;
}

}  // namespace

GraphTask::GraphTask(bool keep_graph, bool grad_mode, int reentrant_depth,
                     std::shared_ptr<ReadyQueue> cpu_ready_queue,
                     c10::SmallVector<Node*, 4> graph_roots, bool exit_on_error)
    : keep_graph_(keep_graph),
      graph_roots_(std::move(graph_roots)),
      reentrant_depth_(reentrant_depth),
      exit_on_error_(exit_on_error),
      cpu_ready_queue_(std::move(cpu_ready_queue)),
      future_result_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))),
      id_(next_task_id()) {
  thread_locals_.set_grad_mode(grad_mode);
}

// A task whose pass is gone comes first: it is only thrown away.
int NodeTask::getReentrantDepth() const {
  const auto task = base_.lock();
  return task ? task->reentrant_depth_ : 0;
}

void ReadyQueue::push(NodeTask item, bool incrementOutstandingTasks) {
  {
    const std::lock_guard lock(mutex_);
    if (incrementOutstandingTasks) {
      if (const auto task = item.base_.lock()) ++task->outstanding_tasks_;
    }
    heap_.push(std::move(item));
  }
  not_empty_.notify_one();
}

bool ReadyQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return heap_.empty();
}

namespace utils {

void DelayWarningHandler::process(const c10::Warning& warning) {
  const std::lock_guard lock(mutex_);
  warnings_.push_back(warning);
}

void DelayWarningHandler::replay_warnings() {
  std::vector<c10::Warning> warnings;
  {
    const std::lock_guard lock(mutex_);
    warnings.swap(warnings_);
  }
  for (const c10::Warning& warning : warnings) c10::warn(warning);
}

}  // namespace utils
}  // namespace torch::autograd
