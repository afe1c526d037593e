#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace hawser {

// A span of bytes plus an owner that keeps it alive. Copying shares; nothing is ever copied deep.
// A buffer may be empty (size 0) and still have an owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::byte* data, std::size_t size, std::shared_ptr<void> owner)
      : data_(data), size_(size), owner_(std::move(owner)) {}

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::shared_ptr<void> owner_;
};

// Tensor memory is aligned to this everywhere.
inline constexpr std::size_t kBufferAlignment = 64;

}  // namespace hawser
