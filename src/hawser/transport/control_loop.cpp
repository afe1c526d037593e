#include "hawser/transport/control_loop.h"

#include <pthread.h>
#include <signal.h>

#include <asio/post.hpp>
#include <memory>

namespace hawser::transport {

// A task somebody waits for. Whoever sets `claimed` first runs it: the control thread, or the
// waiter once there is no control thread any more.
struct ControlLoop::Errand {
  UniqueFunction<void()> task;
  std::atomic<bool> claimed{false};
  bool done = false;  // guarded by life_
};

void ControlLoop::start() {
  keep_running_.emplace(context_.get_executor());
  *life_.lock() = Life::Running;
  // Signals belong to the program's own threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    control_thread_.store(std::this_thread::get_id());
    ::pthread_setname_np(::pthread_self(), "hawser-control");
    context_.run();
  });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ControlLoop::stop() {
  if (!thread_.joinable()) return;
  keep_running_.reset();
  context_.stop();
  thread_.join();
  control_thread_.store({});
  *life_.lock() = Life::Stopped;
  life_changed_.notify_all();
  ByTime dropped;
  auto schedule = schedule_.lock();
  dropped.swap(schedule->by_time);
  schedule->by_id.clear();
  schedule.unlock();
}

Timers::Id ControlLoop::schedule(TimePoint at, UniqueFunction<void()> task) {
  auto schedule = schedule_.lock();
  const Id id{schedule->next_id++};
  const auto entry = schedule->by_time.emplace(at, std::pair(id, std::move(task)));
  schedule->by_id.emplace(static_cast<std::uint64_t>(id), entry);
  if (at >= schedule->armed_for) return id;  // the timer will look at the map when it fires
  schedule->armed_for = at;
  schedule.unlock();
  asio::post(context_, [this] { rearm(); });
  return id;
}

void ControlLoop::cancel(Id id) {
  UniqueFunction<void()> dropped;  // dies after the lock
  auto schedule = schedule_.lock();
  const auto found = schedule->by_id.find(static_cast<std::uint64_t>(id));
  if (found == schedule->by_id.end()) return;
  dropped = std::move(found->second->second.second);
  schedule->by_time.erase(found->second);
  schedule->by_id.erase(found);
  schedule.unlock();
}

void ControlLoop::post(UniqueFunction<void()> task) { asio::post(context_, std::move(task)); }

void ControlLoop::run_alone(UniqueFunction<void()> task) {
  if (on_control_thread()) return task();
  auto errand = std::make_shared<Errand>();
  errand->task = std::move(task);
  auto life = life_.lock();
  if (*life == Life::Running) {
    asio::post(context_, [this, errand] {
      if (errand->claimed.exchange(true)) return;
      errand->task();
      auto held = life_.lock();
      errand->done = true;
      life_changed_.notify_all();
    });
    life_changed_.wait(life, [&] { return errand->done || *life == Life::Stopped; });
  }
  life.unlock();
  if (!errand->claimed.exchange(true)) errand->task();
}

// The moment is read again here: the posts of two schedule() calls may arrive in either order.
void ControlLoop::rearm() {
  const TimePoint at = schedule_.lock()->armed_for;
  if (at == TimePoint::max()) return;
  timer_.expires_at(at);
  timer_.async_wait([this](asio::error_code cancelled) {
    if (!cancelled) run_due();
  });
}

// One by one, so that a task that is due can still be cancelled by the one before it.
void ControlLoop::run_due() {
  const TimePoint now = std::chrono::steady_clock::now();
  while (auto task = take_due(now)) task();
  {
    auto schedule = schedule_.lock();
    schedule->armed_for =
        schedule->by_time.empty() ? TimePoint::max() : schedule->by_time.begin()->first;
  }
  rearm();
}

UniqueFunction<void()> ControlLoop::take_due(TimePoint now) {
  auto schedule = schedule_.lock();
  const auto first = schedule->by_time.begin();
  if (first == schedule->by_time.end() || first->first > now) return nullptr;
  auto task = std::move(first->second.second);
  schedule->by_id.erase(static_cast<std::uint64_t>(first->second.first));
  schedule->by_time.erase(first);
  return task;
}

}  // namespace hawser::transport
