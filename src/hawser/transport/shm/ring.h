#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "hawser/transport/doorbell.h"
#include "hawser/transport/shm/shared_memory.h"

// A stream of bytes from one process to another through shared memory.
//
// LAYOUT. One memfd for each direction, made by the end that reads it, sealed, known to both by
// the descriptor only:
//
//     offset 0      64            128           192            4096             4096 + size
//     +-------------+-------------+-------------+-- ... -------+----------------+
//     | tail        | head        | writer_     | unused       | data           |
//     | (8 bytes)   | (8 bytes)   | waiting (4) |              | size bytes     |
//     +-------------+-------------+-------------+-- ... -------+----------------+
//     writer's line  reader's line  rarely changes              mapped twice in a row
//
// `tail` counts the bytes that were ever published, `head` those that were ever taken; both only
// grow. The bytes between them are in the ring, byte n at n % size. Since the data is mapped twice
// in a row, the whole free space and the whole content are always one piece of memory.
//
// WHO MAY WRITE WHAT. The writer (whoever holds the link's send lock): data between tail and
// head + size, then tail. The reader (whoever holds the poll seat): head. Each keeps its own index
// in private memory and never reads it back; what it reads of the other's is loaded once and
// checked: tail - head lies in [0, size], or the ring is called corrupt.
//
// SPACE. A writer that finds no room announces that it waits; the reader rings its bell when it has
// made some:
//
//      writer_waiting     +-----+   writer: no room, 0 -> 1, look again   +-----+
//                         |  0  | --------------------------------------> |  1  |
//                         +-----+ <-------------------------------------- +-----+
//                             reader: has moved head, 1 -> 0, rings the writer's bell
//
// A writer may announce the same with room left, to learn that the reader goes on. One that looks
// again and finds room leaves the 1 where it is: somebody else may count on it, and a ring too many
// does no harm.
//
// ORDER. tail, head and writer_waiting are written and read sequentially consistently, as BELL-1
// (doorbell.h) asks of what it calls "publish" and "look": either the sleeper sees the new index,
// or the other end sees that it sleeps. There are no fences, which ThreadSanitizer could not see.
namespace hawser::transport::shm {

struct RingHeader {
  alignas(64) std::atomic<std::uint64_t> tail{0};
  alignas(64) std::atomic<std::uint64_t> head{0};
  alignas(64) std::atomic<std::uint32_t> writer_waiting{0};
};
static_assert(sizeof(RingHeader) <= kPageBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// The memory of a ring, mapped. `size` is a power of two between these.
class RingMemory {
 public:
  static constexpr std::size_t kSmallest = std::size_t{4} << 10;
  static constexpr std::size_t kLargest = std::size_t{16} << 20;
  static bool is_valid_size(std::size_t size);

  // Throws Error(Overloaded). The descriptor is to be given to the writer.
  static std::shared_ptr<RingMemory> create(std::size_t size, Descriptor& memory);
  // Of a peer. Throws Error(Refused) if it is not what it should be.
  static std::shared_ptr<RingMemory> adopt(const Descriptor& memory, std::size_t size);

  RingHeader& header() const { return *reinterpret_cast<RingHeader*>(mapping_.data()); }
  std::byte* data() const { return mapping_.data() + kPageBytes; }
  std::size_t size() const { return size_; }
  // Whether the writer found no room, and nobody has made some since. Any thread.
  bool writer_waits() const { return header().writer_waiting.load(std::memory_order_seq_cst) != 0; }
  // As the reader says, unchecked. Any thread.
  std::uint64_t bytes_taken() const { return header().head.load(std::memory_order_seq_cst); }

 private:
  RingMemory(Mapping mapping, std::size_t size) : mapping_(std::move(mapping)), size_(size) {}
  Mapping mapping_;
  std::size_t size_;
};

// Not thread-safe.
class RingWriter {
 public:
  explicit RingWriter(std::shared_ptr<RingMemory> memory);

  // How much can be written now; `wanted` or more if that is possible, without looking at the
  // reader's index if it is known to be so. Throws Error(Invalid) when that index is corrupt.
  std::size_t room(std::size_t wanted);
  // Where to write, all of room() in one piece.
  std::byte* at() const { return memory_->data() + (tail_ & mask_); }
  // Lets the reader see the next `bytes`. Ring the reader's bell afterwards.
  void publish(std::size_t bytes);

  // There was no room. True when there is some after all, else the bell will ring when there is.
  bool await_space();
  // The bell will ring when the reader takes something after this.
  void await_reader();

  // Gives the memory of an empty ring back to the system; false if it is not empty.
  bool give_back_memory();
  std::uint64_t bytes_published() const { return tail_; }
  std::shared_ptr<const RingMemory> memory() const { return memory_; }

 private:
  void look_at_head();
  const std::shared_ptr<RingMemory> memory_;
  const std::uint64_t mask_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_seen_ = 0;
};

// Not thread-safe.
class RingReader {
 public:
  // `writer_bell` is rung when a waiting writer gets room; it may be null and outlives the reader.
  RingReader(std::shared_ptr<RingMemory> memory, RemoteBell* writer_bell);

  // How many bytes can be read, in one piece at at(). Throws Error(Invalid) when the writer's index
  // is corrupt. Looks at that index only when all bytes known before have been taken.
  std::size_t available();
  const std::byte* at() const { return memory_->data() + (head_ & mask_); }
  bool has_bytes() const {
    return head_ != tail_seen_ ||
           (!frozen_ && memory_->header().tail.load(std::memory_order_seq_cst) != head_);
  }

  // Takes bytes; the writer sees the room after publish().
  void take(std::size_t bytes) { head_ += bytes; }
  void publish();

  // What is in the ring now is all that will ever be read.
  void freeze();

 private:
  void look_at_tail();
  const std::shared_ptr<RingMemory> memory_;
  const std::uint64_t mask_;
  RemoteBell* const writer_bell_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_seen_ = 0;
  bool frozen_ = false;
};

}  // namespace hawser::transport::shm
