// Any bytes as a body of any kind. Input: kind, number of (empty) segments, body. Whatever decode()
// accepts, encode() must be able to send, and it must arrive.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "hawser/wire/message.h"

namespace hawser::wire {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

InFrame frame_of(Kind kind, std::span<const std::byte> body, std::vector<Buffer> segments) {
  InFrame frame{kind, BodyBytes(body.size()), std::move(segments)};
  if (!body.empty()) std::memcpy(frame.body.data(), body.data(), body.size());
  return frame;
}

Payload forwarded(ReceivedPayload&& payload) {
  return {ValueBytes(payload.value), std::move(payload.tensors), std::move(payload.references),
          std::move(payload.segments)};
}
OutFrame forward(ReceivedCall&& m) {
  return encode(Call{m.id, m.target, m.function, m.budget_us, m.chain, m.depth, m.one_way,
                     forwarded(std::move(m.payload)), std::move(m.notes), m.creates, m.subject});
}
OutFrame forward(ReceivedReply&& m) {
  return encode(Reply{m.id, forwarded(std::move(m.payload)), std::move(m.notes)});
}
OutFrame forward(ReceivedFailure&& m) {
  return encode(Failure{m.id, m.error, forwarded(std::move(m.payload)), std::move(m.report)});
}
template <class Plain>
OutFrame forward(Plain&& m) {
  return encode(m);
}

void fuzz_message(Kind kind, std::size_t segments, std::span<const std::byte> body) {
  InFrame frame = frame_of(kind, body, std::vector<Buffer>(segments));
  Result<Message> message = decode(frame);
  if (!message.ok()) return require(message.error().kind() == ErrorKind::Invalid);
  OutFrame sent =
      std::visit([](auto&& m) { return forward(std::move(m)); }, std::move(message).take());
  require(sent.kind == kind && sent.segments.size() == segments);
  InFrame again = frame_of(kind, sent.body, std::move(sent.segments));
  require(decode(again).ok());
}

void fuzz_handshake(Kind kind, std::span<const std::byte> body) {
  const Result<Handshake> step = decode_handshake(body, kind);
  if (!step.ok()) return require(step.error().kind() == ErrorKind::Invalid);
  const OutFrame sent = encode(step.value());
  const Result<Handshake> again = decode_handshake(sent.body, sent.kind);
  require(sent.kind == kind && again.ok() && again.value() == step.value());
}

void run(std::span<const std::byte> input) {
  if (input.size() < 2) return;
  const auto kind = static_cast<Kind>(input[0]);
  const auto segments = static_cast<std::size_t>(input[1]) % 8;
  const auto body = input.subspan(2);
  fuzz_handshake(kind, body);
  fuzz_message(kind, segments, body);
}

}  // namespace
}  // namespace hawser::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hawser::wire::run(std::as_bytes(std::span(data, size)));
  return 0;
}
