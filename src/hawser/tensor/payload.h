#pragma once

#include <ATen/core/Tensor.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hawser/base/buffer.h"
#include "hawser/base/error.h"
#include "hawser/tensor/graph_tie.h"
#include "hawser/tensor/pack.h"
#include "hawser/tensor/unpack.h"
#include "hawser/wire/message.h"
#include "hawser/wire/value.h"

// Values with tensors in them: the value tree of wire/value.h together with the tables it points
// into. Everything that turns arguments and results into messages (typed C++, IValue, and later
// Python) writes and reads through these two classes.
namespace hawser {

using Bytes = std::vector<std::byte>;

// Strings and bytes above this travel in a segment of their own instead of among the arguments.
inline constexpr std::size_t kLargestInlineBytes = 64 * 1024;

// One level of nesting, for as long as it lives. Values nest at most wire::kMaxValueDepth deep.
class [[nodiscard]] Nesting {
 public:
  explicit Nesting(int& depth);  // throws Error(Invalid) when that is too deep
  Nesting(const Nesting&) = delete;
  ~Nesting() { --depth_; }

 private:
  int& depth_;
};

// Not thread-safe; used for one message. Tensors must not be written to until it has been sent
// (tensor/pack.h); strings and bytes are copied, or moved where an rvalue is given.
class PayloadWriter {
 public:
  explicit PayloadWriter(const tensor::DeviceStaging* staging = nullptr)
      : value_(payload_.value), packer_(staging) {}
  PayloadWriter(const PayloadWriter&) = delete;

  void null() { value_.null(); }
  void boolean(bool value) { value_.boolean(value); }
  void integer(std::int64_t value) { value_.integer(value); }
  void real(double value) { value_.real(value); }
  void complex(std::complex<double> value) { value_.complex(value); }
  void string(std::string_view value);
  void string(std::string&& value);
  void bytes(std::span<const std::byte> value);
  void bytes(Bytes&& value);
  void bytes(Buffer value);  // sent from where it is, unless it is small
  void tensor(at::Tensor value) { value_.tensor(packer_.add(std::move(value))); }
  void reference(std::shared_ptr<wire::HeldReference> held);
  // Followed by that many values (pairs for a dict), inside a nest().
  void list(std::size_t count) { value_.list(count); }
  void tuple(std::size_t count) { value_.tuple(count); }
  void dict(std::size_t count) { value_.dict(count); }
  void record(std::string_view type, std::size_t count) { value_.record(type, count); }
  Nesting nest() { return Nesting(depth_); }

  // The writer is spent.
  wire::Payload finish();

 private:
  template <class Container>
  std::uint64_t segment(std::shared_ptr<Container> value);
  std::uint64_t segment(Buffer bytes);

  wire::Payload payload_;
  wire::ValueWriter value_;
  tensor::TensorPacker packer_;
  int depth_ = 0;
};

// Reads one received message. Not thread-safe. The payload must outlive the reader; its segments
// are moved into the tensors that are read. Every method throws Error(Invalid) when the next value
// is of another kind ("expected int, got string") or malformed.
class PayloadReader {
 public:
  explicit PayloadReader(wire::ReceivedPayload& payload,
                         const tensor::DeviceStaging* staging = nullptr)
      : value_(payload.value),
        held_(payload.held),
        unpacker_(payload.tensors, payload.segments,
                  static_cast<tensor::History*>(payload.tie.get()), staging) {}
  PayloadReader(const PayloadReader&) = delete;

  bool at_end() const { return value_.at_end(); }
  wire::Tag peek() const { return value_.peek(); }

  void null();
  bool boolean();
  std::int64_t integer();
  double real();                       // accepts an int
  std::complex<double> complex();      // accepts an int or a float
  std::string_view string();           // valid as long as the payload
  std::span<const std::byte> bytes();  // valid as long as the payload
  at::Tensor tensor();
  std::shared_ptr<wire::HeldReference> reference();  // Error(PeerLost) if it came too late
  // The number of values (pairs for a dict) that follow, to be read inside a nest(). It is not more
  // than the bytes that are left, but each may take many more bytes once read: reserve with care.
  std::size_t list();
  std::size_t tuple();
  std::size_t dict();
  wire::ValueReader::Record record();
  Nesting nest() { return Nesting(depth_); }
  void skip() { value_.skip(); }

  // "expected <wanted>, got <what is next>".
  Error mismatch(std::string_view wanted) const;

  // To be called when all is read, and before the tensors are used: the reader lets go of the
  // received memory, so that tensors alone own it. Throws Error(Invalid) if something is left.
  void finish();

 private:
  void expect(wire::Tag tag, std::string_view wanted) const;

  wire::ValueReader value_;
  std::span<const std::shared_ptr<wire::HeldReference>> held_;
  tensor::TensorUnpacker unpacker_;
  int depth_ = 0;
};

// The same error, told from one level further out: "<where>: <message>".
Error within(std::string_view where, const Error& error);

}  // namespace hawser
