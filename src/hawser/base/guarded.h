#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

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
    std::unique_lock<std::mutex>& mutex_lock() { return lock_; }
    void unlock() { lock_.unlock(); }

   private:
    friend class Guarded;
    Held(std::mutex& mutex, T& data) : lock_(mutex), data_(&data) {}
    std::unique_lock<std::mutex> lock_;
    T* data_;
  };

  Guarded() = default;
  explicit Guarded(T data) : data_(std::move(data)) {}

  Held lock() { return Held(mutex_, data_); }

 private:
  std::mutex mutex_;
  T data_{};
};

// A condition on guarded data.
class Condition {
 public:
  template <class Held, class Predicate>
  void wait(Held& held, Predicate ready) {
    condition_.wait(held.mutex_lock(), ready);
  }
  // False when the time passed and `ready` is still false.
  template <class Held, class Predicate>
  bool wait_until(Held& held, std::chrono::steady_clock::time_point deadline, Predicate ready) {
    return condition_.wait_until(held.mutex_lock(), deadline, ready);
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace hawser
