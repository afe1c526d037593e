#pragma once

#include <cstddef>
#include <cstdint>

namespace hawser {

// Every queue, size and count that a peer or a program could drive up, in one place. All of them
// can be set per node; docs/limits.md explains what happens when one is reached.
struct Limits {
  // --- what a received frame may claim ---
  std::size_t max_body_bytes = std::size_t{64} << 20;    // envelope and plain arguments
  std::size_t max_segments = 65'536;                     // tensors and large blobs in a message
  std::size_t max_segment_bytes = std::size_t{1} << 40;  // one tensor
  std::size_t max_frame_bytes = std::size_t{1} << 40;    // all of it
  // --- before a connection has proved who it is ---
  std::size_t max_handshake_bytes = 4096;
  std::size_t max_handshakes = 256;  // at once; more are closed on arrival
  // --- waiting ---
  std::size_t max_bytes_in_flight_per_peer = std::size_t{256} << 20;  // unanswered; then calls wait
  std::size_t max_bytes_queued_per_peer = std::size_t{256} << 20;     // then its calls wait
  std::size_t max_calls_per_peer = 1'000'000;                         // outstanding
  std::size_t max_requests_queued = 100'000;  // received and not started; then Overloaded
  std::size_t max_threads = 128;              // that run handlers, per node
  // --- memory kept for reuse ---
  std::size_t max_pool_bytes = std::size_t{512} << 20;
  std::size_t max_arena_bytes_per_peer = std::size_t{4} << 30;
};

}  // namespace hawser
