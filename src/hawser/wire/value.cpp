#include "hawser/wire/value.h"

#include <cstring>
#include <string>

namespace hawser::wire {
namespace {

constexpr int kLargestVarint = 10;  // bytes of 7 bits each

std::uint64_t zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

[[noreturn]] void throw_invalid(std::string why) {
  throw Error(ErrorKind::Invalid, std::move(why));
}
[[noreturn]] void throw_mismatch(std::string_view expected, Tag found) {
  throw_invalid("expected " + std::string(expected) + ", found " + std::string(to_string(found)));
}

}  // namespace

std::string_view to_string(Tag tag) {
  switch (tag) {
    case Tag::Null:
      return "null";
    case Tag::False:
      return "false";
    case Tag::True:
      return "true";
    case Tag::Int:
      return "int";
    case Tag::Double:
      return "double";
    case Tag::Complex:
      return "complex";
    case Tag::String:
      return "string";
    case Tag::Bytes:
      return "bytes";
    case Tag::Blob:
      return "blob";
    case Tag::Tensor:
      return "tensor";
    case Tag::Reference:
      return "reference";
    case Tag::List:
      return "list";
    case Tag::Tuple:
      return "tuple";
    case Tag::Dict:
      return "dict";
    case Tag::Record:
      return "record";
    case Tag::Text:
      return "text";
  }
  return "unknown";
}

// ------------------------------------------------------------------------------------- writing

void ValueWriter::integer(std::int64_t value) {
  tag(Tag::Int);
  varint(zigzag(value));
}

void ValueWriter::real(double value) {
  tag(Tag::Double);
  raw(&value, sizeof value);
}

void ValueWriter::complex(std::complex<double> value) {
  const double parts[2] = {value.real(), value.imag()};
  tag(Tag::Complex);
  raw(parts, sizeof parts);
}

void ValueWriter::string(std::string_view value) {
  tag(Tag::String);
  varint(value.size());
  raw(value.data(), value.size());
}

void ValueWriter::bytes(std::span<const std::byte> value) {
  tag(Tag::Bytes);
  varint(value.size());
  raw(value.data(), value.size());
}

void ValueWriter::blob(std::uint64_t segment) {
  tag(Tag::Blob);
  varint(segment);
}

void ValueWriter::text(std::uint64_t segment) {
  tag(Tag::Text);
  varint(segment);
}

void ValueWriter::tensor(std::uint64_t index) {
  tag(Tag::Tensor);
  varint(index);
}

void ValueWriter::reference(std::uint64_t index) {
  tag(Tag::Reference);
  varint(index);
}

void ValueWriter::list(std::uint64_t count) {
  tag(Tag::List);
  varint(count);
}

void ValueWriter::tuple(std::uint64_t count) {
  tag(Tag::Tuple);
  varint(count);
}

void ValueWriter::dict(std::uint64_t count) {
  tag(Tag::Dict);
  varint(count);
}

void ValueWriter::record(std::string_view type, std::uint64_t count) {
  tag(Tag::Record);
  string(type);
  varint(count);
}

void ValueWriter::varint(std::uint64_t value) {
  while (value >= 0x80) {
    out_.push_back(static_cast<std::byte>(value | 0x80));
    value >>= 7;
  }
  out_.push_back(static_cast<std::byte>(value));
}

void ValueWriter::raw(const void* data, std::size_t size) {
  if (size > kMaxValueBytes || out_.size() > kMaxValueBytes - size) {
    throw_invalid("plain data of more than " + std::to_string(kMaxValueBytes) +
                  " bytes: send it as a tensor or a blob");
  }
  out_.append({static_cast<const std::byte*>(data), size});
}

// ------------------------------------------------------------------------------------- reading

Tag ValueReader::peek() const {
  if (in_.empty()) throw_invalid("expected a value, found the end");
  const Tag tag = static_cast<Tag>(in_.front());
  if (tag > Tag::Text) {
    throw_invalid("unknown tag " + std::to_string(static_cast<unsigned>(tag)));
  }
  return tag;
}

void ValueReader::expect(Tag tag) {
  const Tag found = peek();
  if (found != tag) throw_mismatch(to_string(tag), found);
  in_ = in_.subspan(1);
}

void ValueReader::null() { expect(Tag::Null); }

bool ValueReader::boolean() {
  const Tag found = peek();
  if (found != Tag::True && found != Tag::False) throw_mismatch("bool", found);
  in_ = in_.subspan(1);
  return found == Tag::True;
}

std::int64_t ValueReader::integer() {
  expect(Tag::Int);
  return unzigzag(varint());
}

double ValueReader::real() {
  if (peek() == Tag::Int) return static_cast<double>(integer());
  expect(Tag::Double);
  double value;
  std::memcpy(&value, raw(sizeof value).data(), sizeof value);
  return value;
}

std::complex<double> ValueReader::complex() {
  if (const Tag found = peek(); found == Tag::Int || found == Tag::Double) return real();
  expect(Tag::Complex);
  double parts[2];
  std::memcpy(parts, raw(sizeof parts).data(), sizeof parts);
  return {parts[0], parts[1]};
}

std::string_view ValueReader::string() {
  expect(Tag::String);
  const auto text = raw(varint());
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

std::span<const std::byte> ValueReader::bytes() {
  expect(Tag::Bytes);
  return raw(varint());
}

std::uint64_t ValueReader::blob() {
  expect(Tag::Blob);
  return varint();
}

std::uint64_t ValueReader::text() {
  expect(Tag::Text);
  return varint();
}

std::uint64_t ValueReader::tensor() {
  expect(Tag::Tensor);
  return varint();
}

std::uint64_t ValueReader::reference() {
  expect(Tag::Reference);
  return varint();
}

std::uint64_t ValueReader::list() {
  expect(Tag::List);
  return count(1);
}

std::uint64_t ValueReader::tuple() {
  expect(Tag::Tuple);
  return count(1);
}

std::uint64_t ValueReader::dict() {
  expect(Tag::Dict);
  return count(2);
}

ValueReader::Record ValueReader::record() {
  expect(Tag::Record);
  const std::string_view type = string();
  return {type, count(1)};
}

void ValueReader::skip() {
  // Counts are bounded by the bytes that are left, so the sum cannot overflow.
  for (std::uint64_t values = 1; values > 0; --values) {
    switch (peek()) {
      case Tag::Null:
      case Tag::False:
      case Tag::True:
        in_ = in_.subspan(1);
        break;
      case Tag::Int:
        integer();
        break;
      case Tag::Double:
        real();
        break;
      case Tag::Complex:
        complex();
        break;
      case Tag::String:
        string();
        break;
      case Tag::Bytes:
        bytes();
        break;
      case Tag::Blob:
        blob();
        break;
      case Tag::Text:
        text();
        break;
      case Tag::Tensor:
        tensor();
        break;
      case Tag::Reference:
        reference();
        break;
      case Tag::List:
        values += list();
        break;
      case Tag::Tuple:
        values += tuple();
        break;
      case Tag::Dict:
        values += 2 * dict();
        break;
      case Tag::Record:
        values += record().count;
        break;
    }
  }
}

std::uint64_t ValueReader::varint() {
  std::uint64_t value = 0;
  for (int i = 0; i < kLargestVarint; ++i) {
    if (in_.empty()) throw_invalid("a number ends early");
    const auto byte = static_cast<std::uint64_t>(in_.front());
    in_ = in_.subspan(1);
    if (i == kLargestVarint - 1 && byte > 1) break;  // more than 64 bits
    value |= (byte & 0x7F) << (7 * i);
    if (byte < 0x80) return value;
  }
  throw_invalid("a number has more than 64 bits");
}

std::uint64_t ValueReader::count(std::size_t bytes_per_item) {
  const std::uint64_t items = varint();
  if (items > in_.size() / bytes_per_item) {
    throw_invalid("a collection of " + std::to_string(items) + " items in " +
                  std::to_string(in_.size()) + " bytes");
  }
  return items;
}

std::span<const std::byte> ValueReader::raw(std::uint64_t size) {
  if (size > in_.size()) {
    throw_invalid(std::to_string(size) + " bytes announced, " + std::to_string(in_.size()) +
                  " left");
  }
  const auto taken = in_.first(size);
  in_ = in_.subspan(size);
  return taken;
}

}  // namespace hawser::wire
