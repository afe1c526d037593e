#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "hawser/transport/descriptor.h"

// Anonymous memory that two processes share, and the doubts one should have about such memory when
// the other process made it.
namespace hawser::transport::shm {

inline constexpr std::size_t kPageBytes = 4096;

constexpr std::size_t round_up(std::size_t bytes, std::size_t step) {
  return (bytes + step - 1) / step * step;
}

// A memfd of this size, zero-filled, that nobody can shrink (a read beyond the end would be
// SIGBUS) or grow any more. It has no name anywhere and is gone with its last user. Throws
// Error(Overloaded) when the system has no descriptor or memory to give.
Descriptor create_sealed_memory(const char* label, std::size_t bytes);

// Throws Error(Refused) unless a descriptor that a peer sent is such memory of exactly this size.
void check_sealed_memory(const Descriptor& memory, std::size_t bytes, std::string_view what);
// Throws Error(Refused) unless it is an eventfd: writing to anything else might block, or worse.
void check_event(const Descriptor& event, std::string_view what);

// Memory mapped for reading and writing, until it is destroyed. It does not need its descriptor.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  // Both throw Error(Overloaded).
  static Mapping of(const Descriptor& memory, std::size_t bytes);
  // [head][body][body]: what runs over the end of the body continues at its beginning. Both are
  // multiples of a page.
  static Mapping with_body_twice(const Descriptor& memory, std::size_t head, std::size_t body);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Mapping(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Gives the pages of shared memory back to the system, for all who map it; they read as zero and
// come back when they are written. The range is of whole pages.
void give_back_pages(std::byte* begin, std::size_t bytes);

}  // namespace hawser::transport::shm
