#include "hawser/transport/handshake.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "hawser/base/error.h"

namespace hawser::transport {
namespace {

using Digest = std::array<std::uint8_t, 32>;

constexpr std::string_view kInitiator = "initiator";
constexpr std::string_view kAcceptor = "acceptor";

// HMAC-SHA256(secret, role || transcript)
Digest prove(std::span<const std::byte> secret, std::string_view role,
             std::span<const std::byte> transcript) {
  using Mac = std::unique_ptr<EVP_MAC, decltype(&EVP_MAC_free)>;
  using MacContext = std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)>;
  const Mac mac(EVP_MAC_fetch(nullptr, "HMAC", nullptr), EVP_MAC_free);
  const MacContext context(mac ? EVP_MAC_CTX_new(mac.get()) : nullptr, EVP_MAC_CTX_free);
  char hash[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, hash, 0),
                                   OSSL_PARAM_construct_end()};
  // A null key would mean "the one set before" to OpenSSL, so an empty secret needs an address.
  static constexpr unsigned char kNoBytes = 0;
  const auto* key =
      secret.empty() ? &kNoBytes : reinterpret_cast<const unsigned char*>(secret.data());
  Digest digest{};
  std::size_t written = 0;
  const bool done =
      context && EVP_MAC_init(context.get(), key, secret.size(), parameters) == 1 &&
      EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(role.data()),
                     role.size()) == 1 &&
      EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(transcript.data()),
                     transcript.size()) == 1 &&
      EVP_MAC_final(context.get(), digest.data(), &written, digest.size()) == 1 &&
      written == digest.size();
  if (!done) throw Error(ErrorKind::Invalid, "OpenSSL cannot compute HMAC-SHA256");
  return digest;
}

