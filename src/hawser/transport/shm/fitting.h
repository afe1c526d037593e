#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "hawser/transport/shm/descriptor_passing.h"
#include "hawser/transport/shm/shm_link.h"

namespace hawser::transport::shm {

inline constexpr std::size_t kProbeBytes = 16;
using Probe = std::array<std::byte, kProbeBytes>;

// Travels with three descriptors: the ring that the sender will read, its bell page, its bell
// event.
struct Outfit {
  static constexpr std::uint32_t kMagic = 0x5446544F;  // "OTFT"
  std::uint32_t magic = kMagic;
  std::uint32_t ring_bytes = 0;
  std::uint64_t arena_limit = 0;  // what the sender will share, and let the peer share
  Probe probe{};                  // from the initiator: what it has put into the acceptor's ring
};
static_assert(sizeof(Outfit) == 32);

// From the acceptor: the probe has come through, and is in the initiator's ring.
struct Ready {
  static constexpr std::uint32_t kMagic = 0x59444552;  // "REDY"
  std::uint32_t magic = kMagic;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Ready) == 8);

// One end's half of setting up shared memory over a connected UNIX socket, in the order of
// README.md. Never blocks; not thread-safe. Everything throws Error when the peer is not what it
// should be (Refused, Invalid) or when this process cannot go on (Overloaded).
class Fitting {
 public:
  // Makes the ring that this end reads.
  Fitting(std::size_t ring_bytes, std::size_t arena_limit, Doorbell& bell);

  void send_outfit(int socket);
  // False while it has not come. Checks and maps what came with it. PeerLost at the end of the
  // socket.
  bool receive_outfit(int socket);
  void send_ready(int socket);
  bool receive_ready(int socket);

  void choose_probe(const Probe& probe) { probe_ = probe; }  // initiator
  void put_probe();
  void find_probe();

  // Once: the makings of a link.
  LinkParts parts(PeerIdentity peer, Descriptor socket);

 private:
  const std::size_t ring_bytes_;
  std::size_t arena_limit_;
  Doorbell& own_bell_;
  Descriptor inbox_memory_;
  std::shared_ptr<RingMemory> inbox_ring_;
  Probe probe_{};
  std::unique_ptr<RemoteBell> peer_bell_;
  std::optional<RingReader> inbox_;
  std::optional<RingWriter> outbox_;
};

}  // namespace hawser::transport::shm
