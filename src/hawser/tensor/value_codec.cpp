#include "hawser/tensor/value_codec.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/class_type.h>
#include <ATen/core/enum_type.h>
#include <ATen/core/function.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/rref_interface.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hawser/tensor/operators.h"

namespace hawser {
namespace {

// Records: (name of the device), (class, attribute ...), (class, what __getstate__ returned),
// (class, name of the member).
constexpr std::string_view kDeviceRecord = "torch.device";
constexpr std::string_view kObjectRecord = "torch.object";
constexpr std::string_view kStateRecord = "torch.state";
constexpr std::string_view kEnumRecord = "torch.enum";

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

void write_reference(PayloadWriter& out, const c10::IValue& value) {
  auto carried = carried_by(*value.toRRef());
  if (!carried) throw Error(ErrorKind::Invalid, "cannot send a reference of torch's own RPC");
  out.reference(std::move(carried));
}

void write_object(PayloadWriter& out, const c10::IValue& value) {
  const auto object = value.toObject();
  const c10::ClassTypePtr type = object->type();
  const std::string name = type->name()->qualifiedName();
  torch::jit::Function* const get_state = type->findMethod("__getstate__");
  if (get_state && type->findMethod("__setstate__")) {
    out.record(kStateRecord, 2);
    out.string(name);
    return write_ivalue(out, (*get_state)({value}));
  }
  out.record(kObjectRecord, 1 + object->slots().size());
  out.string(name);
  for (const c10::IValue& attribute : object->slots()) write_ivalue(out, attribute);
}

void write_enum(PayloadWriter& out, const c10::IValue& value) {
  const auto holder = value.toEnumHolder();
  out.record(kEnumRecord, 2);
  out.string(holder->type()->qualifiedClassName().qualifiedName());
  out.string(holder->name());
}

std::string kind_of(const c10::IValue& value) { return value.tagKind(); }

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
std::vector<c10::IValue> read_elements(PayloadReader& in, std::size_t count,
                                       const NamedTypes* types) {
  std::vector<c10::IValue> elements;
  elements.reserve(std::min<std::size_t>(count, 1024));
  for (std::size_t i = 0; i < count; ++i) elements.push_back(read_ivalue(in, types));
  return elements;
}

c10::IValue read_list(PayloadReader& in, const NamedTypes* types) {
  const auto inside = in.nest();
  std::vector<c10::IValue> elements = read_elements(in, in.list(), types);
  c10::impl::GenericList list(common_type(elements));
  list.reserve(elements.size());
  for (c10::IValue& element : elements) list.push_back(std::move(element));
  return list;
}

c10::IValue read_dict(PayloadReader& in, const NamedTypes* types) {
  const auto inside = in.nest();
  const std::size_t count = in.dict();
  std::vector<c10::IValue> keys, values;
  for (std::size_t i = 0; i < count; ++i) {
    keys.push_back(read_ivalue(in, types));
    const c10::IValue& key = keys.back();
    if (!key.isInt() && !key.isDouble() && !key.isString() && !key.isBool() &&
        !key.isComplexDouble() && !key.isTensor() && !key.isDevice()) {
      throw Error(ErrorKind::Invalid, "a dict cannot have a key of kind " + key.tagKind());
    }
    values.push_back(read_ivalue(in, types));
  }
  c10::impl::GenericDict dict(common_type(keys), common_type(values));
  dict.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    dict.insert_or_assign(std::move(keys[i]), std::move(values[i]));
  }
  return dict;
}

c10::IValue read_device(PayloadReader& in) {
  const std::string name(in.string());
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {
    throw Error(ErrorKind::Invalid, "no device is called '" + name + "'");
  }
}

// Throws Error(Invalid) when there is none.
template <class T>
std::shared_ptr<T> type_named(const std::string& name, const NamedTypes* types) {
  const c10::NamedTypePtr found = types ? types->find_type(name) : nullptr;
  auto type = found ? found->cast<T>() : nullptr;
  if (!type) throw Error(ErrorKind::Invalid, "the type '" + name + "' is not known here");
  return type;
}

c10::IValue read_object(PayloadReader& in, std::size_t attributes, const NamedTypes* types) {
  const std::string name(in.string());
  const auto type = type_named<c10::ClassType>(name, types);
  if (attributes != type->numAttributes()) {
    throw Error(ErrorKind::Invalid, "'" + name + "' has " + std::to_string(type->numAttributes()) +
                                        " attributes here, " + std::to_string(attributes) +
                                        " were sent");
  }
  auto object =
      c10::ivalue::Object::create(c10::StrongTypePtr(type->compilation_unit(), type), attributes);
  for (std::size_t i = 0; i < attributes; ++i) {
    c10::IValue received = read_ivalue(in, types);
    auto attribute = tensor::converted(received, type->getAttribute(i));
    if (!attribute) {
      throw Error(ErrorKind::Invalid, "'" + name + "." + type->getAttributeName(i) + "' is a " +
                                          type->getAttribute(i)->repr_str() + " here, a " +
                                          received.type()->repr_str() + " was sent");
    }
    object->setSlot(i, *std::move(attribute));
  }
  return object;
}

c10::IValue read_state(PayloadReader& in, const NamedTypes* types) {
  const std::string name(in.string());
  const auto type = type_named<c10::ClassType>(name, types);
  torch::jit::Function* const set_state = type->findMethod("__setstate__");
  if (!set_state) throw Error(ErrorKind::Invalid, "'" + name + "' has no __setstate__ here");
  auto object = c10::ivalue::Object::create(c10::StrongTypePtr(type->compilation_unit(), type),
                                            type->numAttributes());
  c10::IValue received = read_ivalue(in, types);
  const c10::TypePtr declared = set_state->getSchema().arguments().at(1).type();
  auto state = tensor::converted(received, declared);
  if (!state) {
    throw Error(ErrorKind::Invalid, "the state of a '" + name + "' is a " + declared->repr_str() +
                                        " here, a " + received.type()->repr_str() + " was sent");
  }
  (*set_state)({c10::IValue(object), *std::move(state)});
  return object;
}

// Libtorch does not find an enum by its name, so it is made when its type is known: converted().
c10::IValue read_enum(PayloadReader& in) {
  std::string name(in.string());
  return c10::ivalue::Tuple::create(c10::IValue(std::move(name)),
                                    c10::IValue(std::string(in.string())));
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
  if (value.isRRef()) return write_reference(out, value);
  if (value.isObject()) return write_object(out, value);
  if (value.isEnum()) return write_enum(out, value);
  if (value.isDevice()) {
    out.record(kDeviceRecord, 1);
    return out.string(value.toDevice().str());
  }
  throw Error(ErrorKind::Invalid, "cannot send a value of kind " + kind_of(value));
}

c10::IValue read_ivalue(PayloadReader& in, const NamedTypes* types) {
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
      return read_list(in, types);
    case wire::Tag::Tuple: {
      const auto inside = in.nest();
      return c10::ivalue::Tuple::create(read_elements(in, in.tuple(), types));
    }
    case wire::Tag::Dict:
      return read_dict(in, types);
    case wire::Tag::Record: {
      const auto inside = in.nest();
      return read_ivalue_record(in, in.record(), types);
    }
    case wire::Tag::Reference: {
      auto held = std::dynamic_pointer_cast<ScriptableReference>(in.reference());
      if (!held) throw Error(ErrorKind::Invalid, "scripts cannot hold a reference of that kind");
      const ScriptableReference& reference = *held;
      return reference.as_rref(std::move(held), nullptr);
    }
  }
  throw in.mismatch("a plain value");
}

