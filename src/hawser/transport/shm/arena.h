#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hawser/base/buffer.h"
#include "hawser/base/guarded.h"
#include "hawser/base/unique_function.h"
#include "hawser/transport/shm/shared_memory.h"

// Memory for large segments, one arena for each direction of a link. The sender copies a segment
// into a block of its arena once; the receiver's Buffer is that memory.
//
// LAYOUT. An arena is a list of chunks, each a sealed memfd that the sender makes when it needs it
// and sends over the link's socket before the first frame that uses it. It belongs to the sender;
// the receiver maps it once. A chunk of n units:
//
//     0              64                         round_up(64 + n/8, 4096)
//     +--------------+--------------------------+------------+------------+--- ... ---+
//     | returns      | returned: n bits         | unit 0     | unit 1     | unit n-1  |
//     | (8 bytes)    | in words of 64           | 64 KiB     |            |           |
//     +--------------+--------------------------+------------+------------+--- ... ---+
//
// A block is a run of units, named by its chunk and first unit. How units are used is known to the
// sender alone; the receiver only ever sees blocks that it was lent.
//
// STATES of a block, and who makes each transition:
//
//            sender: place()                        receiver: sets the block's bit, counts
//            `returns`
//     Free ------------------> Lent ------------------------------------------------> Lent, bit set
//      ^                        |                                                          |
//      |                        | receiver: a frame that says HandedBack                   |
//      |                        v                                                          |
//      +--------------------- Held                    sender: collects, before a place()   |
//      | sender: last owner                                                                |
//      | of the buffer gone                                                                |
//      +-----------------------------------------------------------------------------------+
//
// Returning is two atomic operations on memory that the returned buffer itself keeps mapped: it
// cannot block or fail, on any thread, whatever has become of the link.
//
// FORK. Blocks in use when the process forks are then held by two processes; neither returns them.
namespace hawser::transport::shm {

inline constexpr std::size_t kUnitBytes = std::size_t{64} << 10;

// Travels over the link's socket, with the chunk's descriptor.
struct ChunkNote {
  static constexpr std::uint32_t kMagic = 0x4B4E4843;  // "CHNK"
  std::uint32_t magic = kMagic;
  std::uint32_t index = 0;
  std::uint32_t units = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ChunkNote) == 16);

// One chunk, mapped, at either end.
class Chunk {
 public:
  Chunk(const Descriptor& memory, std::uint32_t units);

  static std::size_t header_bytes(std::uint32_t units);
  static std::size_t total_bytes(std::uint32_t units);

  std::uint32_t units() const { return units_; }
  std::byte* block(std::uint32_t unit) const {
    return mapping_.data() + header_bytes(units_) + std::size_t{unit} * kUnitBytes;
  }
  std::size_t mapped_bytes() const { return mapping_.bytes(); }

  // Receiver.
  void return_block(std::uint32_t unit);
  // Sender: whether any block was returned since `returns_seen`, which is brought up to date.
  bool any_returned(std::uint64_t& returns_seen) const;
  // Sender: calls take(unit) for each returned block, once.
  template <class Take>
  void collect(Take take) {
    for (std::uint32_t word = 0; word * 64 < units_; ++word) {
      std::atomic<std::uint64_t>& bits = returned(word);
      if (bits.load(std::memory_order_relaxed) == 0) continue;
      std::uint64_t set = bits.exchange(0, std::memory_order_acq_rel);
      for (; set != 0; set &= set - 1) {
        take(word * 64 + static_cast<std::uint32_t>(__builtin_ctzll(set)));
      }
    }
  }

 private:
  std::atomic<std::uint64_t>& returns() const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_.data());
  }
  std::atomic<std::uint64_t>& returned(std::uint32_t word) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_.data() + 64)[word];
  }
  const std::uint32_t units_;
  Mapping mapping_;
};

struct BlockName {
  std::uint16_t chunk = 0;
  std::uint32_t unit = 0;
  bool operator==(const BlockName&) const = default;
};

// The sender's end. Thread-safe. Kept alive by its link and by the buffers on blocks that came
// back.
class OutboundArena : public std::enable_shared_from_this<OutboundArena> {
 public:
  // Sends a chunk to the peer; false when that cannot be done now. Called under the arena's lock.
  using Announce = UniqueFunction<bool(const ChunkNote&, const Descriptor&)>;

  // Grows in steps of `step` bytes (more for a larger block) up to `limit`.
  OutboundArena(std::size_t limit, std::size_t step, Announce announce);

  // Copies a segment into a block that is then lent to the peer. Nothing when the arena is full and
  // cannot grow: send the segment in another way. Throws Error(Invalid) when the peer returned a
  // block that it did not have.
  std::optional<BlockName> place(std::span<const std::byte> segment);

  // The peer handed this block back with these bytes in it. Throws Error(Invalid) unless it was
  // lent to it with a segment of that size.
  Buffer reclaim(BlockName name, std::size_t size);

  // Gives the memory of free blocks back to the system.
  void trim();
  // No chunk is announced any more.
  void close();

  struct Usage {
    std::size_t bytes_mapped = 0;
    std::size_t blocks_in_use = 0;
    std::uint64_t placed = 0;  // ever
  };
  Usage usage();

 private:
  struct Block {
    std::uint32_t units = 0;
    std::size_t size = 0;  // of the segment in it
    bool held = false;     // else lent
  };
  struct OwnChunk {
    std::unique_ptr<Chunk> memory;
    std::uint64_t returns_seen = 0;
    std::map<std::uint32_t, Block> in_use;        // by first unit
    std::map<std::uint32_t, std::uint32_t> free;  // first unit -> units; neighbours are merged
  };
  struct FreeBlock {
    BlockName name;
    std::uint32_t units = 0;
  };
  struct State {
    std::vector<OwnChunk> chunks;
    // The blocks freed last, newest at the end, not yet merged with their neighbours: their pages
    // and cache lines are the warmest.
    std::vector<FreeBlock> recent;
    std::size_t bytes_mapped = 0;
    std::uint64_t placed = 0;
    Announce announce;
  };

  std::optional<FreeBlock> allocate(State& state, std::uint32_t units);
  static std::optional<FreeBlock> take_recent(State& state, std::uint32_t units);
  static std::optional<FreeBlock> take_first_fit(State& state, std::uint32_t units);
  bool grow(State& state, std::uint32_t units);
  static void collect_returned(State& state);
  static void set_free(State& state, FreeBlock block);
  static void merge(OwnChunk& chunk, std::uint32_t unit, std::uint32_t units);
  static void merge_recent(State& state);
  void release(BlockName name);

  const std::size_t limit_;
  const std::size_t step_;
  // A block that was used comes back through the receiver's mapping of this memory. Where both ends
  // live in one process, ThreadSanitizer cannot see that order; this it can.
  std::atomic<std::uint64_t> copies_done_{0};
  Guarded<State> state_;
};

}  // namespace hawser::transport::shm
