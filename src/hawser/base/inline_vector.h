#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace hawser {

// A vector whose first `kInline` elements need no allocation: for the shapes of tensors and the
// arguments of small calls, where the allocation would cost more than the work. Only for plain
// data; moving it moves inline elements byte by byte. At most 2^32 - 1 elements
// (std::length_error beyond, as std::vector has it). Throws std::bad_alloc like std::vector.
template <class T, std::uint32_t kInline>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_default_constructible_v<T>);
  static_assert(kInline > 0);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  InlineVector() noexcept {}
  InlineVector(std::initializer_list<T> values) { append({values.begin(), values.size()}); }
  explicit InlineVector(std::span<const T> values) { append(values); }
  InlineVector(const InlineVector& other) { append(other); }
  InlineVector(InlineVector&& other) noexcept { take(other); }
  InlineVector& operator=(const InlineVector& other) {
    if (this != &other) assign(other);
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~InlineVector() { release(); }

  T* data() noexcept { return on_heap() ? heap_ : inline_; }
  const T* data() const noexcept { return on_heap() ? heap_ : inline_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t capacity() const noexcept { return capacity_; }
  bool empty() const noexcept { return size_ == 0; }

  iterator begin() noexcept { return data(); }
  iterator end() noexcept { return data() + size_; }
  const_iterator begin() const noexcept { return data(); }
  const_iterator end() const noexcept { return data() + size_; }

  T& operator[](std::size_t index) { return data()[index]; }
  const T& operator[](std::size_t index) const { return data()[index]; }
  T& back() { return data()[size_ - 1]; }
  const T& back() const { return data()[size_ - 1]; }

  void reserve(std::size_t capacity) {
    if (capacity > capacity_) grow_to(capacity);
  }
  void clear() noexcept { size_ = 0; }
  // New elements are zero.
  void resize(std::size_t size) {
    reserve(size);
    if (size > size_) std::fill(data() + size_, data() + size, T{});
    size_ = static_cast<std::uint32_t>(size);
  }
  void push_back(T value) {
    if (size_ == capacity_) grow_to(std::size_t{size_} + 1);
    data()[size_++] = value;
  }
  // `values` must not be part of this vector.
  void append(std::span<const T> values) {
    if (values.empty()) return;
    reserve(std::size_t{size_} + values.size());
    std::memcpy(data() + size_, values.data(), values.size_bytes());
    size_ += static_cast<std::uint32_t>(values.size());
  }
  void assign(std::span<const T> values) {
    clear();
    append(values);
  }

  friend bool operator==(const InlineVector& a, const InlineVector& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  bool on_heap() const noexcept { return capacity_ > kInline; }

  void grow_to(std::size_t wanted) {
    constexpr std::size_t kLargest = std::numeric_limits<std::uint32_t>::max();
    if (wanted > kLargest) throw std::length_error("InlineVector: more than 2^32 - 1 elements");
    const std::size_t capacity = std::min(std::max(wanted, std::size_t{capacity_} * 2), kLargest);
    T* larger = std::allocator<T>().allocate(capacity);
    std::memcpy(larger, data(), size_ * sizeof(T));
    if (on_heap()) std::allocator<T>().deallocate(heap_, capacity_);
    heap_ = larger;
    capacity_ = static_cast<std::uint32_t>(capacity);
  }
  // Leaves `other` empty and usable.
  void take(InlineVector& other) noexcept {
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, kInline);
    if (on_heap()) {
      heap_ = other.heap_;
    } else {
      std::memcpy(inline_, other.inline_, size_ * sizeof(T));
    }
  }
  void release() noexcept {
    if (on_heap()) std::allocator<T>().deallocate(heap_, capacity_);
  }

  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = kInline;
  union {
    T inline_[kInline];
    T* heap_;
  };
};

}  // namespace hawser
