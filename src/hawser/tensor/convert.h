#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "hawser/base/error.h"
#include "hawser/tensor/payload.h"
#include "hawser/tensor/value_codec.h"

// Typed C++ arguments and results. Codec<T> is the one place where a type learns to travel:
//
//   template <> struct hawser::Codec<Money> {
//     static std::string type_name() { return "Money"; }
//     static void write(PayloadWriter& out, const Money& money) { out.integer(money.cents); }
//     static Money read(PayloadReader& in) { return Money{in.integer()}; }
//   };
//
// A struct whose fields all travel needs only their names, in order, in the struct's namespace:
//
//   struct Step { at::Tensor state; double reward; bool done; };
//   HAWSER_FIELDS(Step, state, reward, done)
//
// read() throws Error(Invalid) saying what it expected and what it got; each level that contains
// the value puts its place in front with within(): "Step.reward: expected float, got string".
// write() takes an rvalue where it can be given: the last reference to a tensor should be moved in
// (tensor/pack.h).
namespace hawser {

template <class T>
struct Codec;

// The type under which an argument travels: a string for "literal", T for const T&.
template <class T>
using Carried = std::conditional_t<std::is_same_v<std::decay_t<T>, const char*> ||
                                       std::is_same_v<std::decay_t<T>, char*>,
                                   std::string_view, std::decay_t<T>>;

// Whether values of that type can be sent. What cannot stays where it is, behind a reference.
template <class T>
concept Travels = std::is_void_v<T> || requires {
  Codec<Carried<T>>::type_name();
};

template <class T>
void write_value(PayloadWriter& out, T&& value) {
  Codec<Carried<T>>::write(out, std::forward<T>(value));
}

template <class T>
T read_value(PayloadReader& in) {
  return Codec<T>::read(in);
}

std::string demangled(const std::type_info& type);

template <class T>
std::string type_name() {
  if constexpr (std::is_void_v<T>) {
    return "None";
  } else if constexpr (Travels<T>) {
    return Codec<Carried<T>>::type_name();
  } else {
    return demangled(typeid(T));
  }
}

// ---------------------------------------------------------------------------------- single values

template <>
struct Codec<at::Tensor> {
  static std::string type_name() { return "Tensor"; }
  static void write(PayloadWriter& out, at::Tensor value) { out.tensor(std::move(value)); }
  static at::Tensor read(PayloadReader& in) { return in.tensor(); }
};

template <>
struct Codec<bool> {
  static std::string type_name() { return "bool"; }
  static void write(PayloadWriter& out, bool value) { out.boolean(value); }
  static bool read(PayloadReader& in) { return in.boolean(); }
};

template <class T>
concept Character = std::same_as<T, char> || std::same_as<T, wchar_t> || std::same_as<T, char8_t> ||
    std::same_as<T, char16_t> || std::same_as<T, char32_t>;
template <class T>
concept Integer = std::integral<T> && !Character<T> && !std::same_as<T, bool>;

// int64_t is "int"; narrower and unsigned types carry their width and are checked for it. On the
// wire all are 64-bit signed: a uint64_t above that does not travel.
template <Integer T>
struct Codec<T> {
  static std::string type_name() {
    if constexpr (std::is_signed_v<T> && sizeof(T) == 8) return "int";
    return (std::is_signed_v<T> ? "int" : "uint") + std::to_string(8 * sizeof(T));
  }
  static void write(PayloadWriter& out, T value) {
    if (!std::in_range<std::int64_t>(value)) throw out_of_range(std::to_string(value), "int");
    out.integer(static_cast<std::int64_t>(value));
  }
  static T read(PayloadReader& in) {
    if (in.at_end() || in.peek() != wire::Tag::Int) throw in.mismatch(type_name());
    const std::int64_t value = in.integer();
    if (!std::in_range<T>(value)) throw out_of_range(std::to_string(value), type_name());
    return static_cast<T>(value);
  }

