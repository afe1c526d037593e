#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/event.h"
#include "hawser/base/guarded.h"
#include "hawser/base/result.h"
#include "hawser/base/scheduler.h"
#include "hawser/base/unique_function.h"

namespace hawser {

template <class T>
class Future;
template <class T>
class Promise;

namespace detail {

// void has no values; futures of it carry this.
struct Nothing {};
template <class T>
using Stored = std::conditional_t<std::is_void_v<T>, Nothing, T>;

template <class T>
struct FutureState {
  using Outcome = Result<Stored<T>>;
  struct Interested {
    bool told = false;  // the outcome is there; new callbacks are posted at once
    std::vector<UniqueFunction<void(const Outcome&)>> callbacks;
    UniqueFunction<void()> canceller;
  };

  explicit FutureState(std::shared_ptr<Scheduler> where, Deadline by)
      : scheduler(std::move(where)), deadline(by) {}

  const std::shared_ptr<Scheduler> scheduler;
  const Deadline deadline;
  Event settled;
  std::atomic<bool> claimed{false};  // by the one who settles it
  std::optional<Outcome> outcome;    // written by that one, before `settled`
  Guarded<Interested> interested;

  // Exactly one settle() has an effect.
  static bool settle(const std::shared_ptr<FutureState>& self, Outcome outcome) {
    if (self->claimed.exchange(true, std::memory_order_acq_rel)) return false;
    self->outcome.emplace(std::move(outcome));
    self->settled.set();  // first: a callback finds the future done()
    auto interested = self->interested.lock();
    interested->told = true;
    const UniqueFunction<void()> dying = std::move(interested->canceller);
    auto callbacks = std::move(interested->callbacks);
    interested.unlock();
    for (auto& callback : callbacks) {
      self->scheduler->post(
          [self, callback = std::move(callback)]() mutable { callback(*self->outcome); });
    }
    return true;
  }

  static void on_settled(const std::shared_ptr<FutureState>& self,
                         UniqueFunction<void(const Outcome&)> callback) {
    {
      auto interested = self->interested.lock();
      if (!interested->told) {
        interested->callbacks.push_back(std::move(callback));
        return;
      }
    }
    self->scheduler->post(
        [self, callback = std::move(callback)]() mutable { callback(*self->outcome); });
  }

  static void cancel(const std::shared_ptr<FutureState>& self) {
    UniqueFunction<void()> canceller = std::move(self->interested.lock()->canceller);
    if (canceller) canceller();
  }

  // Dropped, as by settle(), when the outcome is there already. Set once.
  static void set_canceller(const std::shared_ptr<FutureState>& self,
                            UniqueFunction<void()> canceller) {
    auto interested = self->interested.lock();
    if (!self->claimed.load(std::memory_order_acquire)) {
      interested->canceller = std::move(canceller);
    }
    interested.unlock();
  }
};

}  // namespace detail

// The result of a call that may still be on its way. A cheap handle: copies share one result.
// Thread-safe. Dropping every handle does not cancel the call.
template <class T>
class Future {
 public:
  using Outcome = Result<detail::Stored<T>>;

  Future() = default;

  bool valid() const { return state_ != nullptr; }
  bool done() const { return state_->settled.happened(); }

  // Waits, at most until the deadline the call was given, and returns the value or throws the
  // Error. May be called any number of times, from any thread, inside handlers too. What had not
  // come when the process was forked does not come to the child: waiting there throws
  // Error(Invalid) at once.
  T get() const { return value_of(wait()); }

  // Waits, and does not throw the Error that is the outcome.
  const Outcome& wait() const {
    if (!state_->settled.happened()) state_->scheduler->wait(state_->settled, Deadline::never());
    return *state_->outcome;
  }
  // False when the result is not there after `patience`. Gives up waiting, not the call.
  bool wait_for(Duration patience) const {
    return wait_until(Deadline::after(SteadyClock(), patience));
  }
  bool wait_until(Deadline deadline) const {
    return state_->settled.happened() || state_->scheduler->wait(state_->settled, deadline);
  }

