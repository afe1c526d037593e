#pragma once

#include <cstddef>
#include <memory>

#include "hawser/base/buffer.h"

namespace hawser {

// Memory for received bytes, recycled: touching fresh pages costs four times the copy itself.
// Thread-safe. Blocks may outlive the pool; they are then freed instead of kept.
class BufferPool {
 public:
  struct Usage {
    std::size_t bytes_lent = 0;  // in buffers that are alive
    std::size_t bytes_kept = 0;  // waiting to be used again
  };

  // Keeps at most this many bytes of returned blocks; the least recently returned goes first.
  explicit BufferPool(std::size_t keep_at_most);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  // Aligned to kBufferAlignment, contents undefined. Throws Error(Overloaded) when the machine has
  // no such memory to give.
  Buffer take(std::size_t size);

  Usage usage() const;
  // Gives kept blocks back to the machine.
  void trim();

 private:
  struct Shelves;
  std::shared_ptr<Shelves> shelves_;
};

}  // namespace hawser
