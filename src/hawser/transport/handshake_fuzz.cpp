// Whatever a stranger sends, either end of a handshake ends in success or failure and holds no more
// than the limit. The first byte of the input chooses the end and how the bytes are cut up.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "hawser/base/error.h"
#include "hawser/transport/handshake.h"

namespace {

using namespace hawser;
using namespace hawser::transport;

constexpr std::size_t kLimit = 4096;

// The same nonces each time, so that an input means the same each time.
class NoRandom final : public Random {
 public:
  void fill(std::span<std::byte> out) override {
    for (std::byte& each : out) each = std::byte{7};
  }
};

class OpenDoor final : public Host {
 public:
  Identity identity() const override { return {"server", Incarnation{1}, {}, {}}; }
  std::optional<wire::Refusal> admit(const wire::Hello&) override { return std::nullopt; }
  void accepted(std::shared_ptr<Link>) override {}
  void turned_away(std::string_view) override {}
  void watch_writable(Link&) override {}
};

template <class End>
void converse(End& end, std::span<const std::byte> input, std::size_t piece) {
  HandshakeReader reader(kLimit);
  while (!input.empty()) {
    const std::size_t wanted = reader.wanted();
    if (wanted == 0 || wanted > kLimit) std::abort();
    const std::size_t take = std::min({wanted, piece, input.size()});
    const auto frame = reader.feed(input.first(take));
    input = input.subspan(take);
    if (!frame) continue;
    if (frame->size() > kLimit) std::abort();
    if (!std::holds_alternative<SendThis>(end.receive(*frame))) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  const std::size_t piece = 1 + (data[0] >> 1) * 31;
  NoRandom random;
  OpenDoor host;
  try {
    if (data[0] & 1) {
      AcceptorHandshake acceptor(host, random, wire::Welcome{});
      converse(acceptor, input, piece);
    } else {
      InitiatorHandshake initiator({"client", Incarnation{1}, {}, {}}, "server", random);
      initiator.start();
      converse(initiator, input, piece);
    }
  } catch (const Error& malformed) {
    if (malformed.kind() != ErrorKind::Invalid) std::abort();
  }
  return 0;
}
