#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

#include "hawser/base/future.h"
#include "hawser/node/call_context.h"
#include "hawser/node/node.h"

// Coroutines with futures: `co_await node.call<T>(...)`, and functions that return Future<T> and
// use co_await or co_return. A coroutine starts at once on its caller's thread; after a wait it
// goes on a thread of the node, still serving the same call.
//
//   node.serve("twice", [&node](at::Tensor x) -> hawser::Future<at::Tensor> {
//     at::Tensor once = co_await node.call<at::Tensor>("worker", "scale", x, 2.0);
//     co_return once * 2;
//   });
//
// As with every coroutine, parameters taken by reference and the captures of a lambda must outlive
// it; those of a function that is served do.
namespace hawser {

namespace detail {

template <class T>
class FutureAwaiter {
 public:
  explicit FutureAwaiter(Future<T> future) : future_(std::move(future)) {}

  bool await_ready() const { return future_.done(); }
  void await_suspend(std::coroutine_handle<> waiting) {
    if (const CallContext* serving = current_call()) context_ = *serving;
    future_.on_settled([waiting, context = context_](const auto&) {
      const ServingCall serving(context ? &*context : nullptr);
      waiting.resume();
    });
  }
  T await_resume() { return future_.get(); }

 private:
  Future<T> future_;
  std::optional<CallContext> context_;
};

template <class T>
class CoroutinePromiseBase {
 public:
  CoroutinePromiseBase() : pair_(Promise<T>::pair(Node::current().scheduler())) {}

  Future<T> get_return_object() { return pair_.future; }
  std::suspend_never initial_suspend() noexcept { return {}; }
  std::suspend_never final_suspend() noexcept { return {}; }
  void unhandled_exception() {
    try {
      throw;
    } catch (const Error& error) {
      pair_.promise.fail(error);
    } catch (...) {
      pair_.promise.fail(remote_error(std::current_exception()));
    }
  }

 protected:
  typename Promise<T>::Pair pair_;
};

template <class T>
class CoroutinePromise : public CoroutinePromiseBase<T> {
 public:
  void return_value(T value) { this->pair_.promise.succeed(std::move(value)); }
};
template <>
class CoroutinePromise<void> : public CoroutinePromiseBase<void> {
 public:
  void return_void() { this->pair_.promise.succeed(); }
};

}  // namespace detail

template <class T>
auto operator co_await(Future<T> future) {
  return detail::FutureAwaiter<T>(std::move(future));
}

}  // namespace hawser

template <class T, class... Args>
struct std::coroutine_traits<hawser::Future<T>, Args...> {
  using promise_type = hawser::detail::CoroutinePromise<T>;
};
