#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "hawser/base/random.h"
#include "hawser/transport/transport.h"
#include "hawser/wire/message.h"

// The handshake of protocol.fbs without I/O: frames in, frames out. Every transport runs it over
// its own bytes. Each class is used by one thread at a time and does not outlive its Host and
// Random.
//
// What a proof covers: role || the frames of both directions before it, byte by byte. The
// acceptor's proof covers the Hello (and so the initiator's nonce), the initiator's covers Hello
// and Challenge.
namespace hawser::transport {

struct SendThis {
  std::vector<std::byte> bytes;  // a whole frame
};
struct Succeeded {
  PeerIdentity peer;
  std::vector<std::byte> last_words;  // a frame to send before the link is used; may be empty
};
struct Failed {
  std::optional<wire::RefusalReason> refusal;  // that the peer sent, or that we are sending
  std::string why;
  std::vector<std::byte> last_words;  // a Refusal to send before closing; may be empty
};
using HandshakeStep = std::variant<SendThis, Succeeded, Failed>;

// A frame that says no, for a transport that finds its own reason to.
std::vector<std::byte> refusal_frame(wire::RefusalReason reason, std::string detail);

// The side that connects.
class InitiatorHandshake {
 public:
  InitiatorHandshake(const Identity& self, std::string peer_name, Random& random);

  std::vector<std::byte> start();                                 // Hello
  HandshakeStep receive(std::span<const std::byte> whole_frame);  // Challenge, then Welcome

  const wire::Welcome& welcome() const { return welcome_; }  // once Succeeded

 private:
  enum class Expecting { Challenge, Welcome, Nothing };
  HandshakeStep answer(const wire::Challenge& challenge, std::span<const std::byte> frame);
  Identity self_;
  std::string peer_name_;
  Random& random_;
  Expecting expecting_ = Expecting::Challenge;
  std::vector<std::byte> transcript_;
  PeerIdentity peer_;
  wire::Welcome welcome_;
};

// The side that accepts. Succeeds with the Welcome frame as last words.
class AcceptorHandshake {
 public:
  AcceptorHandshake(Host& host, Random& random, wire::Welcome welcome);

  HandshakeStep receive(std::span<const std::byte> whole_frame);  // Hello, then Proof

 private:
  enum class Expecting { Hello, Proof, Nothing };
  HandshakeStep challenge(wire::Hello hello, std::span<const std::byte> frame);
  HandshakeStep judge(const wire::Proof& proof);
  Failed refuse(wire::RefusalReason reason, std::string detail);
  Host& host_;
  Random& random_;
  wire::Welcome welcome_;
  Identity self_;
  wire::Hello hello_;
  Expecting expecting_ = Expecting::Hello;
  std::vector<std::byte> transcript_;
};

// Splits a byte stream into the small frames of a handshake. Nothing beyond `limit` is ever held.
class HandshakeReader {
 public:
  explicit HandshakeReader(std::size_t limit) : limit_(limit) {}
  // How many bytes to read next: never reads past the end of the frame, so that what follows the
  // handshake stays in the socket.
  std::size_t wanted() const;
  // Gives at most wanted() bytes; a complete frame, or nothing yet. Throws Error(Invalid) when it
  // can be none.
  std::optional<std::vector<std::byte>> feed(std::span<const std::byte> bytes);

 private:
  std::size_t limit_;
  std::vector<std::byte> partial_;
};

}  // namespace hawser::transport
