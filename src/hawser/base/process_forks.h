#pragma once

#include <cstdint>

namespace hawser {

// Both count from their first call on, in this process or the ancestor that made it.

// How often this process or an ancestor of it has forked. Memory that two processes hold after a
// fork cannot be given back by either: what is lent is returned only if the count is what it was.
std::uint64_t process_forks();

// How many forks lie between this process and the one where counting began. Who recorded it finds
// out without a system call whether he has been inherited by a child.
std::uint64_t fork_depth();

}  // namespace hawser