 private:
  static Error out_of_range(const std::string& value, const std::string& type) {
    return Error(ErrorKind::Invalid, value + " does not fit into " + type);
  }
};

template <>
struct Codec<double> {
  static std::string type_name() { return "float"; }
  static void write(PayloadWriter& out, double value) { out.real(value); }
  static double read(PayloadReader& in) { return in.real(); }
};

template <>
struct Codec<float> {
  static std::string type_name() { return "float32"; }
  static void write(PayloadWriter& out, float value) { out.real(value); }
  // Rounds; refuses what is finite as a double and would not be as a float.
  static float read(PayloadReader& in) {
    const double value = in.real();
    if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()) {
      throw Error(ErrorKind::Invalid, std::to_string(value) + " does not fit into float32");
    }
    return static_cast<float>(value);
  }
};

template <>
struct Codec<std::complex<double>> {
  static std::string type_name() { return "complex"; }
  static void write(PayloadWriter& out, std::complex<double> value) { out.complex(value); }
  static std::complex<double> read(PayloadReader& in) { return in.complex(); }
};

template <>
struct Codec<std::string> {
  static std::string type_name() { return "string"; }
  static void write(PayloadWriter& out, const std::string& value) {
    out.string(std::string_view(value));
  }
  static void write(PayloadWriter& out, std::string&& value) { out.string(std::move(value)); }
  static std::string read(PayloadReader& in) { return std::string(in.string()); }
};

// Can be sent, and is received as std::string.
template <>
struct Codec<std::string_view> {
  static std::string type_name() { return "string"; }
  static void write(PayloadWriter& out, std::string_view value) { out.string(value); }
};

template <>
struct Codec<Bytes> {
  static std::string type_name() { return "bytes"; }
  static void write(PayloadWriter& out, const Bytes& value) { out.bytes(std::span(value)); }
  static void write(PayloadWriter& out, Bytes&& value) { out.bytes(std::move(value)); }
  static Bytes read(PayloadReader& in) {
    const auto bytes = in.bytes();
    return Bytes(bytes.begin(), bytes.end());
  }
};

template <>
struct Codec<std::monostate> {
  static std::string type_name() { return "None"; }
  static void write(PayloadWriter& out, std::monostate) { out.null(); }
  static std::monostate read(PayloadReader& in) {
    in.null();
    return {};
  }
};

template <>
struct Codec<c10::IValue> {
  static std::string type_name() { return "any"; }
  static void write(PayloadWriter& out, const c10::IValue& value) { write_ivalue(out, value); }
  static void write(PayloadWriter& out, c10::IValue&& value) {
    write_ivalue(out, std::move(value));
  }
  static c10::IValue read(PayloadReader& in) { return read_ivalue(in); }
};

// ------------------------------------------------------------------------------------ containers

namespace detail {

// An element of a container that is itself given away may be moved out of it.
template <class Container, class Element>
decltype(auto) forward_element(Element& element) {
  if constexpr (std::is_rvalue_reference_v<Container&&> && !std::is_const_v<Element>) {
    return std::move(element);
  } else {
    return static_cast<const Element&>(element);
  }
}

// Reads a T; an error says where it was.
template <class T, class Where>
T read_at(PayloadReader& in, Where where) {
  try {
    return read_value<T>(in);
  } catch (const Error& error) {
    throw within(where(), error);
  }
}

inline std::string element_name(std::size_t index) { return "element " + std::to_string(index); }

// "expected 2 arguments, got 1"
Error wrong_count(std::size_t expected, std::string_view of_what, std::size_t got);

template <class... Ts>
std::string joined_type_names() {
  std::string names;
  ((names += (names.empty() ? "" : ", ") + type_name<Ts>()), ...);
  return names;
}

// std::tuple, std::pair and std::array: as many elements as the type says.
template <class Tuple>
struct TupleCodec {
  static constexpr std::size_t kSize = std::tuple_size_v<Tuple>;
  using Indices = std::make_index_sequence<kSize>;

