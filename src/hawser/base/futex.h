#pragma once

#include <atomic>
#include <cstdint>

#include "hawser/base/clock.h"

namespace hawser {

// Sleeping on a word of this process's memory. Both may return for no reason.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline deadline);
// The word may be gone: it is only a name for the kernel.
void futex_wake(std::atomic<std::uint32_t>* word, int how_many);

}  // namespace hawser
