// Any bytes as a value: reading either stops with Error(Invalid) or agrees with skipping, and what
// was read is written back to a value that reads the same.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "hawser/wire/value.h"

namespace hawser::wire {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Copies one value from reader to writer, as a generic user of the format does.
void copy_value(ValueReader& reader, ValueWriter& writer, int depth) {
  if (depth > kMaxValueDepth) throw Error(ErrorKind::Invalid, "too deep");
  const auto copy_items = [&](std::uint64_t count) {
    for (; count > 0; --count) copy_value(reader, writer, depth + 1);
  };
  std::uint64_t count = 0;
  switch (reader.peek()) {
    case Tag::Null:
      reader.null();
      return writer.null();
    case Tag::False:
    case Tag::True:
      return writer.boolean(reader.boolean());
    case Tag::Int:
      return writer.integer(reader.integer());
    case Tag::Double:
      return writer.real(reader.real());
    case Tag::Complex:
      return writer.complex(reader.complex());
    case Tag::String:
      return writer.string(reader.string());
    case Tag::Bytes:
      return writer.bytes(reader.bytes());
    case Tag::Blob:
      return writer.blob(reader.blob());
    case Tag::Text:
      return writer.text(reader.text());
    case Tag::Tensor:
      return writer.tensor(reader.tensor());
    case Tag::Reference:
      return writer.reference(reader.reference());
    case Tag::List:
      writer.list(count = reader.list());
      return copy_items(count);
    case Tag::Tuple:
      writer.tuple(count = reader.tuple());
      return copy_items(count);
    case Tag::Dict:
      writer.dict(count = reader.dict());
      return copy_items(2 * count);
    case Tag::Record: {
      const ValueReader::Record record = reader.record();
      writer.record(record.type, record.count);
      return copy_items(record.count);
    }
  }
}

void run(std::span<const std::byte> input) {
  ValueBytes copy;
  ValueReader reader(input);
  try {
    ValueWriter writer(copy);
    copy_value(reader, writer, 0);
  } catch (const Error& error) {
    return require(error.kind() == ErrorKind::Invalid);
  }
  ValueReader skipper(input);
  skipper.skip();
  require(skipper.remaining() == reader.remaining());

  ValueBytes second;
  ValueReader again(copy);
  ValueWriter writer(second);
  copy_value(again, writer, 0);
  require(again.at_end() && second == copy);
}

}  // namespace
}  // namespace hawser::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hawser::wire::run(std::as_bytes(std::span(data, size)));
  return 0;
}
