#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "hawser/base/future.h"
#include "hawser/node/briefness.h"
#include "hawser/node/call_context.h"
#include "hawser/node/kept_value.h"
#include "hawser/tensor/convert.h"

// How a typed C++ function becomes one that can be called from elsewhere.
namespace hawser {

// What a handler threw, as the caller will see it: Error(Remote), with the type's name as data.
Error remote_error(std::exception_ptr thrown);

// A function that is served. Immutable but for what is learnt about its duration.
class Function {
 public:
  using Invoke = std::function<void(const CallContext&)>;

  Function(std::string name, std::string signature, Invoke invoke)
      : name_(std::move(name)), signature_(std::move(signature)), invoke_(std::move(invoke)) {}

  const std::string& name() const { return name_; }
  const std::string& signature() const { return signature_; }  // "(Tensor, float) -> Tensor"

  // Runs it and answers the call, now or later. Does not throw.
  void run(const CallContext& context);

  // It has returned within microseconds every time lately.
  bool is_brief() const { return briefness_.is_brief(); }

 private:
  void invoke(const CallContext& context);

  const std::string name_;
  const std::string signature_;
  const Invoke invoke_;
  Briefness briefness_;
};

namespace detail {

template <class T>
struct IsFuture : std::false_type {};
template <class T>
struct IsFuture<Future<T>> : std::true_type {
  using Value = T;
};

template <class T>
struct SettledType {
  using Type = T;
};
template <class T>
struct SettledType<Future<T>> {
  using Type = T;
};

template <class R>
void answer(const CallContext& context, R&& result) {
  context.function_returned();
  if (context.keeps_result()) return context.keep(make_kept(std::forward<R>(result)));
  if constexpr (Travels<R>) {
    context.reply(write_result(nullptr, std::forward<R>(result)));
  } else {
    throw Error(ErrorKind::Invalid, "its result, a " + type_name<std::decay_t<R>>() +
                                        ", cannot be sent: call it with remote()");
  }
}

// The result of a future answers when it is there.
template <class T>
void answer_with(const CallContext& context, const Future<T>& future) {
  future.on_settled([context](const typename Future<T>::Outcome& outcome) {
    if (!outcome.ok()) {
      context.fail(remote_error(std::make_exception_ptr(outcome.error())));
      return;
    }
    try {
      if constexpr (std::is_void_v<T>) {
        answer(context, std::monostate{});
      } else {
        answer(context, outcome.value());
      }
    } catch (...) {
      context.fail(remote_error(std::current_exception()));
    }
  });
}

template <class... Args>
std::tuple<Args...> arguments_of(const CallContext& context, const std::string& described) {
  try {
    PayloadReader reader(context.call()->payload());
    return read_arguments<Args...>(reader);
  } catch (const Error& error) {
    throw within(described, error);
  }
}

// Marks what is wrong with the request rather than with the handler.
struct BadRequest {
  Error error;
};

template <class R, class... Args, class F>
void invoke_with_arguments(const F& function, const std::string& described,
                           const CallContext& context) {
  auto arguments = [&] {
    try {
      return arguments_of<std::decay_t<Args>...>(context, described);
    } catch (const Error& error) {
      throw BadRequest{error};
    }
  }();
  const auto call = [&]() -> R {
    return std::apply(
        [&](auto&... each) -> R {
          if constexpr (std::is_invocable_v<const F&, const CallContext&, Args&&...>) {
            return function(context, std::move(each)...);
          } else {
            return function(std::move(each)...);
          }
        },
        arguments);
  };
  if constexpr (std::is_void_v<R>) {
    call();
    answer(context, std::monostate{});
  } else if constexpr (IsFuture<R>::value) {
    answer_with(context, call());
  } else {
    R result = call();
    // The arguments die first: a tensor that is handed straight back then has one owner, and
    // its memory can go back instead of being copied.
    { auto dying = std::move(arguments); }
    answer(context, std::move(result));
  }
}

template <class F, class R, class... Args>
Function::Invoke invoker(F function, std::string described) {
  return [shared = std::make_shared<const F>(std::move(function)),
          described = std::move(described)](const CallContext& context) {
    invoke_with_arguments<R, Args...>(*shared, described, context);
  };
}

// Parameters of a callable, without a leading CallContext.
template <class T>
struct Signature : Signature<decltype(&std::decay_t<T>::operator())> {};
template <class R, class... Args>
struct Signature<R (*)(Args...)> {
  template <class F>
  static std::shared_ptr<Function> wrap(std::string name, F function) {
    using Settled = typename SettledType<R>::Type;
    std::string described = signature<Settled, std::decay_t<Args>...>();
    auto invoke = invoker<F, R, Args...>(std::move(function), name + described);
    return std::make_shared<Function>(std::move(name), std::move(described), std::move(invoke));
  }
};
template <class R, class... Args>
struct Signature<R (*)(const CallContext&, Args...)> : Signature<R (*)(Args...)> {};
template <class R, class... Args>
struct Signature<R(Args...)> : Signature<R (*)(Args...)> {};
template <class R, class C, class... Args>
struct Signature<R (C::*)(Args...) const> : Signature<R (*)(Args...)> {};
template <class R, class C, class... Args>
struct Signature<R (C::*)(Args...)> {
  static_assert(sizeof(C) == 0,
                "a handler may run on several threads at once: its operator() must be const");
};

// Methods: member functions, and functions whose first parameter is a reference to the value.
template <class R, class T, class... Args>
struct MethodSignature {
  using Value = std::remove_const_t<T>;
  template <class F>
  static Method wrap(const std::string& name, F function) {
    const std::string described = type_name<Value>() + "." + name +
                                  signature<typename SettledType<R>::Type, std::decay_t<Args>...>();
    return [function = std::move(function), described](const CallContext& context, void* value) {
      auto* const self = static_cast<Value*>(value);
      const auto bound = [&](Args... args) -> R {
        return std::invoke(function, *self, std::forward<Args>(args)...);
      };
      invoke_with_arguments<R, Args...>(bound, described, context);
    };
  }
};
template <class M>
struct MemberMethod;
template <class R, class T, class... Args>
struct MemberMethod<R (T::*)(Args...)> : MethodSignature<R, T, Args...> {};
template <class R, class T, class... Args>
struct MemberMethod<R (T::*)(Args...) const> : MethodSignature<R, T, Args...> {};
template <class F>
struct FreeMethod : FreeMethod<decltype(&F::operator())> {};
template <class R, class T, class... Args>
struct FreeMethod<R (*)(T&, Args...)> : MethodSignature<R, T, Args...> {};
template <class R, class F, class T, class... Args>
struct FreeMethod<R (F::*)(T&, Args...) const> : MethodSignature<R, T, Args...> {};
template <class M>
using MethodOf =
    std::conditional_t<std::is_member_function_pointer_v<M>, MemberMethod<M>, FreeMethod<M>>;

}  // namespace detail

template <class F>
std::shared_ptr<Function> make_function(std::string name, F function) {
  return detail::Signature<std::decay_t<F>>::wrap(std::move(name), std::move(function));
}

}  // namespace hawser
