#pragma once

// Marks a place between two steps of a lock-free protocol. Nothing in a release; in builds with
// HAWSER_DELIBERATE_FAULTS a test can have every thread that passes one wait a random while, which
// makes the interleavings that matter likely instead of rare.
#ifdef HAWSER_DELIBERATE_FAULTS

#include <atomic>

namespace hawser::testing {
inline std::atomic<void (*)()> step_hook{nullptr};
}
#define HAWSER_STEP()                                                                \
  do {                                                                               \
    if (auto* hook = ::hawser::testing::step_hook.load(std::memory_order_relaxed)) { \
      hook();                                                                        \
    }                                                                                \
  } while (false)

#else

#define HAWSER_STEP() \
  do {                \
  } while (false)

#endif
