#include "hawser/transport/shm/fitting.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "hawser/base/error.h"

namespace hawser::transport::shm {
namespace {

constexpr std::size_t kOutfitDescriptors = 3;

template <class Note>
void send(int socket, const Note& note, std::span<const int> descriptors) {
  if (send_note(socket, std::as_bytes(std::span(&note, 1)), descriptors)) return;
  throw Error(ErrorKind::PeerLost, std::string("cannot send to the peer: ") + std::strerror(errno));
}

template <class Note>
bool receive(int socket, Note& note, std::vector<Descriptor>& descriptors) {
  switch (receive_note(socket, std::as_writable_bytes(std::span(&note, 1)), descriptors)) {
    case NoteReceived::Nothing:
      return false;
    case NoteReceived::Note:
      return true;
    case NoteReceived::End:
      break;
  }
  throw Error(ErrorKind::PeerLost, "the peer closed the connection before the link was made");
}

}  // namespace

Fitting::Fitting(std::size_t ring_bytes, std::size_t arena_limit, Doorbell& bell)
    : ring_bytes_(ring_bytes),
      arena_limit_(arena_limit),
      own_bell_(bell),
      inbox_ring_(RingMemory::create(ring_bytes, inbox_memory_)) {}

void Fitting::send_outfit(int socket) {
  Outfit outfit;
  outfit.ring_bytes = static_cast<std::uint32_t>(ring_bytes_);
  outfit.arena_limit = arena_limit_;
  outfit.probe = probe_;
  const std::array<int, kOutfitDescriptors> descriptors{inbox_memory_.get(), own_bell_.page_fd(),
                                                        own_bell_.event_fd()};
  send(socket, outfit, descriptors);
  inbox_memory_.reset();  // it is mapped, and on its way
}

bool Fitting::receive_outfit(int socket) {
  Outfit outfit;
  std::vector<Descriptor> descriptors;
  if (!receive(socket, outfit, descriptors)) return false;
  if (outfit.magic != Outfit::kMagic || outfit.ring_bytes != ring_bytes_ ||
      descriptors.size() != kOutfitDescriptors) {
    throw Error(ErrorKind::Invalid, "the peer's outfit is malformed");
  }
  auto ring = RingMemory::adopt(descriptors[0], ring_bytes_);
  check_sealed_memory(descriptors[1], kPageBytes, "the peer's doorbell page");
  check_event(descriptors[2], "the peer's doorbell");
  peer_bell_ = std::make_unique<RemoteBell>(std::move(descriptors[1]), std::move(descriptors[2]));
  outbox_.emplace(std::move(ring));
  inbox_.emplace(std::move(inbox_ring_), peer_bell_.get());
  arena_limit_ = std::min<std::uint64_t>(arena_limit_, outfit.arena_limit);
  probe_ = outfit.probe;
  return true;
}

void Fitting::send_ready(int socket) { send(socket, Ready{}, {}); }

bool Fitting::receive_ready(int socket) {
  Ready ready;
  std::vector<Descriptor> descriptors;
  if (!receive(socket, ready, descriptors)) return false;
  if (ready.magic != Ready::kMagic || ready.reserved != 0 || !descriptors.empty()) {
    throw Error(ErrorKind::Invalid, "the peer's readiness is malformed");
  }
  return true;
}

void Fitting::put_probe() {
  if (outbox_->room(kProbeBytes) < kProbeBytes) {
    throw Error(ErrorKind::Invalid, "the peer's ring has no room");
  }
  std::memcpy(outbox_->at(), probe_.data(), kProbeBytes);
  outbox_->publish(kProbeBytes);
}

void Fitting::find_probe() {
  Probe found{};
  const bool enough = inbox_->available() >= kProbeBytes;
  if (enough) std::memcpy(found.data(), inbox_->at(), kProbeBytes);
  if (!enough || found != probe_) {
    throw Error(ErrorKind::Refused, "the probe did not come through shared memory");
  }
  inbox_->take(kProbeBytes);
  inbox_->publish();
}

LinkParts Fitting::parts(PeerIdentity peer, Descriptor socket) {
  return LinkParts{std::move(peer),    std::move(socket),   std::move(peer_bell_),
                   std::move(*inbox_), std::move(*outbox_), arena_limit_};
}

}  // namespace hawser::transport::shm