  // Calls `next` with the value once it is there, on a thread of the node; what it returns, or
  // throws, settles the returned future. An error skips `next` and is passed on; cancelling the
  // returned future cancels this one too.
  template <class F>
  auto then(F next) const {
    using R = typename decltype(invoked_type(next))::type;
    auto [promise, future] = Promise<R>::pair(state_->scheduler, state_->deadline);
    future.set_canceller([upstream = std::weak_ptr(state_)] {
      if (const auto state = upstream.lock()) detail::FutureState<T>::cancel(state);
    });
    detail::FutureState<T>::on_settled(
        state_, [promise = std::move(promise), next = std::move(next)](const Outcome& o) mutable {
          if (!o.ok()) return promise.fail(o.error());
          promise.settle_with([&] {
            if constexpr (std::is_void_v<T>) {
              return next();
            } else {
              return next(o.value());
            }
          });
        });
    return future;
  }

  // Calls `callback` with the outcome, value or error, on a thread of the node.
  void on_settled(UniqueFunction<void(const Outcome&)> callback) const {
    detail::FutureState<T>::on_settled(state_, std::move(callback));
  }

  // The call is completed with Error(Cancelled) at once and the callee is told. No effect when it
  // is already settled, or cannot be cancelled.
  void cancel() const { detail::FutureState<T>::cancel(state_); }
  // For whoever made the promise: what cancel() does. It must lead to the promise being settled.
  void set_canceller(UniqueFunction<void()> canceller) const {
    detail::FutureState<T>::set_canceller(state_, std::move(canceller));
  }

 private:
  friend class Promise<T>;
  explicit Future(std::shared_ptr<detail::FutureState<T>> state) : state_(std::move(state)) {}

  static T value_of(const Outcome& outcome) {
    if (!outcome.ok()) throw outcome.error();
    if constexpr (!std::is_void_v<T>) return outcome.value();
  }
  template <class F>
  static auto invoked_type(F&) {
    if constexpr (std::is_void_v<T>) {
      return std::type_identity<std::invoke_result_t<F&>>{};
    } else {
      return std::type_identity<std::invoke_result_t<F&, const T&>>{};
    }
  }

  std::shared_ptr<detail::FutureState<T>> state_;
};

// The end that provides the result. Whoever drops it unsettled settles it with an error, so no
// future waits for nobody.
template <class T>
class Promise {
 public:
  struct Pair;
  static Pair pair(std::shared_ptr<Scheduler> scheduler, Deadline deadline = Deadline::never());

  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    std::swap(state_, other.state_);
    if (this != &other) Promise(std::move(other));  // what was promised before is dropped
    return *this;
  }
  ~Promise() {
    if (state_ && !state_->claimed.load(std::memory_order_relaxed)) {
      fail(Error(ErrorKind::Cancelled, "the result was dropped before it was produced"));
    }
  }

  template <class U = detail::Stored<T>>
  void succeed(U&& value = U{}) {
    detail::FutureState<T>::settle(state_, detail::Stored<T>(std::forward<U>(value)));
  }
  void fail(Error error) { detail::FutureState<T>::settle(state_, std::move(error)); }

  // With what `produce` returns or throws. What is thrown and is not an Error becomes
  // Error(Remote).
  template <class F>
  void settle_with(F produce) {
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
        produce();
        succeed();
      } else {
        succeed(produce());
      }
    } catch (const Error& error) {
      fail(error);
    } catch (const std::exception& error) {
      fail(Error(ErrorKind::Remote, error.what()));
    } catch (...) {
      fail(Error(ErrorKind::Remote, "something that is not a std::exception was thrown"));
    }
  }

 private:
  explicit Promise(std::shared_ptr<detail::FutureState<T>> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::FutureState<T>> state_;
};

template <class T>
struct Promise<T>::Pair {
  Promise<T> promise;
  Future<T> future;
};

template <class T>
typename Promise<T>::Pair Promise<T>::pair(std::shared_ptr<Scheduler> scheduler,
                                           Deadline deadline) {
  auto state = std::make_shared<detail::FutureState<T>>(std::move(scheduler), deadline);
  Promise<T> promise(state);
  return Pair{std::move(promise), Future<T>(std::move(state))};
}

}  // namespace hawser