  static std::string type_name() {
    return []<std::size_t... i>(std::index_sequence<i...>) {
      return "tuple[" + joined_type_names<std::tuple_element_t<i, Tuple>...>() + "]";
    }
    (Indices());
  }
  template <class U>
  static void write(PayloadWriter& out, U&& value) {
    const auto inside = out.nest();
    out.tuple(kSize);
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      (write_value(out, std::get<i>(std::forward<U>(value))), ...);
    }
    (Indices());
  }
  static Tuple read(PayloadReader& in) {
    const auto inside = in.nest();
    if (in.at_end() || in.peek() != wire::Tag::Tuple) throw in.mismatch(type_name());
    if (const std::size_t count = in.tuple(); count != kSize) {
      throw within(type_name(), wrong_count(kSize, "elements", count));
    }
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return Tuple{read_at<std::tuple_element_t<i, Tuple>>(in, [] { return element_name(i); })...};
    }
    (Indices());
  }
};

template <class Map>
struct MapCodec {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;

  static std::string type_name() {
    return "dict[" + hawser::type_name<Key>() + ", " + hawser::type_name<Value>() + "]";
  }
  template <class U>
  static void write(PayloadWriter& out, U&& map) {
    const auto inside = out.nest();
    out.dict(map.size());
    for (auto& [key, value] : map) {
      write_value(out, key);
      write_value(out, forward_element<U>(value));
    }
  }
  static Map read(PayloadReader& in) {
    const auto inside = in.nest();
    if (in.at_end() || in.peek() != wire::Tag::Dict) throw in.mismatch(type_name());
    Map map;
    for (std::size_t i = 0, count = in.dict(); i < count; ++i) {
      Key key = read_at<Key>(in, [i] { return "key of entry " + std::to_string(i); });
      map.insert_or_assign(std::move(key), read_at<Value>(in, [i] {
                             return "value of entry " + std::to_string(i);
                           }));
    }
    return map;
  }
};

}  // namespace detail

template <class T>
struct Codec<std::vector<T>> {
  static std::string type_name() { return "list[" + hawser::type_name<T>() + "]"; }
  template <class U>
  static void write(PayloadWriter& out, U&& values) {
    const auto inside = out.nest();
    out.list(values.size());
    if constexpr (std::same_as<T, bool>) {
      for (const bool value : values) out.boolean(value);
    } else {
      for (auto& value : values) write_value(out, detail::forward_element<U>(value));
    }
  }
  static std::vector<T> read(PayloadReader& in) {
    const auto inside = in.nest();
    if (in.at_end() || in.peek() != wire::Tag::List) throw in.mismatch(type_name());
    const std::size_t count = in.list();
    std::vector<T> values;
    values.reserve(std::min(count, kTrustedCount));
    for (std::size_t i = 0; i < count; ++i) {
      values.push_back(detail::read_at<T>(in, [i] { return detail::element_name(i); }));
    }
    return values;
  }

 private:
  static constexpr std::size_t kTrustedCount = 4096;  // more memory is taken as values arrive
};

template <class... Ts>
struct Codec<std::tuple<Ts...>> : detail::TupleCodec<std::tuple<Ts...>> {};
template <class A, class B>
struct Codec<std::pair<A, B>> : detail::TupleCodec<std::pair<A, B>> {};
template <class T, std::size_t n>
struct Codec<std::array<T, n>> : detail::TupleCodec<std::array<T, n>> {};
template <class K, class V, class... Rest>
struct Codec<std::map<K, V, Rest...>> : detail::MapCodec<std::map<K, V, Rest...>> {};
template <class K, class V, class... Rest>
struct Codec<std::unordered_map<K, V, Rest...>>
    : detail::MapCodec<std::unordered_map<K, V, Rest...>> {};

// None or a T: a T that itself can be None (an optional, an IValue) does not survive the trip.
template <class T>
struct Codec<std::optional<T>> {
  static std::string type_name() { return "optional[" + hawser::type_name<T>() + "]"; }
  template <class U>
  static void write(PayloadWriter& out, U&& value) {
    if (!value) return out.null();
    write_value(out, detail::forward_element<U>(*value));
  }
  static std::optional<T> read(PayloadReader& in) {
    if (!in.at_end() && in.peek() == wire::Tag::Null) {
      in.null();
      return std::nullopt;
    }
    return read_value<T>(in);
  }
};

// ------------------------------------------------------------------------------------ structs

