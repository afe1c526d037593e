#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "hawser/base/error.h"
#include "hawser/base/inline_vector.h"

// Plain data as a compact tree of bytes: what arguments and results are made of, the same for C++,
// TorchScript and Python. Reading never trusts a count or a size further than the bytes that are
// there.
//
//   value   := tag, then by tag:
//   Null, False, True      nothing
//   Int                    zigzag varint, 64 bits
//   Double                 8 bytes        Complex   16 bytes
//   String, Bytes          varint length, that many bytes (String is UTF-8)
//   Blob, Text             varint index of a segment: bytes, and UTF-8, too large to copy
//   Tensor                 varint index into Payload.tensors
//   Reference              varint index into Payload.references
//   List, Tuple            varint count, that many values
//   Dict                   varint count, that many pairs of values (key, value), in order
//   Record                 String (type name), varint count, that many values: a user's struct
namespace hawser::wire {

enum class Tag : std::uint8_t {
  Null = 0,
  False = 1,
  True = 2,
  Int = 3,
  Double = 4,
  Complex = 5,
  String = 6,
  Bytes = 7,
  Blob = 8,
  Tensor = 9,
  Reference = 10,
  List = 11,
  Tuple = 12,
  Dict = 13,
  Record = 14,
  Text = 15,
};

std::string_view to_string(Tag tag);

// Whoever writes or reads trees of unknown shape refuses values nested deeper than this, so that
// recursion is bounded on both sides.
inline constexpr int kMaxValueDepth = 200;

// A value that takes more is refused when it is written. Nodes set a lower limit for what they
// receive (Limits::max_body_bytes).
inline constexpr std::size_t kMaxValueBytes = std::size_t{1} << 30;

// A value in bytes, to be sent. The arguments of most calls fit without an allocation.
using ValueBytes = InlineVector<std::byte, 120>;

// Appends to `out`, which must outlive the writer. Throws Error(Invalid) beyond kMaxValueBytes.
class ValueWriter {
 public:
  explicit ValueWriter(ValueBytes& out) : out_(out) {}

  void null() { tag(Tag::Null); }
  void boolean(bool value) { tag(value ? Tag::True : Tag::False); }
  void integer(std::int64_t value);
  void real(double value);
  void complex(std::complex<double> value);
  void string(std::string_view value);
  void bytes(std::span<const std::byte> value);
  void blob(std::uint64_t segment);
  void text(std::uint64_t segment);
  void tensor(std::uint64_t index);
  void reference(std::uint64_t index);
  // Followed by that many values (pairs for a dict).
  void list(std::uint64_t count);
  void tuple(std::uint64_t count);
  void dict(std::uint64_t count);
  void record(std::string_view type, std::uint64_t count);

 private:
  void tag(Tag tag) { out_.push_back(static_cast<std::byte>(tag)); }
  void varint(std::uint64_t value);
  void raw(const void* data, std::size_t size);

  ValueBytes& out_;
};

// Reads what ValueWriter wrote, one value at a time; every method throws Error(Invalid) when the
// next value is of another kind (naming both) or the bytes end early. Views point into the input.
class ValueReader {
 public:
  explicit ValueReader(std::span<const std::byte> in) : in_(in) {}

  bool at_end() const { return in_.empty(); }
  std::size_t remaining() const { return in_.size(); }
  Tag peek() const;

  void null();
  bool boolean();
  std::int64_t integer();
  double real();                   // accepts Int as well
  std::complex<double> complex();  // accepts Int and Double as well
  std::string_view string();
  std::span<const std::byte> bytes();
  std::uint64_t blob();
  std::uint64_t text();
  std::uint64_t tensor();
  std::uint64_t reference();
  // The count that follows is at most the number of bytes left, so reserving it is safe.
  std::uint64_t list();
  std::uint64_t tuple();
  std::uint64_t dict();
  struct Record {
    std::string_view type;
    std::uint64_t count;
  };
  Record record();

  // Steps over one whole value, however deep: it does not recurse.
  void skip();

 private:
  void expect(Tag tag);
  std::uint64_t varint();
  std::uint64_t count(std::size_t bytes_per_item);
  std::span<const std::byte> raw(std::uint64_t size);

  std::span<const std::byte> in_;
};

}  // namespace hawser::wire
