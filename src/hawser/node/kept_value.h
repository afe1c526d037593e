#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "hawser/node/kept.h"
#include "hawser/tensor/convert.h"

// Values of C++ types behind references.
namespace hawser {

// What a function's result is, once it stays: a pointer stands for what it points to.
template <class T>
struct Pointee {
  using Type = T;
};
template <class T>
struct Pointee<std::shared_ptr<T>> {
  using Type = T;
};
template <class T>
struct Pointee<std::unique_ptr<T>> {
  using Type = T;
};

// A served method: answers the call; `value` is of the type it was served for.
using Method = std::function<void(const CallContext& context, void* value)>;
// Of the node that the call came to. Throws detail::BadRequest when there is none.
std::shared_ptr<const Method> find_method(const CallContext& context, const std::type_info& type,
                                          std::string_view name);

template <class T>
class KeptValue final : public Kept {
 public:
  explicit KeptValue(std::shared_ptr<T> value) : value_(std::move(value)) {}

  const std::shared_ptr<T>& value() const { return value_; }

  std::string type_name() const override { return hawser::type_name<T>(); }
  std::size_t bytes() const override {
    if constexpr (std::is_same_v<T, at::Tensor>) return value_->defined() ? value_->nbytes() : 0;
    return sizeof(T);
  }
  wire::Payload copy() override {
    if constexpr (Travels<T>) {
      return write_result(nullptr, *value_);
    } else {
      throw Error(ErrorKind::Invalid, "a " + type_name() + " cannot be sent: call its methods");
    }
  }
  c10::IValue script_value(const c10::TypePtr& declared) override {
    if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, c10::IValue>) {
      return *value_;
    } else {
      return Kept::script_value(declared);
    }
  }
  void call(const CallContext& context, std::string_view method) override {
    (*find_method(context, typeid(T), method))(context, value_.get());
  }

 private:
  const std::shared_ptr<T> value_;
};

// What operators and scripts leave. Objects of script classes have the methods of their class.
template <>
std::string KeptValue<c10::IValue>::type_name() const;
template <>
std::size_t KeptValue<c10::IValue>::bytes() const;
template <>
wire::Payload KeptValue<c10::IValue>::copy();
template <>
void KeptValue<c10::IValue>::call(const CallContext& context, std::string_view method);

template <class R>
std::shared_ptr<Kept> make_kept(R&& result) {
  using Result = std::decay_t<R>;
  using T = typename Pointee<Result>::Type;
  if constexpr (std::is_same_v<T, Result>) {
    return std::make_shared<KeptValue<T>>(std::make_shared<T>(std::forward<R>(result)));
  } else {
    if (!result) throw Error(ErrorKind::Invalid, "the function returned a null pointer");
    return std::make_shared<KeptValue<T>>(std::shared_ptr<T>(std::forward<R>(result)));
  }
}

}  // namespace hawser