// All fields, in order: a forgotten one does not compile. Found through the struct's namespace.
#define HAWSER_FIELDS(Type, ...)                                            \
  template <class Self>                                                     \
  requires std::is_same_v<std::remove_const_t<Self>, Type>                  \
  constexpr auto hawser_fields(Self& hawser_self) {                         \
    auto& [__VA_ARGS__] = hawser_self;                                      \
    return std::tie(__VA_ARGS__);                                           \
  }                                                                         \
  constexpr std::pair<const char*, const char*> hawser_names(const Type*) { \
    return {#Type, #__VA_ARGS__};                                           \
  }

template <class T>
concept HasFields = requires(T& value) {
  hawser_fields(value);
  hawser_names(static_cast<const T*>(nullptr));
};

namespace detail {
// "Step.reward", from the text that the macro was given.
std::string field_name(std::pair<const char*, const char*> names, std::size_t index);
}  // namespace detail

template <HasFields T>
struct Codec<T> {
  static std::string type_name() { return names().first; }
  template <class U>
  static void write(PayloadWriter& out, U&& value) {
    const auto inside = out.nest();
    std::apply(
        [&](auto&... fields) {
          out.record(names().first, sizeof...(fields));
          (write_value(out, detail::forward_element<U>(fields)), ...);
        },
        hawser_fields(value));
  }
  static T read(PayloadReader& in) {
    const auto inside = in.nest();
    if (in.at_end() || in.peek() != wire::Tag::Record) throw in.mismatch(type_name());
    const auto [type, count] = in.record();
    if (type != names().first) {
      throw Error(ErrorKind::Invalid, "expected " + type_name() + ", got " + std::string(type));
    }
    T value{};
    std::apply(
        [&, count = count](auto&... fields) {
          if (count != sizeof...(fields)) {
            throw within(type_name(), detail::wrong_count(sizeof...(fields), "fields", count));
          }
          std::size_t index = 0;
          ((read_field(in, fields, index), ++index), ...);
        },
        hawser_fields(value));
    return value;
  }

 private:
  static constexpr auto names() { return hawser_names(static_cast<const T*>(nullptr)); }
  template <class Field>
  static void read_field(PayloadReader& in, Field& field, std::size_t index) {
    field = detail::read_at<Field>(in, [&] { return detail::field_name(names(), index); });
  }
};

// ------------------------------------------------------------------------------------ calls

// "(Tensor, float) -> Tensor"; put the function's name in front.
template <class R, class... Args>
std::string signature() {
  return "(" + detail::joined_type_names<Args...>() + ") -> " + type_name<R>();
}

// The arguments of a call are one tuple.
template <class... Args>
wire::Payload write_arguments(const tensor::DeviceStaging* staging, Args&&... args) {
  PayloadWriter out(staging);
  const auto inside = out.nest();
  out.tuple(sizeof...(Args));
  (write_value(out, std::forward<Args>(args)), ...);
  return out.finish();
}

// Reads what write_arguments() wrote, and finishes the reader: when it returns, the tuple alone
// owns the tensors' memory. An error reads "argument 2: expected float, got string"; the caller
// adds the function's name and signature with within().
template <class... Args>
std::tuple<Args...> read_arguments(PayloadReader& in) {
  const auto inside = in.nest();
  if (const std::size_t count = in.tuple(); count != sizeof...(Args)) {
    throw detail::wrong_count(sizeof...(Args), "arguments", count);
  }
  auto args = [&]<std::size_t... i>(std::index_sequence<i...>) {
    return std::tuple<Args...>{
        detail::read_at<Args>(in, [] { return "argument " + std::to_string(i + 1); })...};
  }
  (std::index_sequence_for<Args...>());
  in.finish();
  return args;
}

template <class R>
wire::Payload write_result(const tensor::DeviceStaging* staging, R&& result) {
  PayloadWriter out(staging);
  write_value(out, std::forward<R>(result));
  return out.finish();
}

// void is read as None.
template <class R>
R read_result(PayloadReader& in) {
  if constexpr (std::is_void_v<R>) {
    read_result<std::monostate>(in);
  } else {
    R result = detail::read_at<R>(in, [] { return "result"; });
    in.finish();
    return result;
  }
}

}  // namespace hawser
