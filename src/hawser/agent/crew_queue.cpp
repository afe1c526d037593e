// The crew's queue: tasks that did not come to a hand by the poll seat, and requests for which no
// thread was free.

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hawser/agent/crew.h"
#include "hawser/base/log.h"

namespace hawser::agent {
namespace {

class FunctionTask final : public Task {
 public:
  FunctionTask(UniqueFunction<void()> function, bool brief)
      : function_(std::move(function)), brief_(brief) {}
  void run() override {
    try {
      function_();
    } catch (const std::exception& error) {
      log::Line(log::Level::Error, "agent") << "a callback threw: " << error.what();
    } catch (...) {
      log::Line(log::Level::Error, "agent") << "a callback threw something";
    }
  }
  // There is always somebody who waits for what a callback does: it is run where it was refused.
  void refuse(const Error&) override { run(); }
  bool may_be_shed() const override { return false; }
  bool brief() const override { return brief_; }

 private:
  UniqueFunction<void()> function_;
  const bool brief_;
};

}  // namespace

void Crew::submit(std::shared_ptr<Task> task) { enqueue(std::move(task), true); }

void Crew::post(UniqueFunction<void()> task) {
  enqueue(std::make_shared<FunctionTask>(std::move(task), /*brief=*/false), true);
}

void Crew::post_brief(UniqueFunction<void()> task) {
  enqueue(std::make_shared<FunctionTask>(std::move(task), /*brief=*/true), true);
}

void Crew::post_for(std::uint64_t work, UniqueFunction<void()> task, bool brief) {
  auto posted = std::make_shared<FunctionTask>(std::move(task), brief);
  Helper* const helper = this_helper();
  if (!helper || helper->work_ != work) return enqueue(std::move(posted), true);
  helper->tasks_.push_back(std::move(posted));
}

void Crew::post_last(UniqueFunction<void()> task) {
  Hand* const hand = this_hand();
  if (!hand) return post(std::move(task));
  hand->left_behind.push_back(std::make_shared<FunctionTask>(std::move(task), /*brief=*/true));
}

void Crew::enqueue(std::shared_ptr<Task> task, bool announce) {
  announce = announce && !looks_at_queue_next();
  std::optional<Error> refusal;
  {
    auto roster = roster_.lock();
    auto& queue = roster->queue;
    if (roster->stopping) {
      refusal.emplace(ErrorKind::Invalid, "the node is closed");
    } else if (queue.size() >= options_.max_queued && task->may_be_shed()) {
      refusal.emplace(ErrorKind::Overloaded,
                      "max_requests_queued (" + std::to_string(options_.max_queued) + ") reached");
    } else {
      queue.push_back(task);
      queued_.store(queue.size(), std::memory_order_seq_cst);
      if (no_thread_free() && waits_for_itself(*roster, *task)) {
        queue.pop_back();
        queued_.store(queue.size(), std::memory_order_seq_cst);
        refusal.emplace(thread_limit_error());
      } else if (announce && roster->parked > roster->summoned) {
        ++roster->summoned;
        summons_.notify_one();
        announce = false;
      }
    }
  }
  if (refusal) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    task->refuse(*refusal);
  } else if (announce) {
    call_hand();
  }
}

// A hand that has the seat looks again at what there is to do before it leaves; a waiter does not.
void Crew::call_hand() {
  const auto state = seat_.nudge();
  if (state != Seat::State::HandPolls && state != Seat::State::HandAway) bell_->ring();
}

bool Crew::queue_can_be_served() const {
  return queued_.load(std::memory_order_seq_cst) != 0 && !no_thread_free();
}

// The next task, for a hand that then has stepped away.
std::shared_ptr<Task> Crew::take_queued() {
  if (no_thread_free()) return nullptr;
  auto roster = roster_.lock();
  if (roster->queue.empty()) return nullptr;
  if (!step_away(*roster, /*replaced=*/false)) {
    roster.unlock();
    refuse_what_waits_for_itself();
    return nullptr;
  }
  auto task = std::move(roster->queue.front());
  roster->queue.pop_front();
  queued_.store(roster->queue.size(), std::memory_order_seq_cst);
  return task;
}

// For a hand that is not seated.
bool Crew::run_queued(Hand& hand) {
  if (queued_.load(std::memory_order_seq_cst) == 0) return false;
  auto task = take_queued();
  if (!task) return false;
  run_task(hand, std::move(task));
  return true;
}

bool Crew::waits_for_itself(const Roster& roster, const Task& task) const {
  return task.chain() != ChainId::None &&
         std::any_of(roster.hands.begin(), roster.hands.end(), [&](const Hand& hand) {
           return hand.chain.load(std::memory_order_seq_cst) == number(task.chain());
         });
}

Error Crew::thread_limit_error() const {
  return Error(ErrorKind::Overloaded,
               "all " + std::to_string(options_.max_threads) +
                   " threads (max_threads) are taken, and one of them may wait for this call");
}

// CREW-2: no thread is free, so what waits for one of its own kind would wait for ever.
void Crew::refuse_what_waits_for_itself() {
  std::vector<std::shared_ptr<Task>> refused;
  {
    auto roster = roster_.lock();
    if (!no_thread_free()) return;
    auto& queue = roster->queue;
    const auto kept = std::stable_partition(queue.begin(), queue.end(), [&](const auto& task) {
      return !waits_for_itself(*roster, *task);
    });
    refused.assign(std::make_move_iterator(kept), std::make_move_iterator(queue.end()));
    queue.erase(kept, queue.end());
    queued_.store(queue.size(), std::memory_order_seq_cst);
  }
  refused_.fetch_add(refused.size(), std::memory_order_relaxed);
  for (auto& task : refused) task->refuse(thread_limit_error());
}

}  // namespace hawser::agent
