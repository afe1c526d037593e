#pragma once

namespace hawser::testing {

// A sanitizer looks for other things than more seeds, or a search through all interleavings in one
// thread, would show, and takes eight times as long: tests of that kind do less, or nothing, there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace hawser::testing
