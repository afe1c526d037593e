#pragma once

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <map>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "hawser/base/guarded.h"
#include "hawser/base/timers.h"

namespace hawser::transport {

// The control thread of a node: accepts, connects, shakes hands, and fires deadlines and
// heartbeats. It runs no user code and takes part in no data transfer, so it is always on time.
// Started once, stopped once.
class ControlLoop final : public Timers {
 public:
  ControlLoop() = default;
  ~ControlLoop() override { stop(); }

  void start();
  // Drops what has not run and joins the thread. Idempotent; not from the control thread itself,
  // and not from two threads at once.
  void stop();

  asio::io_context& context() { return context_; }
  bool on_control_thread() const { return std::this_thread::get_id() == control_thread_.load(); }

  Id schedule(TimePoint at, UniqueFunction<void()> task) override;
  void cancel(Id id) override;
  void post(UniqueFunction<void()> task) override;

  // Runs the task where no other task of this loop runs meanwhile, and returns when it has run: on
  // the control thread, or on the calling one if that is it or if the loop does not run.
  void run_alone(UniqueFunction<void()> task);

 private:
  using ByTime = std::multimap<TimePoint, std::pair<Id, UniqueFunction<void()>>>;
  struct Schedule {
    std::uint64_t next_id = 1;
    ByTime by_time;
    std::unordered_map<std::uint64_t, ByTime::iterator> by_id;
    TimePoint armed_for = TimePoint::max();
  };
  struct Errand;
  enum class Life { Fresh, Running, Stopped };

  void rearm();
  void run_due();
  UniqueFunction<void()> take_due(TimePoint now);

  asio::io_context context_{1};
  asio::steady_timer timer_{context_};  // control thread only
  Guarded<Schedule> schedule_;
  Guarded<Life> life_{Life::Fresh};
  Condition life_changed_;  // also: an errand is done
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> keep_running_;
  std::atomic<std::thread::id> control_thread_{};
  std::thread thread_;
};

}  // namespace hawser::transport
