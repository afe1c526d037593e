#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "hawser/base/buffer.h"
#include "hawser/wire/frame.h"

namespace hawser::transport::tcp {

// Bytes that the socket did not take yet, in order. Small things are copied together so that many
// frames leave in one write; large segments stay where they are, kept alive by their owner.
// Not thread-safe, with one exception: memory that gather() pointed to stays valid and unchanged
// while other threads push (under the owner's lock), until it is consumed or the outbox dies.
class Outbox {
 public:
  Outbox() = default;
  Outbox(Outbox&&) = default;
  Outbox& operator=(Outbox&&) = default;

  void push(wire::OutFrame& frame);
  // Puts what `earlier` holds before everything here.
  void prepend(Outbox earlier);

  // Points `parts` to the first bytes, at most `max_bytes`; returns how many parts.
  std::size_t gather(std::span<iovec> parts, std::size_t max_bytes);
  // The first `bytes` are written. Segments that are done with go to `finished`: their destructors
  // are foreign code, to be run without a lock.
  void consume(std::size_t bytes, std::vector<Buffer>& finished);

  bool empty() const { return bytes_ == 0; }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Copied {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity = 0;
    std::size_t from = 0;
    std::size_t to = 0;
  };
  struct Kept {
    Buffer segment;
    std::size_t from = 0;
  };
  using Piece = std::variant<Copied, Kept>;

  void copy(std::span<const std::byte> bytes);

  std::deque<Piece> pieces_;
  std::size_t bytes_ = 0;
};

}  // namespace hawser::transport::tcp