bool is_ivalue_record(std::string_view type) {
  return type == kDeviceRecord || type == kObjectRecord || type == kStateRecord ||
         type == kEnumRecord;
}

c10::IValue read_ivalue_record(PayloadReader& in, wire::ValueReader::Record record,
                               const NamedTypes* types) {
  const std::size_t fixed = record.type == kDeviceRecord                                ? 1
                            : record.type == kStateRecord || record.type == kEnumRecord ? 2
                                                                                        : 0;
  if ((fixed != 0 && record.count != fixed) ||
      (record.type == kObjectRecord && record.count == 0)) {
    throw Error(ErrorKind::Invalid,
                "malformed value: a " + std::string(record.type) + " of other shape");
  }
  if (record.type == kDeviceRecord) return read_device(in);
  if (record.type == kObjectRecord) return read_object(in, record.count - 1, types);
  if (record.type == kStateRecord) return read_state(in, types);
  if (record.type == kEnumRecord) return read_enum(in);
  return c10::ivalue::Tuple::create(read_elements(in, record.count, types));
}

std::shared_ptr<ScriptableReference> carried_by(const c10::RRefInterface& rref) {
  const auto* const reference = dynamic_cast<const CarriedReference*>(&rref);
  return reference ? reference->carried() : nullptr;
}

}  // namespace hawser
