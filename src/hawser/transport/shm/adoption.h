#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "hawser/base/buffer.h"
#include "hawser/base/buffer_pool.h"
#include "hawser/transport/shm/arena.h"

namespace hawser::transport::shm {

// The bytes of a peer's arena that buffers on this side keep. Shared by the arena and its blocks.
struct AdoptedBytes {
  std::atomic<std::size_t> now{0};
};

// What the owner of a received Buffer is when its memory is a block of the sender's arena: a
// std::shared_ptr<void> to the memory with this as its deleter, so that
// std::get_deleter<AdoptedBlock>(buffer.owner()) recognises it.
//
// HAND-BACK. When such a buffer is sent to the peer that the block came from, the block itself is
// handed back instead of copied, provided that nobody else can see the memory any more. What a
// layer above must do for that: keep exactly this owner (not something that wraps it) with its
// tensor, make the buffer to be sent with this owner, and have let go of everything else by the
// time of send(): the transport asks for use_count() == 1 there. As long as a tensor, a view or
// anybody else holds the owner, the segment is copied, like any other.
struct AdoptedBlock {
  std::shared_ptr<Chunk> chunk;
  std::shared_ptr<AdoptedBytes> adopted;
  BlockName name;
  std::size_t size = 0;      // of the segment
  std::uint64_t forks = 0;   // when it was adopted
  bool handed_back = false;  // the peer has it again: nothing to return

  void operator()(void* memory) const;
};

// The receiver's end of an arena. Used by the holder of the poll seat, except hand_back() and
// the counts of bytes. The blocks it gives out are independent of it.
class InboundArena {
 public:
  // `limit`: what the peer may share in all. Up to `adopt_at_most` bytes are used in place at a
  // time, the rest is copied out and returned at once: a program that keeps what it receives must
  // not take the arena from the sender.
  InboundArena(std::size_t limit, std::size_t adopt_at_most);

  // A chunk the peer sent. Throws Error if it is not what it should be, or too much.
  void add_chunk(const ChunkNote& note, const Descriptor& memory);
  bool has_chunk(std::uint16_t index) const { return index < chunks_.size(); }

  // The segment that the peer put into a block. Throws Error(Invalid) if that cannot be there.
  Buffer take(BlockName name, std::size_t size, BufferPool& pool);

  // Any thread. If this segment is a block of this arena that the caller alone still holds, marks
  // it as handed back and names it.
  std::optional<BlockName> hand_back(const Buffer& segment) const;

  std::size_t bytes_mapped() const { return bytes_mapped_.load(std::memory_order_relaxed); }
  std::size_t bytes_adopted() const { return adopted_->now.load(std::memory_order_relaxed); }

 private:
  const std::size_t limit_;
  const std::size_t adopt_at_most_;
  const std::shared_ptr<AdoptedBytes> adopted_;
  std::vector<std::shared_ptr<Chunk>> chunks_;
  std::atomic<std::size_t> bytes_mapped_{0};
};

}  // namespace hawser::transport::shm
