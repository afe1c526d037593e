#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "hawser/base/error.h"

namespace hawser {

// What a completion carries: a value or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(const T& value) : outcome_(std::in_place_index<0>, value) {}
  Result(T&& value) : outcome_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : outcome_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return outcome_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return std::get<0>(outcome_); }
  const T& value() const& { return std::get<0>(outcome_); }
  T&& value() && { return std::get<0>(std::move(outcome_)); }
  const Error& error() const { return std::get<1>(outcome_); }

  // The value, or the error thrown.
  T take() && {
    if (!ok()) throw error();
    return std::get<0>(std::move(outcome_));
  }

 private:
  std::variant<T, Error> outcome_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }
  void take() && {
    if (error_) throw *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace hawser