bool same(const Digest& one, const Digest& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

void append(std::vector<std::byte>& transcript, std::span<const std::byte> frame) {
  transcript.insert(transcript.end(), frame.begin(), frame.end());
}

std::vector<std::byte> frame_of(const wire::Handshake& message) {
  const wire::OutFrame out = wire::encode(message);
  const wire::FrameHeader header = out.header();
  std::vector<std::byte> bytes(sizeof header + out.body.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, out.body.data(), out.body.size());
  return bytes;
}

constexpr const char* kNotHawser = "this is not a hawser node";

bool may_begin_frame(std::span<const std::byte> bytes) {
  const auto magic = std::as_bytes(std::span(&wire::FrameHeader::kMagic, 1));
  const std::size_t known = std::min(bytes.size(), magic.size());
  return std::equal(bytes.begin(), bytes.begin() + known, magic.begin());
}

std::optional<std::string> objection(const wire::FrameHeader& header, std::size_t limit) {
  if (header.magic != wire::FrameHeader::kMagic) return kNotHawser;
  if (!wire::is_handshake(header.kind)) return "a message before the end of the handshake";
  if (header.flags != 0 || header.reserved != 0 || header.segment_count != 0 ||
      header.segment_bytes != 0) {
    return "a handshake frame with segments or flags";
  }
  if (header.body_bytes > limit - sizeof header) {
    return "a handshake frame of " + std::to_string(header.body_bytes) + " bytes";
  }
  return std::nullopt;
}

wire::FrameHeader header_at(std::span<const std::byte> bytes) {
  wire::FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

Result<wire::Handshake> decode_frame(std::span<const std::byte> frame) {
  if (frame.size() < sizeof(wire::FrameHeader)) {
    return Error(ErrorKind::Invalid, "a frame that ends in its header");
  }
  const wire::FrameHeader header = header_at(frame);
  if (const auto why = objection(header, frame.size())) return Error(ErrorKind::Invalid, *why);
  const auto body = frame.subspan(sizeof header);
  if (header.body_bytes != body.size()) {
    return Error(ErrorKind::Invalid, "a frame that is longer than it says");
  }
  return wire::decode_handshake(body, header.kind);
}

std::string version_text(std::uint16_t major, std::uint16_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string version_mismatch(std::uint16_t major, std::uint16_t minor, std::string_view theirs) {
  return "protocol " + version_text(wire::kProtocolMajor, wire::kProtocolMinor) +
         " here, protocol " + version_text(major, minor) + " at " + std::string(theirs);
}

// Features that both ends have; this version numbers none of its own.
std::vector<std::uint16_t> shared_features(const std::vector<std::uint16_t>& ours,
                                           const std::vector<std::uint16_t>& theirs) {
  std::vector<std::uint16_t> both;
  for (const std::uint16_t feature : ours) {
    if (std::find(theirs.begin(), theirs.end(), feature) != theirs.end()) both.push_back(feature);
  }
  return both;
}

void fill(Random& random, std::array<std::uint8_t, 32>& nonce) {
  random.fill(std::as_writable_bytes(std::span(nonce)));
}

Failed failed(std::string why, std::optional<wire::RefusalReason> reason = std::nullopt) {
  return Failed{reason, std::move(why), {}};
}

}  // namespace

std::vector<std::byte> refusal_frame(wire::RefusalReason reason, std::string detail) {
  return frame_of(wire::Refusal{reason, std::move(detail)});
}

// ---------------------------------------------------------------------------------- initiator

InitiatorHandshake::InitiatorHandshake(const Identity& self, std::string peer_name, Random& random)
    : self_(self), peer_name_(std::move(peer_name)), random_(random) {}

std::vector<std::byte> InitiatorHandshake::start() {
  wire::Hello hello;
  hello.world = self_.world;
  hello.from = self_.name;
  hello.incarnation = self_.incarnation;
  hello.to = peer_name_;
  fill(random_, hello.nonce);
  hello.rank = self_.rank;
  auto frame = frame_of(hello);
  append(transcript_, frame);
  return frame;
}

HandshakeStep InitiatorHandshake::receive(std::span<const std::byte> whole_frame) {
  const Expecting expected = std::exchange(expecting_, Expecting::Nothing);
  const Result<wire::Handshake> message = decode_frame(whole_frame);
  if (!message) return failed("a malformed handshake: " + message.error().message());
  if (const auto* refusal = std::get_if<wire::Refusal>(&message.value())) {
    return failed("refused: " + refusal->detail, refusal->reason);
  }
  if (const auto* challenge = std::get_if<wire::Challenge>(&message.value());
      challenge && expected == Expecting::Challenge) {
    return answer(*challenge, whole_frame);
  }
  if (const auto* welcome = std::get_if<wire::Welcome>(&message.value());
      welcome && expected == Expecting::Welcome) {
    welcome_ = *welcome;
    return Succeeded{peer_, {}};
  }
  return failed("a handshake message out of turn");
}

HandshakeStep InitiatorHandshake::answer(const wire::Challenge& challenge,
                                         std::span<const std::byte> frame) {
  if (challenge.major != wire::kProtocolMajor) {
    return failed(version_mismatch(challenge.major, challenge.minor, peer_name_),
                  wire::RefusalReason::Version);
  }
  if (!same(challenge.proof, prove(self_.secret, kAcceptor, transcript_))) {
    return failed("the node that answers as " + peer_name_ + " does not have this world's secret",
                  wire::RefusalReason::Secret);
  }
  append(transcript_, frame);
  peer_ = PeerIdentity{peer_name_, challenge.incarnation, challenge.minor,
                       shared_features(wire::Hello{}.features, challenge.features)};
  expecting_ = Expecting::Welcome;
  return SendThis{frame_of(wire::Proof{prove(self_.secret, kInitiator, transcript_)})};
}

// ---------------------------------------------------------------------------------- acceptor

AcceptorHandshake::AcceptorHandshake(Host& host, Random& random, wire::Welcome welcome)
    : host_(host), random_(random), welcome_(welcome) {}

HandshakeStep AcceptorHandshake::receive(std::span<const std::byte> whole_frame) {
  const Expecting expected = std::exchange(expecting_, Expecting::Nothing);
  Result<wire::Handshake> message = decode_frame(whole_frame);
  if (!message) {
    // Nobody who speaks this protocol sends that; an answer would only help to probe us.
    return failed("a malformed handshake: " + message.error().message());
  }
  if (auto* hello = std::get_if<wire::Hello>(&message.value());
      hello && expected == Expecting::Hello) {
    return challenge(std::move(*hello), whole_frame);
  }
  if (const auto* proof = std::get_if<wire::Proof>(&message.value());
      proof && expected == Expecting::Proof) {
    return judge(*proof);
  }
  return refuse(wire::RefusalReason::Malformed, "a handshake message out of turn");
}

HandshakeStep AcceptorHandshake::challenge(wire::Hello hello, std::span<const std::byte> frame) {
  self_ = host_.identity();
  hello_ = std::move(hello);
  if (hello_.major != wire::kProtocolMajor) {
    return refuse(wire::RefusalReason::Version,
                  version_mismatch(hello_.major, hello_.minor, hello_.from));
  }
  if (hello_.world != self_.world) {
    return refuse(wire::RefusalReason::World, hello_.from + " belongs to another world");
  }
  if (hello_.to != self_.name) {
    return refuse(wire::RefusalReason::WrongName, "nobody here is called " + hello_.to);
  }
  if (auto refusal = host_.admit(hello_)) return refuse(refusal->reason, refusal->detail);

  append(transcript_, frame);
  wire::Challenge challenge;
  challenge.incarnation = self_.incarnation;
  fill(random_, challenge.nonce);
  challenge.proof = prove(self_.secret, kAcceptor, transcript_);
  auto answer = frame_of(challenge);
  append(transcript_, answer);
  expecting_ = Expecting::Proof;
  return SendThis{std::move(answer)};
}

HandshakeStep AcceptorHandshake::judge(const wire::Proof& proof) {
  if (!same(proof.proof, prove(self_.secret, kInitiator, transcript_))) {
    return refuse(wire::RefusalReason::Secret, hello_.from + " does not have this world's secret");
  }
  // Much may have happened since Hello: another connection, a loss, a shutdown.
  if (auto refusal = host_.welcome(hello_)) return refuse(refusal->reason, refusal->detail);
  PeerIdentity peer{hello_.from, hello_.incarnation, hello_.minor,
                    shared_features(wire::Challenge{}.features, hello_.features), hello_.rank};
  return Succeeded{std::move(peer), frame_of(welcome_)};
}

Failed AcceptorHandshake::refuse(wire::RefusalReason reason, std::string detail) {
  auto frame = refusal_frame(reason, detail);
  return Failed{reason, std::move(detail), std::move(frame)};
}

bool is_ordinary(const ConnectFailure& failure) {
  using Reason = wire::RefusalReason;
  const auto& refusal = failure.refusal;
  return refusal == Reason::Duplicate || refusal == Reason::Busy || refusal == Reason::Closing ||
         refusal == Reason::DeclaredLost;
}

// ---------------------------------------------------------------------------------- reader

std::size_t HandshakeReader::wanted() const {
  constexpr std::size_t kHeader = sizeof(wire::FrameHeader);
  if (partial_.size() < kHeader) return kHeader - partial_.size();
  return kHeader + header_at(partial_).body_bytes - partial_.size();
}

std::optional<std::vector<std::byte>> HandshakeReader::feed(std::span<const std::byte> bytes) {
  assert(bytes.size() <= wanted());
  partial_.insert(partial_.end(), bytes.begin(), bytes.end());
  if (partial_.size() < sizeof(wire::FrameHeader)) {
    // Who speaks another protocol may have said all it has to say, and wait for an answer.
    if (!may_begin_frame(partial_)) throw Error(ErrorKind::Invalid, kNotHawser);
    return std::nullopt;
  }
  if (const auto why = objection(header_at(partial_), limit_)) {
    throw Error(ErrorKind::Invalid, *why);
  }
  if (wanted() > 0) return std::nullopt;
  return std::exchange(partial_, {});
}

}  // namespace hawser::transport
