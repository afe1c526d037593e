// Any bytes as the body of a message about references. Whatever decode() accepts becomes records,
// and those travel on unchanged.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "hawser/refs/wire_form.h"

namespace {

using namespace hawser;

// Nothing if it is no such message.
std::optional<refs::Message> read(std::span<const std::byte> body) {
  wire::InFrame frame{wire::Kind::References, wire::BodyBytes(body.size()), {}};
  if (!body.empty()) std::memcpy(frame.body.data(), body.data(), body.size());
  Result<wire::Message> decoded = wire::decode(frame);
  if (!decoded.ok()) return std::nullopt;
  return refs::from_wire(std::get<wire::References>(std::move(decoded).take()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = read(std::as_bytes(std::span(data, size)));
  if (!message) return 0;
  const wire::OutFrame sent = wire::encode(refs::to_wire(*message));
  if (read(sent.body) != message) std::abort();
  return 0;
}
