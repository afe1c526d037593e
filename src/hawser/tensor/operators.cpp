#include "hawser/tensor/operators.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_type.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/rref_interface.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <tuple>
#include <utility>

#include "hawser/base/error.h"
#include "hawser/tensor/value_codec.h"

namespace hawser::tensor {
namespace {

// Tensors are not made of numbers except where arithmetic would otherwise be lopsided: 2 - x.
constexpr std::array<std::string_view, 16> kTakesNumbersAsTensors = {
    "aten::add",      "aten::add_",      "aten::sub",         "aten::sub_",
    "aten::mul",      "aten::mul_",      "aten::div",         "aten::div_",
    "aten::divide",   "aten::divide_",   "aten::multiply",    "aten::multiply_",
    "aten::subtract", "aten::subtract_", "aten::true_divide", "aten::floor_divide"};

// How an argument list was made to fit; less is better.
struct Effort {
  int conversions = 0;
  int defaults = 0;
  auto operator<=>(const Effort&) const = default;
};

// Converts values and counts how often it had to.
class Converter {
 public:
  Converter(Effort& effort, bool numbers_as_tensors)
      : effort_(effort), numbers_as_tensors_(numbers_as_tensors) {}

  // `fixed_length` is that of a list which a single number may stand for.
  std::optional<c10::IValue> operator()(c10::IValue value, const c10::TypePtr& type,
                                        std::optional<int> fixed_length = std::nullopt) {
    switch (type->kind()) {
      case c10::TypeKind::AnyType:
        return value;
      case c10::TypeKind::OptionalType:
        if (value.isNone()) return value;
        return (*this)(std::move(value), type->castRaw<c10::OptionalType>()->getElementType(),
                       fixed_length);
      case c10::TypeKind::TensorType:
        return as_tensor(std::move(value));
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return only_if(value.isInt(), std::move(value));
      case c10::TypeKind::BoolType:
        return only_if(value.isBool(), std::move(value));
      case c10::TypeKind::NumberType:
        return only_if(value.isScalar(), std::move(value));
      case c10::TypeKind::FloatType:
      case c10::TypeKind::SymFloatType:
        return as_float(std::move(value));
      case c10::TypeKind::ComplexType:
        return as_complex(std::move(value));
      case c10::TypeKind::ListType:
        return as_list(std::move(value), type->castRaw<c10::ListType>()->getElementType(),
                       fixed_length);
      case c10::TypeKind::TupleType:
        return as_tuple(std::move(value), type->cast<c10::TupleType>());
      case c10::TypeKind::DictType:
        return as_dict(std::move(value), *type->castRaw<c10::DictType>());
      case c10::TypeKind::EnumType:
        return as_enum(std::move(value), type->cast<c10::EnumType>());
      case c10::TypeKind::RRefType:
        return as_reference(std::move(value), type->castRaw<c10::RRefType>()->getElementType());
      default:
        return only_if(value.type()->isSubtypeOf(*type), std::move(value));
    }
  }

 private:
  using Converted = std::optional<c10::IValue>;

  static Converted only_if(bool fits, c10::IValue&& value) {
    return fits ? Converted(std::move(value)) : std::nullopt;
  }

  Converted as_tensor(c10::IValue value) {
    if (value.isTensor()) return value;
    if (!numbers_as_tensors_ || !value.isScalar()) return std::nullopt;
    ++effort_.conversions;
    const at::Scalar number = value.toScalar();
    at::Tensor tensor = at::scalar_tensor(number, at::TensorOptions(number.type()));
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }

  Converted as_float(c10::IValue value) {
    if (value.isDouble()) return value;
    if (!value.isInt()) return std::nullopt;
    ++effort_.conversions;
    return static_cast<double>(value.toInt());
  }

  Converted as_complex(c10::IValue value) {
    if (value.isComplexDouble()) return value;
    const Converted real = as_float(std::move(value));
    if (!real) return std::nullopt;
    ++effort_.conversions;
    return c10::complex<double>(real->toDouble(), 0);
  }

  Converted as_list(c10::IValue value, const c10::TypePtr& element, std::optional<int> length) {
    std::vector<c10::IValue> elements;
    if (value.isList()) {
      elements = value.toListRef().vec();
    } else if (value.isTuple()) {
      ++effort_.conversions;
      elements = value.toTupleRef().elements().vec();
    } else if (length && value.isScalar()) {
      ++effort_.conversions;
      elements.assign(static_cast<std::size_t>(*length), value);
    } else {
      return std::nullopt;
    }
    c10::impl::GenericList list(element);
    list.reserve(elements.size());
    for (c10::IValue& one : elements) {
      Converted item = (*this)(std::move(one), element);
      if (!item) return std::nullopt;
      list.push_back(*std::move(item));
    }
    return c10::IValue(std::move(list));
  }

