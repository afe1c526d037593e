#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "hawser/base/buffer_pool.h"
#include "hawser/base/clock.h"
#include "hawser/base/limits.h"
#include "hawser/base/random.h"
#include "hawser/transport/control_loop.h"
#include "hawser/transport/doorbell.h"
#include "hawser/transport/transport.h"

namespace hawser::transport::shm {

struct ShmOptions {
  // A ring for each direction of a link; the smaller one once there are many links.
  std::size_t ring_bytes = std::size_t{256} << 10;
  std::size_t crowded_ring_bytes = std::size_t{64} << 10;
  std::size_t crowded_above_links = 16;
  // Larger segments are not copied out, but used in place.
  std::size_t inline_limit = std::size_t{64} << 10;
  std::size_t arena_step = std::size_t{64} << 20;
  // How much of a peer's arena may be in use here before received segments are copied out.
  double adopt_share = 0.5;
  Duration handshake_timeout = std::chrono::seconds(10);  // for those who connect to us
  // A link that hardly sends for this long gives its memory back to the system.
  Duration trim_interval = std::chrono::seconds(5);
};

// Shared memory between processes of one user on one host; shm/README.md tells how a link comes
// about. Nothing has a name in a file system: whatever way a process ends, nothing is left.
//
// All that is given outlives the transport; `pool` and `bell` outlive its links.
std::unique_ptr<Transport> create_shm(ControlLoop& control, Host& host, Random& random,
                                      BufferPool& pool, Doorbell& bell, const Limits& limits,
                                      const ShmOptions& options = {});

}  // namespace hawser::transport::shm
