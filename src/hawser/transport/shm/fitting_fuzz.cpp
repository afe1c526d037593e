// Whatever note a peer sends while shared memory is set up or grows, and whatever descriptors come
// with it, it is taken for what it is or refused. Input: which note is expected, how many
// descriptors come with it, which ones (a byte each), and the note.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "hawser/base/error.h"
#include "hawser/transport/shm/adoption.h"
#include "hawser/transport/shm/fitting.h"

namespace {

using namespace hawser;
using namespace hawser::transport::shm;
using transport::Descriptor;

constexpr std::size_t kRingBytes = RingMemory::kSmallest;
constexpr std::size_t kArenaLimit = std::size_t{1} << 20;

// What a peer might take for memory, a page or an event.
Descriptor make_descriptor(std::uint8_t kind) {
  switch (kind % 6) {
    case 0: {
      Descriptor memory;
      RingMemory::create(kRingBytes, memory);
      return memory;
    }
    case 1:
      return create_sealed_memory("fuzz", kPageBytes);
    case 2:
      return Descriptor(::eventfd(0, EFD_CLOEXEC));
    case 3:
      return create_sealed_memory("fuzz", Chunk::total_bytes(1));
    case 4: {
      Descriptor unsealed(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      if (::ftruncate(unsealed.get(), kPageBytes) != 0) std::abort();
      return unsealed;
    }
    default:
      return Descriptor(::dup(STDERR_FILENO));
  }
}

void take_note(std::uint8_t expected, int socket) {
  transport::Doorbell bell;
  Fitting fitting(kRingBytes, kArenaLimit, bell);
  InboundArena arena(kArenaLimit, kUnitBytes);
  switch (expected % 3) {
    case 0:
      if (!fitting.receive_outfit(socket)) std::abort();
      fitting.put_probe();
      fitting.find_probe();  // which nobody has put into our ring
      std::abort();
    case 1:
      if (!fitting.receive_ready(socket)) std::abort();
      return;
    default: {  // as ShmLink::read_socket()
      ChunkNote note;
      std::vector<Descriptor> descriptors;
      receive_note(socket, std::as_writable_bytes(std::span(&note, 1)), descriptors);
      if (descriptors.size() != 1) return;
      arena.add_chunk(note, descriptors.front());
      BufferPool pool(0);
      const Buffer whole = arena.take({0, 0}, note.units * kUnitBytes, pool);
      std::memset(whole.data(), 1, whole.size());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t count = std::min<std::size_t>(data[1] % (kMostDescriptors + 1), size - 2);
  std::vector<Descriptor> owned;
  std::vector<int> descriptors;
  for (std::size_t i = 0; i < count; ++i) {
    owned.push_back(make_descriptor(data[2 + i]));
    descriptors.push_back(owned.back().get());
  }
  const auto note = std::as_bytes(std::span(data, size)).subspan(2 + count);
  if (note.empty() || note.size() > 100) return 0;
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    std::abort();
  }
  const Descriptor peer(ends[0]), own(ends[1]);
  if (!send_note(peer.get(), note, descriptors)) std::abort();
  try {
    take_note(data[0], own.get());
  } catch (const Error& refused) {
    if (refused.kind() != ErrorKind::Invalid && refused.kind() != ErrorKind::Refused) std::abort();
  }
  return 0;
}
