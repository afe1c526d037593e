#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "hawser/wire/frame.h"

namespace hawser::wire {

// What a transport does, on one piece of memory.
inline InFrame carried(const OutFrame& frame) {
  return from_bytes(to_bytes(frame), Limits()).take();
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace hawser::wire
