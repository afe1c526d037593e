#pragma once

#include <utility>

#include "hawser/base/clock.h"
#include "hawser/base/event.h"
#include "hawser/base/unique_function.h"

namespace hawser {

// Where user code runs and how a thread waits for the network.
//
// CALL-1: handlers, callbacks and foreign destructors never run on a thread that is blocked in a
// wait. A thread in wait() may move bytes and complete replies; what it finds to run it hands over,
// unless it has come to help with just that (CREW-5).
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // Runs `task` soon, on a thread of the scheduler; once it has stopped, here or on the thread that
  // stops it.
  virtual void post(UniqueFunction<void()> task) = 0;
  // As post(), for what the threads of the scheduler may be waiting for, all of them: it runs
  // beside them, one at a time.
  virtual void post_beside(UniqueFunction<void()> task) { post(std::move(task)); }
  // Returns when the event has happened (true) or the deadline has passed (false). Throws
  // Error(Invalid) at once in a forked child of the process that the scheduler belongs to.
  virtual bool wait(Event& event, Deadline deadline) = 0;
};

// How long this thread has been in wait(), all in all: that is not time that it has worked.
Duration time_waited();

// Adds to that while it lives.
class WaitingHere {
 public:
  WaitingHere() : since_(std::chrono::steady_clock::now()) {}
  ~WaitingHere();
  WaitingHere(const WaitingHere&) = delete;

 private:
  const TimePoint since_;
};

}  // namespace hawser
