#include "hawser/transport/shm/adoption.h"

#include <string>
#include <utility>

#include "hawser/base/error.h"
#include "hawser/base/process_forks.h"
#include "hawser/transport/shm/copy_bytes.h"

namespace hawser::transport::shm {

void AdoptedBlock::operator()(void*) const {
  // Another process has had this memory since a fork: it stays adopted for good.
  if (process_forks() != forks) return;
  adopted->now.fetch_sub(size, std::memory_order_relaxed);
  if (!handed_back) chunk->return_block(name.unit);
}

InboundArena::InboundArena(std::size_t limit, std::size_t adopt_at_most)
    : limit_(limit), adopt_at_most_(adopt_at_most), adopted_(std::make_shared<AdoptedBytes>()) {}

void InboundArena::add_chunk(const ChunkNote& note, const Descriptor& memory) {
  if (note.magic != ChunkNote::kMagic || note.index != chunks_.size() || note.units == 0 ||
      note.reserved != 0) {
    throw Error(ErrorKind::Invalid, "a malformed announcement of shared memory");
  }
  const std::size_t bytes = Chunk::total_bytes(note.units);
  if (bytes > limit_ - bytes_mapped()) {
    throw Error(ErrorKind::Invalid,
                "the peer shares more than " + std::to_string(limit_) + " bytes");
  }
  check_sealed_memory(memory, bytes, "the peer's arena");
  chunks_.push_back(std::make_shared<Chunk>(memory, note.units));
  bytes_mapped_.store(bytes_mapped() + bytes, std::memory_order_relaxed);
}

Buffer InboundArena::take(BlockName name, std::size_t size, BufferPool& pool) {
  if (!has_chunk(name.chunk)) {
    throw Error(ErrorKind::Invalid, "a segment in shared memory that was not announced");
  }
  const std::shared_ptr<Chunk>& chunk = chunks_[name.chunk];
  const std::uint32_t units = chunk->units();
  if (size == 0 || name.unit >= units || size > std::size_t{units - name.unit} * kUnitBytes) {
    throw Error(ErrorKind::Invalid, "a segment beyond the end of shared memory");
  }
  std::byte* const memory = chunk->block(name.unit);
  if (bytes_adopted() + size > adopt_at_most_) {
    Buffer copy = pool.take(size);
    copy_bytes(copy.data(), memory, size);
    chunk->return_block(name.unit);
    return copy;
  }
  adopted_->now.fetch_add(size, std::memory_order_relaxed);
  return Buffer(memory, size,
                std::shared_ptr<void>(
                    memory, AdoptedBlock{chunk, adopted_, name, size, process_forks(), false}));
}

std::optional<BlockName> InboundArena::hand_back(const Buffer& segment) const {
  auto* const block = std::get_deleter<AdoptedBlock>(segment.owner());
  if (!block || block->adopted != adopted_ || block->handed_back) return std::nullopt;
  // The caller's is the only reference, and there are no weak ones: nobody can make another now.
  if (segment.owner().use_count() != 1) return std::nullopt;
  if (segment.data() != segment.owner().get() || segment.size() != block->size) return std::nullopt;
  if (process_forks() != block->forks) return std::nullopt;
  block->handed_back = true;
  return block->name;
}

}  // namespace hawser::transport::shm
