#include "hawser/tensor/value_codec.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hawser {
namespace {

constexpr std::string_view kDeviceRecord = "torch.device";

// Of a container that nobody else holds, the elements are taken; of a shared one, copied.
void write_tuple(PayloadWriter& out, c10::IValue&& value) {
  const bool sole_owner = value.use_count() == 1;
  const auto tuple = std::move(value).toTuple();
  std::vector<c10::IValue> elements =
      sole_owner ? std::move(*tuple).elements().vec() : tuple->elements().vec();
  out.tuple(elements.size());
  for (c10::IValue& element : elements) write_ivalue(out, std::move(element));
}

void write_list(PayloadWriter& out, c10::IValue&& value) {
  const bool sole_owner = value.use_count() == 1;
  const auto list = std::move(value).toList();
  out.list(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    write_ivalue(out, sole_owner ? list.extract(i) : list.get(i));
  }
}

void write_dict(PayloadWriter& out, c10::IValue&& value) {
  const bool sole_owner = value.use_count() == 1;
  const auto dict = std::move(value).toGenericDict();
  out.dict(dict.size());
  for (const auto& entry : dict) {
    write_ivalue(out, entry.key());
    c10::IValue element = entry.value();
    if (sole_owner) entry.setValue(c10::IValue());
    write_ivalue(out, std::move(element));
  }
}

std::string kind_of(const c10::IValue& value) {
  std::string kind = value.tagKind();
  if (value.isObject()) kind += " (" + value.type()->repr_str() + ")";
  return kind;
}

// What all elements have in common.
c10::TypePtr common_type(const std::vector<c10::IValue>& values) {
  if (values.empty()) return c10::AnyType::get();
  const auto type_of = [](const c10::IValue& value) -> c10::TypePtr {
    if (value.isTensor()) return c10::TensorType::get();
    return value.type();
  };
  const c10::TypePtr type = type_of(values.front());
  for (const c10::IValue& value : values) {
    if (*type_of(value) != *type) return c10::AnyType::get();
  }
  return type;
}

// `count` comes from the peer; one value may take no more than a byte of the message.
std::vector<c10::IValue> read_elements(PayloadReader& in, std::size_t count) {
  std::vector<c10::IValue> elements;
  elements.reserve(std::min<std::size_t>(count, 1024));
  for (std::size_t i = 0; i < count; ++i) elements.push_back(read_ivalue(in));
  return elements;
}

c10::IValue read_list(PayloadReader& in) {
  const auto inside = in.nest();
  std::vector<c10::IValue> elements = read_elements(in, in.list());
  c10::impl::GenericList list(common_type(elements));
  list.reserve(elements.size());
  for (c10::IValue& element : elements) list.push_back(std::move(element));
  return list;
}

c10::IValue read_dict(PayloadReader& in) {
  const auto inside = in.nest();
  const std::size_t count = in.dict();
  std::vector<c10::IValue> keys, values;
  for (std::size_t i = 0; i < count; ++i) {
    keys.push_back(read_ivalue(in));
    const c10::IValue& key = keys.back();
    if (!key.isInt() && !key.isDouble() && !key.isString() && !key.isBool() &&
        !key.isComplexDouble() && !key.isTensor() && !key.isDevice()) {
      throw Error(ErrorKind::Invalid, "a dict cannot have a key of kind " + key.tagKind());
    }
    values.push_back(read_ivalue(in));
  }
  c10::impl::GenericDict dict(common_type(keys), common_type(values));
  dict.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    dict.insert_or_assign(std::move(keys[i]), std::move(values[i]));
  }
  return dict;
}

c10::IValue read_record(PayloadReader& in) {
  const auto inside = in.nest();
  const auto [type, count] = in.record();
  if (type != kDeviceRecord) {
    return c10::ivalue::Tuple::create(read_elements(in, count));
  }
  if (count != 1) throw Error(ErrorKind::Invalid, "malformed value: a device has one field");
  const std::string name(in.string());
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {
    throw Error(ErrorKind::Invalid, "no device is called '" + name + "'");
  }
}

}  // namespace

void write_ivalue(PayloadWriter& out, const c10::IValue& value) {
  write_ivalue(out, c10::IValue(value));
}

void write_ivalue(PayloadWriter& out, c10::IValue&& value) {
  if (value.isNone()) return out.null();
  if (value.isTensor()) return out.tensor(std::move(value).toTensor());
  if (value.isInt()) return out.integer(value.toInt());
  if (value.isDouble()) return out.real(value.toDouble());
  if (value.isBool()) return out.boolean(value.toBool());
  if (value.isString()) return out.string(value.toStringView());
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return out.complex({number.real(), number.imag()});
  }
  const auto inside = out.nest();
  if (value.isTuple()) return write_tuple(out, std::move(value));
  if (value.isList()) return write_list(out, std::move(value));
  if (value.isGenericDict()) return write_dict(out, std::move(value));
  if (value.isDevice()) {
    out.record(kDeviceRecord, 1);
    return out.string(value.toDevice().str());
  }
  throw Error(ErrorKind::Invalid, "cannot send a value of kind " + kind_of(value));
}

c10::IValue read_ivalue(PayloadReader& in) {
  switch (in.peek()) {
    case wire::Tag::Null:
      in.null();
      return c10::IValue();
    case wire::Tag::False:
    case wire::Tag::True:
      return in.boolean();
    case wire::Tag::Int:
      return in.integer();
    case wire::Tag::Double:
      return in.real();
    case wire::Tag::Complex: {
      const auto number = in.complex();
      return c10::complex<double>(number.real(), number.imag());
    }
    case wire::Tag::String:
    case wire::Tag::Text:
      return std::string(in.string());
    case wire::Tag::Blob:
    case wire::Tag::Bytes: {
      const auto bytes = in.bytes();
      return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    case wire::Tag::Tensor:
      return in.tensor();
    case wire::Tag::List:
      return read_list(in);
    case wire::Tag::Tuple: {
      const auto inside = in.nest();
      return c10::ivalue::Tuple::create(read_elements(in, in.tuple()));
    }
    case wire::Tag::Dict:
      return read_dict(in);
    case wire::Tag::Record:
      return read_record(in);
    case wire::Tag::Reference:
      break;
  }
  throw in.mismatch("a plain value");
}

}  // namespace hawser
