#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hawser/base/buffer_pool.h"
#include "hawser/base/guarded.h"
#include "hawser/transport/doorbell.h"
#include "hawser/transport/link.h"
#include "hawser/transport/shm/adoption.h"
#include "hawser/transport/shm/arena.h"
#include "hawser/transport/shm/frame_stream.h"

namespace hawser::transport::shm {

// What two ends have agreed on and made; from it each builds its link.
struct LinkParts {
  PeerIdentity peer;
  Descriptor socket;  // stays open: its end is the peer's death; announces chunks
  std::unique_ptr<RemoteBell> bell;
  RingReader inbox;
  RingWriter outbox;
  std::size_t arena_limit = 0;  // the smaller one of both ends
};

struct LinkSettings {
  Limits limits;
  std::size_t inline_limit = 0;  // larger segments go through the arena
  std::size_t arena_step = 0;
  double adopt_share = 0;  // of the arena limit
};

// A link through shared memory: frames in a ring for each direction (ring.h, frame_stream.h), large
// segments in arenas (arena.h, adoption.h).
//
// Any thread sends; large segments are copied into the arena before the send lock is taken. One
// thread at a time receives. Everything but the end of the link is announced by rings and bell; the
// descriptor must be watched level-triggered.
class ShmLink final : public Link, private SegmentSource {
 public:
  // `pool` outlives the link.
  ShmLink(LinkParts parts, const LinkSettings& settings, BufferPool& pool);
  ~ShmLink() override;

  std::string_view transport() const override { return "shm"; }
  const PeerIdentity& peer() const override { return peer_; }
  bool send(wire::OutFrame frame) override { return send(std::move(frame), Hurry::Yes); }
  bool send_at_leisure(wire::OutFrame frame) override { return send(std::move(frame), Hurry::No); }
  bool backlogged(std::size_t limit) override;
  Received receive(wire::InFrame& frame) override;
  bool pending() const override;
  int descriptor() const override { return socket_.get(); }
  bool wants_write() const override { return false; }
  bool announced_by_descriptor() const override { return false; }
  void close() override;
  std::optional<std::string> close_reason() const override;
  std::optional<std::uint64_t> pulse() const override { return bell_->pulse(); }
  LinkStats stats() const override;
  LinkTraffic traffic() const override;

  // Any thread, now and then: gives memory back to the system if hardly anything was sent since the
  // last time.
  void trim_if_idle();

 private:
  struct Outbox {
    FrameWriter frames;
    bool closed = false;
    // At the last trim_if_idle().
    std::uint64_t bytes_then = 0;
    std::uint64_t placed_then = 0;
    // When memory was last given back.
    std::uint64_t bytes_at_trim = 0;
    std::uint64_t placed_at_trim = 0;
  };
  struct Counters {
    std::atomic<std::uint64_t> frames{0};
    std::atomic<std::uint64_t> bytes{0};
    void count(std::size_t frame_bytes);
  };

  enum class Hurry { Yes, No };
  bool send(wire::OutFrame frame, Hurry hurry);
  SegmentEntry place(const Buffer& segment);
  bool write(wire::OutFrame& frame, const std::vector<SegmentEntry>& entries, Hurry hurry);
  void write_queue();
  void note_queue(Outbox& outbox);
  void trim_ring(Outbox& outbox);

  bool take_frame(wire::InFrame& frame);
  Buffer locate(const SegmentEntry& entry) override;
  // Takes all chunks that are announced on the socket; false when the peer is gone.
  bool read_socket();

  void end(std::optional<std::string> reason);
  void fail(const std::string& reason);
  void explain(const std::string& reason);
  void log_end(const std::string& reason) const;

  const PeerIdentity peer_;
  const LinkSettings settings_;
  BufferPool& pool_;
  const std::uint64_t fork_depth_;
  const Descriptor socket_;
  const std::unique_ptr<RemoteBell> bell_;
  const std::shared_ptr<const RingMemory> ring_;  // that we write
  const std::shared_ptr<OutboundArena> outbound_;
  InboundArena inbound_;

  // Holder of the poll seat.
  FrameReader reader_;
  bool peer_ended_ = false;
  bool finished_ = false;  // Closed was returned

  mutable Guarded<Outbox> outbox_;
  std::atomic<bool> queued_{false};           // written under the send lock
  std::atomic<std::size_t> bytes_queued_{0};  // at least: the peer may have taken some since
  // While somebody waits for the peer to take something: how much it had taken before.
  static constexpr std::uint64_t kNobodyWaits = UINT64_MAX;
  std::atomic<std::uint64_t> taken_before_{kNobodyWaits};

  std::atomic<bool> closed_{false};  // set under the send lock
  mutable Guarded<std::optional<std::string>> close_reason_;
  Counters sent_;
  Counters received_;
};

}  // namespace hawser::transport::shm