  Converted as_tuple(c10::IValue value, c10::TupleTypePtr type) {
    if (!value.isTuple()) return std::nullopt;
    std::vector<c10::IValue> elements = value.toTupleRef().elements().vec();
    if (elements.size() != type->elements().size()) return std::nullopt;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      Converted item = (*this)(std::move(elements[i]), type->elements()[i]);
      if (!item) return std::nullopt;
      elements[i] = *std::move(item);
    }
    if (!type->schema()) return c10::ivalue::Tuple::create(std::move(elements));
    return c10::ivalue::Tuple::createNamed(std::move(elements), std::move(type));
  }

  Converted as_dict(c10::IValue value, const c10::DictType& type) {
    if (!value.isGenericDict()) return std::nullopt;
    const auto given = value.toGenericDict();
    c10::impl::GenericDict dict(type.getKeyType(), type.getValueType());
    dict.reserve(given.size());
    for (const auto& entry : given) {
      Converted key = (*this)(entry.key(), type.getKeyType());
      Converted item = (*this)(entry.value(), type.getValueType());
      if (!key || !item) return std::nullopt;
      dict.insert_or_assign(*std::move(key), *std::move(item));
    }
    return c10::IValue(std::move(dict));
  }

  // Of the names of its class and of its member, as it travels.
  static Converted as_enum(c10::IValue value, const c10::EnumTypePtr& type) {
    if (value.isEnum()) return only_if(value.type()->isSubtypeOf(*type), std::move(value));
    if (!value.isTuple() || value.toTupleRef().elements().size() != 2) return std::nullopt;
    const c10::IValue& name = value.toTupleRef().elements()[0];
    const c10::IValue& member = value.toTupleRef().elements()[1];
    if (!name.isString() || !member.isString() ||
        name.toStringRef() != type->qualifiedClassName().qualifiedName()) {
      return std::nullopt;
    }
    for (const auto& [known, number] : type->enumNamesValues()) {
      if (known != member.toStringRef()) continue;
      return c10::IValue(c10::make_intrusive<c10::ivalue::EnumHolder>(type, known, number));
    }
    return std::nullopt;
  }

  // The type of what a reference leads to is believed.
  Converted as_reference(c10::IValue value, const c10::TypePtr& element) {
    if (!value.isRRef()) return std::nullopt;
    auto carried = carried_by(*value.toRRef());
    if (!carried) return value;
    const ScriptableReference& reference = *carried;
    return c10::IValue(reference.as_rref(std::move(carried), element));
  }

  Effort& effort_;
  const bool numbers_as_tensors_;
};

std::string kind_in_words(const c10::IValue& value) {
  if (value.isList() && value.toListRef().empty()) return "List[]";
  return value.isTensor() ? "Tensor" : value.type()->repr_str();
}

std::string does_not_fit(const c10::Argument& argument, const c10::IValue& value) {
  return "argument '" + argument.name() + "': expected " + argument.type()->repr_str() + ", got " +
         kind_in_words(value);
}

struct Fit {
  Effort effort;
  std::vector<c10::IValue> stack;
  std::string objection;  // empty if it fits
};

Fit does_not(std::string why) { return Fit{{}, {}, std::move(why)}; }

Fit fit(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& args,
        const OperatorCatalog::Keywords& keywords, bool numbers_as_tensors) {
  Fit result;
  Converter convert(result.effort, numbers_as_tensors);
  std::size_t keywords_used = 0;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const auto keyword = keywords.find(argument.name());
    const c10::IValue* given = nullptr;
    if (i < args.size()) {
      if (argument.kwarg_only()) return does_not("too many arguments without a name");
      if (keyword != keywords.end()) {
        return does_not("argument '" + argument.name() + "' is given twice");
      }
      given = &args[i];
    } else if (keyword != keywords.end()) {
      ++keywords_used;
      given = &keyword->second;
    } else if (argument.default_value()) {
      ++result.effort.defaults;
      result.stack.push_back(*argument.default_value());
      continue;
    } else {
      return does_not("argument '" + argument.name() + "' is missing");
    }
    auto value = convert(*given, argument.type(), argument.N());
    if (!value) return does_not(does_not_fit(argument, *given));
    result.stack.push_back(*std::move(value));
  }
  if (args.size() > schema.arguments().size()) return does_not("too many arguments");
  if (keywords_used < keywords.size()) return does_not("it has no argument of such a name");
  return result;
}

std::string in_words(const c10::FunctionSchema& schema) {
  std::ostringstream text;
  text << schema;
  return text.str();
}

// "aten::add.Tensor" -> {"aten::add", "Tensor"}.
std::pair<std::string, std::optional<std::string>> split(std::string_view name) {
  const std::size_t space = name.find("::");
  if (space == std::string_view::npos || space == 0 || space + 2 == name.size()) {
    throw Error(ErrorKind::Invalid,
                "an operator is called namespace::name or "
                "namespace::name.overload, not '" +
                    std::string(name) + "'");
  }
  const std::size_t dot = name.find('.', space);
  if (dot == std::string_view::npos) return {std::string(name), std::nullopt};
  std::string overload(name.substr(dot + 1));
  if (overload == "default") overload.clear();
  return {std::string(name.substr(0, dot)), std::move(overload)};
}

