#pragma once

#include <cstdint>

namespace hawser::transport::shm {

// How often this process or an ancestor of it has forked since counting began, which is when this
// is first called. Memory that two processes hold after a fork cannot be given back by either: a
// block is returned to its sender only if the count is what it was when the block was received.
std::uint64_t process_forks();

// Whether this process made the thing that recorded `pid`, rather than having inherited it.
bool is_this_process(int pid);

}  // namespace hawser::transport::shm
