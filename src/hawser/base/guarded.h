#pragma once

#include <atomic>
#include <climits>
#include <mutex>
#include <utility>

#include "hawser/base/clock.h"
#include "hawser/base/futex.h"
#include "hawser/base/mutex.h"

namespace hawser {

// A lock that owns what it protects: the data cannot be reached without it.
//
//   Guarded<Table> table;
//   table.lock()->insert(x);                 // for one expression
//   auto held = table.lock();                // for a scope
//   changed.wait(held, deadline, [&] { return held->ready; });
//
// Rule of the house: no user code and no foreign destructor runs under a lock. Move such things
// out of the guarded data and let them die after the lock is released.
template <class T>
class Guarded {
 public:
  class Held {
   public:
    T* operator->() const { return data_; }
    T& operator*() const { return *data_; }
    void lock() { lock_.lock(); }
    void unlock() { lock_.unlock(); }

   private:
    friend class Guarded;
    Held(Mutex& mutex, T& data) : lock_(mutex), data_(&data) {}
    std::unique_lock<Mutex> lock_;
    T* data_;
  };

  Guarded() = default;
  explicit Guarded(T data) : data_(std::move(data)) {}
  template <class... Args>
  explicit Guarded(std::in_place_t, Args&&... args) : data_(std::forward<Args>(args)...) {}

  Held lock() { return Held(mutex_, data_); }

 private:
  Mutex mutex_;
  T data_{};
};

// A condition on guarded data. Notify after changing the data, with or without the lock.
class Condition {
 public:
  template <class Held, class Predicate>
  void wait(Held& held, Predicate ready) {
    wait_until(held, Deadline::never(), ready);
  }
  // False when the time passed and `ready` is still false.
  template <class Held, class Predicate>
  bool wait_until(Held& held, Deadline deadline, Predicate ready) {
    while (!ready()) {
      if (!deadline.is_never() && deadline.passed(std::chrono::steady_clock::now())) return false;
      // Read under the lock, so a notice after this change of the data changes it again.
      const std::uint32_t seen = notices_.load(std::memory_order_relaxed);
      sleepers_.fetch_add(1, std::memory_order_relaxed);
      held.unlock();
      futex_wait(notices_, seen, deadline);
      held.lock();
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    return true;
  }
  void notify_one() { notify(1); }
  void notify_all() { notify(INT_MAX); }

 private:
  void notify(int how_many) {
    notices_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake(&notices_, how_many);
  }

  std::atomic<std::uint32_t> notices_{0};
  std::atomic<std::uint32_t> sleepers_{0};  // changed under the lock
};

}  // namespace hawser
