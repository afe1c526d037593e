#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace hawser {

template <class Signature>
class UniqueFunction;

// std::move_only_function is C++23. Holds callables up to 48 bytes without allocating.
template <class R, class... Args>
class UniqueFunction<R(Args...)> {
 public:
  UniqueFunction() = default;
  UniqueFunction(std::nullptr_t) {}

  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, UniqueFunction> &&
           std::is_invocable_r_v<R, std::remove_cvref_t<F>&, Args...>)
      UniqueFunction(F&& callable) {
    using Callable = std::remove_cvref_t<F>;
    if constexpr (fits<Callable>) {
      ::new (storage_) Callable(std::forward<F>(callable));
      operations_ = &kInline<Callable>;
    } else {
      ::new (storage_) Callable*(new Callable(std::forward<F>(callable)));
      operations_ = &kAllocated<Callable>;
    }
  }

  UniqueFunction(UniqueFunction&& other) noexcept { take(other); }
  UniqueFunction& operator=(UniqueFunction&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~UniqueFunction() { reset(); }

  explicit operator bool() const { return operations_ != nullptr; }
  R operator()(Args... args) { return operations_->call(storage_, std::forward<Args>(args)...); }

 private:
  struct Operations {
    R (*call)(void*, Args&&...);
    void (*move)(void* from, void* to) noexcept;
    void (*destroy)(void*) noexcept;
  };
  static constexpr std::size_t kInlineBytes = 48;

  template <class F>
  static constexpr bool fits =
      sizeof(F) <= kInlineBytes &&
      alignof(F) <= alignof(std::max_align_t) && std::is_nothrow_move_constructible_v<F>;

  template <class F>
  static constexpr Operations kInline = {
      [](void* at, Args&&... args) -> R {
        return static_cast<R>((*static_cast<F*>(at))(std::forward<Args>(args)...));
      },
      [](void* from, void* to) noexcept {
        ::new (to) F(std::move(*static_cast<F*>(from)));
        static_cast<F*>(from)->~F();
      },
      [](void* at) noexcept { static_cast<F*>(at)->~F(); }};

  template <class F>
  static constexpr Operations kAllocated = {
      [](void* at, Args&&... args) -> R {
        return static_cast<R>((**static_cast<F**>(at))(std::forward<Args>(args)...));
      },
      [](void* from, void* to) noexcept { ::new (to) F*(*static_cast<F**>(from)); },
      [](void* at) noexcept { delete *static_cast<F**>(at); }};

  void take(UniqueFunction& other) noexcept {
    if (!other.operations_) return;
    operations_ = std::exchange(other.operations_, nullptr);
    operations_->move(other.storage_, storage_);
  }
  void reset() noexcept {
    if (operations_) std::exchange(operations_, nullptr)->destroy(storage_);
  }

  alignas(std::max_align_t) std::byte storage_[kInlineBytes];
  const Operations* operations_ = nullptr;
};

}  // namespace hawser
