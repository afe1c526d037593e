#include "hawser/transport/shm/ring.h"

#include <bit>
#include <new>
#include <string>

#include "hawser/base/error.h"
#include "hawser/base/step.h"

namespace hawser::transport::shm {
namespace {

[[noreturn]] void corrupt(const char* index, std::uint64_t distance) {
  throw Error(ErrorKind::Invalid, std::string("the peer's ring ") + index + " is off by " +
                                      std::to_string(static_cast<std::int64_t>(distance)));
}

}  // namespace

bool RingMemory::is_valid_size(std::size_t size) {
  return std::has_single_bit(size) && size >= kSmallest && size <= kLargest;
}

std::shared_ptr<RingMemory> RingMemory::create(std::size_t size, Descriptor& memory) {
  if (!is_valid_size(size)) {
    throw Error(ErrorKind::Invalid, "a ring cannot have " + std::to_string(size) + " bytes");
  }
  memory = create_sealed_memory("hawser-ring", kPageBytes + size);
  auto mapping = Mapping::with_body_twice(memory, kPageBytes, size);
  ::new (mapping.data()) RingHeader;
  return std::shared_ptr<RingMemory>(new RingMemory(std::move(mapping), size));
}

std::shared_ptr<RingMemory> RingMemory::adopt(const Descriptor& memory, std::size_t size) {
  if (!is_valid_size(size)) {
    throw Error(ErrorKind::Refused, "the peer's ring has " + std::to_string(size) + " bytes");
  }
  check_sealed_memory(memory, kPageBytes + size, "the peer's ring");
  return std::shared_ptr<RingMemory>(
      new RingMemory(Mapping::with_body_twice(memory, kPageBytes, size), size));
}

// ---------------------------------------------------------------------------------- writer

RingWriter::RingWriter(std::shared_ptr<RingMemory> memory)
    : memory_(std::move(memory)), mask_(memory_->size() - 1) {}

std::size_t RingWriter::room(std::size_t wanted) {
  const std::size_t known = memory_->size() - (tail_ - head_seen_);
  if (known >= wanted) return known;
  look_at_head();
  return memory_->size() - (tail_ - head_seen_);
}

void RingWriter::look_at_head() {
  const std::uint64_t head = memory_->header().head.load(std::memory_order_seq_cst);
  // It neither goes back nor overtakes us.
  if (tail_ - head > tail_ - head_seen_) corrupt("head", head - head_seen_);
  head_seen_ = head;
}

void RingWriter::publish(std::size_t bytes) {
  tail_ += bytes;
  HAWSER_STEP();
  memory_->header().tail.store(tail_, std::memory_order_seq_cst);
}

void RingWriter::await_reader() {
  memory_->header().writer_waiting.exchange(1, std::memory_order_seq_cst);
  HAWSER_STEP();
}

bool RingWriter::await_space() {
  await_reader();
  look_at_head();
  return tail_ - head_seen_ != memory_->size();
}

bool RingWriter::give_back_memory() {
  look_at_head();
  if (head_seen_ != tail_) return false;
  give_back_pages(memory_->data(), memory_->size());
  return true;
}

// ---------------------------------------------------------------------------------- reader

RingReader::RingReader(std::shared_ptr<RingMemory> memory, RemoteBell* writer_bell)
    : memory_(std::move(memory)), mask_(memory_->size() - 1), writer_bell_(writer_bell) {}

std::size_t RingReader::available() {
  if (head_ == tail_seen_ && !frozen_) look_at_tail();
  return tail_seen_ - head_;
}

void RingReader::look_at_tail() {
  const std::uint64_t tail = memory_->header().tail.load(std::memory_order_seq_cst);
  const std::uint64_t content = tail - head_;
  if (content > memory_->size() || content < tail_seen_ - head_) corrupt("tail", content);
  tail_seen_ = tail;
}

void RingReader::publish() {
  RingHeader& header = memory_->header();
  header.head.store(head_, std::memory_order_seq_cst);
  HAWSER_STEP();
  if (header.writer_waiting.load(std::memory_order_seq_cst) == 0) return;
  if (header.writer_waiting.exchange(0, std::memory_order_seq_cst) == 0) return;
  if (writer_bell_) writer_bell_->ring_if_asleep();
}

void RingReader::freeze() {
  if (frozen_) return;
  look_at_tail();
  frozen_ = true;
}

}  // namespace hawser::transport::shm
