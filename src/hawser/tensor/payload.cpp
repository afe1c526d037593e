#include "hawser/tensor/payload.h"

#include <memory>
#include <utility>

#include "hawser/tensor/graph_tie.h"

namespace hawser {
namespace {

// In the words of signatures, not of the wire.
std::string_view words_for(wire::Tag tag) {
  switch (tag) {
    case wire::Tag::Null:
      return "None";
    case wire::Tag::False:
    case wire::Tag::True:
      return "bool";
    case wire::Tag::Int:
      return "int";
    case wire::Tag::Double:
      return "float";
    case wire::Tag::Complex:
      return "complex";
    case wire::Tag::String:
    case wire::Tag::Text:
      return "string";
    case wire::Tag::Bytes:
    case wire::Tag::Blob:
      return "bytes";
    case wire::Tag::Tensor:
      return "Tensor";
    case wire::Tag::Reference:
      return "reference";
    case wire::Tag::List:
      return "list";
    case wire::Tag::Tuple:
      return "tuple";
    case wire::Tag::Dict:
      return "dict";
    case wire::Tag::Record:
      return "struct";
  }
  return "something unknown";
}

}  // namespace

Nesting::Nesting(int& depth) : depth_(depth) {
  if (depth >= wire::kMaxValueDepth) {
    throw Error(ErrorKind::Invalid, "a value is nested deeper than " +
                                        std::to_string(wire::kMaxValueDepth) + " levels");
  }
  ++depth;
}

template <class Container>
std::uint64_t PayloadWriter::segment(std::shared_ptr<Container> value) {
  auto* const data = reinterpret_cast<std::byte*>(value->data());
  const std::size_t size = value->size();
  return segment(Buffer(data, size, std::move(value)));
}

std::uint64_t PayloadWriter::segment(Buffer bytes) {
  payload_.segments.push_back(std::move(bytes));
  return payload_.segments.size() - 1;
}

void PayloadWriter::string(std::string_view value) {
  if (value.size() <= kLargestInlineBytes) return value_.string(value);
  value_.text(segment(std::make_shared<std::string>(value)));
}

void PayloadWriter::string(std::string&& value) {
  if (value.size() <= kLargestInlineBytes) return value_.string(value);
  value_.text(segment(std::make_shared<std::string>(std::move(value))));
}

void PayloadWriter::bytes(std::span<const std::byte> value) {
  if (value.size() <= kLargestInlineBytes) return value_.bytes(value);
  value_.blob(segment(std::make_shared<Bytes>(value.begin(), value.end())));
}

void PayloadWriter::bytes(Bytes&& value) {
  if (value.size() <= kLargestInlineBytes) return value_.bytes(value);
  value_.blob(segment(std::make_shared<Bytes>(std::move(value))));
}

void PayloadWriter::bytes(Buffer value) {
  if (value.size() <= kLargestInlineBytes) {
    return value_.bytes(std::span(value.data(), value.size()));
  }
  value_.blob(segment(std::move(value)));
}

void PayloadWriter::reference(std::shared_ptr<wire::HeldReference> held) {
  value_.reference(payload_.held.size());
  payload_.held.push_back(std::move(held));
}

// Blobs come first among the segments: their indices are needed while writing, those of the
// tensors' storages are known only when all tensors are.
wire::Payload PayloadWriter::finish() {
  if (!packer_.empty()) {
    auto packed = packer_.finish(static_cast<std::uint32_t>(payload_.segments.size()));
    payload_.tensors = std::move(packed.tensors);
    if (!packed.differentiable.empty()) {
      payload_.tie = std::make_shared<tensor::Differentiable>(std::move(packed.differentiable));
    }
    if (payload_.segments.empty()) {
      payload_.segments = std::move(packed.segments);
    } else {
      payload_.segments.insert(payload_.segments.end(),
                               std::make_move_iterator(packed.segments.begin()),
                               std::make_move_iterator(packed.segments.end()));
    }
  }
  return std::move(payload_);
}

void PayloadReader::expect(wire::Tag tag, std::string_view wanted) const {
  if (value_.at_end() || value_.peek() != tag) throw mismatch(wanted);
}

Error PayloadReader::mismatch(std::string_view wanted) const {
  std::string got = "nothing";
  if (!value_.at_end()) {
    const wire::Tag tag = value_.peek();
    wire::ValueReader ahead = value_;
    got = tag == wire::Tag::Record ? ahead.record().type : words_for(tag);
  }
  return Error(ErrorKind::Invalid, "expected " + std::string(wanted) + ", got " + got);
}

void PayloadReader::null() {
  expect(wire::Tag::Null, "None");
  value_.null();
}

bool PayloadReader::boolean() {
  if (value_.at_end() || (peek() != wire::Tag::True && peek() != wire::Tag::False)) {
    throw mismatch("bool");
  }
  return value_.boolean();
}

std::int64_t PayloadReader::integer() {
  expect(wire::Tag::Int, "int");
  return value_.integer();
}

double PayloadReader::real() {
  if (value_.at_end() || peek() != wire::Tag::Int) expect(wire::Tag::Double, "float");
  return value_.real();
}

std::complex<double> PayloadReader::complex() {
  const bool is_real =
      !value_.at_end() && (peek() == wire::Tag::Int || peek() == wire::Tag::Double);
  if (!is_real) expect(wire::Tag::Complex, "complex");
  return value_.complex();
}

std::string_view PayloadReader::string() {
  if (!value_.at_end() && peek() == wire::Tag::Text) {
    const auto text = unpacker_.blob(value_.text());
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  expect(wire::Tag::String, "string");
  return value_.string();
}

std::span<const std::byte> PayloadReader::bytes() {
  if (!value_.at_end() && peek() == wire::Tag::Blob) return unpacker_.blob(value_.blob());
  expect(wire::Tag::Bytes, "bytes");
  return value_.bytes();
}

at::Tensor PayloadReader::tensor() {
  expect(wire::Tag::Tensor, "Tensor");
  return unpacker_.tensor(value_.tensor());
}

std::shared_ptr<wire::HeldReference> PayloadReader::reference() {
  expect(wire::Tag::Reference, "reference");
  const std::uint64_t index = value_.reference();
  if (index >= held_.size()) {
    throw Error(ErrorKind::Invalid, "malformed value: no reference " + std::to_string(index));
  }
  if (!held_[index]) {
    throw Error(ErrorKind::PeerLost, "a reference came too late: its owner or its giver is gone");
  }
  return held_[index];
}

std::size_t PayloadReader::list() {
  expect(wire::Tag::List, "list");
  return value_.list();
}

std::size_t PayloadReader::tuple() {
  expect(wire::Tag::Tuple, "tuple");
  return value_.tuple();
}

std::size_t PayloadReader::dict() {
  expect(wire::Tag::Dict, "dict");
  return value_.dict();
}

wire::ValueReader::Record PayloadReader::record() {
  expect(wire::Tag::Record, "struct");
  return value_.record();
}

void PayloadReader::finish() {
  unpacker_.release();
  if (!at_end()) {
    throw Error(ErrorKind::Invalid,
                "malformed value: " + std::to_string(value_.remaining()) + " bytes are left over");
  }
}

Error within(std::string_view where, const Error& error) {
  return Error(error.kind(), std::string(where) + ": " + error.message(), error.details());
}

}  // namespace hawser
