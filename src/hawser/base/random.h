#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hawser {

// Chance is injected: production takes it from the kernel, the simulator from a seed.
class Random {
 public:
  virtual ~Random() = default;
  virtual void fill(std::span<std::byte> out) = 0;
  std::uint64_t next() {
    std::uint64_t value = 0;
    fill(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
};

// getrandom(2). Throws Error(Overloaded) if the kernel has none to give.
class SystemRandom final : public Random {
 public:
  void fill(std::span<std::byte> out) override;
};

}  // namespace hawser