[[noreturn]] void throw_unknown(std::string_view name) {
  throw Error(ErrorKind::Invalid, "there is no operator '" + std::string(name) + "'");
}

struct Candidate {
  c10::OperatorHandle handle;
  Fit fit;
};

[[noreturn]] void throw_unmatched(std::string_view name, const std::vector<Candidate>& candidates,
                                  bool ambiguous) {
  std::string message = ambiguous
                            ? "several overloads of " + std::string(name) + " fit equally well:"
                            : "no overload of " + std::string(name) + " takes these arguments:";
  for (const Candidate& candidate : candidates) {
    message += "\n  " + in_words(candidate.handle.schema());
    if (!ambiguous) message += "\n    " + candidate.fit.objection;
  }
  throw Error(ErrorKind::Invalid, std::move(message));
}

// Throws when no candidate fits or the best is not alone.
Candidate best_of(std::string_view name, std::vector<Candidate> candidates) {
  std::vector<Candidate> fitting;
  for (const Candidate& candidate : candidates) {
    if (candidate.fit.objection.empty()) fitting.push_back(candidate);
  }
  if (fitting.empty()) throw_unmatched(name, candidates, /*ambiguous=*/false);
  const auto effort = [](const Candidate& candidate) { return candidate.fit.effort; };
  const Effort least = std::ranges::min(fitting, {}, effort).fit.effort;
  std::erase_if(fitting, [&](const Candidate& candidate) { return effort(candidate) != least; });
  if (fitting.size() > 1) throw_unmatched(name, fitting, /*ambiguous=*/true);
  return std::move(fitting.front());
}

}  // namespace

std::vector<std::string> OperatorCatalog::overloads(const std::string& name) {
  {
    auto known = known_.lock();
    const auto found = known->find(name);
    if (found != known->end()) return found->second;
  }
  std::unordered_map<std::string, std::vector<std::string>> all;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    all[op.name].push_back(op.overload_name);
  }
  auto known = known_.lock();
  known->swap(all);
  const auto found = known->find(name);
  return found == known->end() ? std::vector<std::string>() : found->second;
}

MatchedOperator OperatorCatalog::match(std::string_view name, const std::vector<c10::IValue>& args,
                                       const Keywords& keywords) {
  const auto [base, overload] = split(name);
  const std::vector<std::string> names =
      overload ? std::vector<std::string>{*overload} : overloads(base);
  const auto candidates = [&, &base = base](bool numbers_as_tensors) {
    std::vector<Candidate> result;
    for (const std::string& one : names) {
      const auto handle = c10::Dispatcher::singleton().findSchema({base, one});
      if (!handle) continue;
      result.push_back({*handle, fit(handle->schema(), args, keywords, numbers_as_tensors)});
    }
    return result;
  };
  std::vector<Candidate> found = candidates(/*numbers_as_tensors=*/false);
  if (found.empty()) throw_unknown(name);
  const bool none_fits = std::ranges::none_of(
      found, [](const Candidate& candidate) { return candidate.fit.objection.empty(); });
  if (none_fits &&
      std::ranges::find(kTakesNumbersAsTensors, base) != kTakesNumbersAsTensors.end()) {
    found = candidates(/*numbers_as_tensors=*/true);
  }
  Candidate best = best_of(name, std::move(found));
  return {c10::toString(best.handle.operator_name()), std::move(best.fit.stack)};
}

std::vector<c10::IValue> run_operator(std::string_view name, std::vector<c10::IValue> stack,
                                      const OperatorRule& rule) {
  const auto [base, overload] = split(name);
  const auto handle = c10::Dispatcher::singleton().findSchema({base, overload.value_or("")});
  if (!handle) throw_unknown(name);
  const c10::FunctionSchema& schema = handle->schema();
  rule.check(schema);
  if (stack.size() != schema.arguments().size()) {
    throw Error(ErrorKind::Invalid, in_words(schema) + ": expected " +
                                        std::to_string(schema.arguments().size()) +
                                        " arguments, got " + std::to_string(stack.size()));
  }
  for (std::size_t i = 0; i < stack.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    auto value = converted(stack[i], argument.type());
    if (!value) {
      throw Error(ErrorKind::Invalid, in_words(schema) + ": " + does_not_fit(argument, stack[i]));
    }
    stack[i] = *std::move(value);
  }
  handle->callBoxed(stack);
  return stack;
}

std::optional<c10::IValue> converted(c10::IValue value, const c10::TypePtr& type) {
  Effort effort;
  return Converter(effort, /*numbers_as_tensors=*/false)(std::move(value), type);
}

}  // namespace hawser::tensor
