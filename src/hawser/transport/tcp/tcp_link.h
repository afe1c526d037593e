#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "hawser/base/buffer_pool.h"
#include "hawser/base/limits.h"
#include "hawser/transport/descriptor.h"
#include "hawser/transport/link.h"
#include "hawser/transport/tcp/byte_stream.h"
#include "hawser/transport/tcp/frame_assembler.h"
#include "hawser/transport/tcp/outbox.h"
#include "hawser/transport/transport.h"

namespace hawser::transport::tcp {

// A connected and authenticated socket. Host and pool outlive it.
//
// Sending. One thread at a time writes, without holding the lock: it marks itself as the writer,
// and whoever sends meanwhile only queues. The writer takes along what has been queued when its own
// bytes are out. What the socket does not take is left in the outbox for the poller.
//
// Holding back, so that one system call writes a batch:
// - Answers. A thread that has received a frame and knows of more is likely to answer them all.
//   What it sends meanwhile is queued, and written when it has received the last of them. While
//   pending() is true somebody calls receive() again, whatever becomes of that thread, and that
//   ends the holding back.
// - Calls to a peer that has plenty to do (send_with_more()), while somebody will flush them soon:
//   they are written by flush(), or with whatever is sent next, or when there are kHeldCalls.
//
// Closing. close() shuts the socket down; the descriptor itself lives as long as the link, so that
// no other thread can find a stranger under its number.
class TcpLink final : public Link, public std::enable_shared_from_this<TcpLink> {
 public:
  TcpLink(Descriptor socket, std::unique_ptr<ByteStream> stream, PeerIdentity peer, Host& host,
          BufferPool& pool, const Limits& limits);
  ~TcpLink() override;

  std::string_view transport() const override { return stream_->name(); }
  const PeerIdentity& peer() const override { return peer_; }
  bool send(wire::OutFrame frame) override;
  bool send_with_more(wire::OutFrame frame) override;
  Duration flush() override;
  bool backlogged(std::size_t limit) override;
  Received receive(wire::InFrame& frame) override;
  bool pending() const override { return pending_; }
  int descriptor() const override { return socket_.get(); }
  bool wants_write() const override { return wants_write_.load(); }
  void close() override;
  std::optional<std::string> close_reason() const override;
  LinkStats stats() const override;

 private:
  // Everything about sending, guarded by mutex_.
  struct Sending {
    Outbox outbox;
    bool writing = false;  // a thread writes; only that thread consumes from the outbox
    bool ended = false;
    bool awaited = false;  // somebody waits for the outbox to shrink; until receive() has looked
    std::thread::id held_back;   // what this thread sends waits for its next receive()
    std::size_t held_calls = 0;  // in the outbox, until somebody writes
    TimePoint held_since{};
    std::optional<std::string> reason;
    std::uint64_t frames = 0;
    std::uint64_t bytes = 0;
  };
  // What must die or be done after the lock is released.
  struct Aftermath {
    Outbox dropped;
    std::vector<Buffer> finished;
    bool watch = false;
    bool shut = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  Moved write_directly(const wire::OutFrame& frame);
  // With the lock; each returns false when that was the end of the link.
  bool queue(wire::OutFrame& frame, Aftermath& aftermath);
  bool queue_rest(wire::OutFrame& frame, std::size_t written, Aftermath& aftermath);
  bool account(const Moved& moved, Aftermath& aftermath);
  // By the writer; releases the lock around each write.
  bool write_on(Lock& lock, std::size_t max_bytes, Aftermath& aftermath);
  void stop_writing(Aftermath& aftermath);
  void end(std::optional<std::string> reason, Aftermath& aftermath);
  void settle(Aftermath& aftermath);
  bool write_queued();
  bool has_room_for_held(const wire::OutFrame& frame) const;
  void hold_back(std::thread::id sender);
  Received ended(std::optional<std::string> reason);
  Received read_frame(wire::InFrame& frame);

  const Descriptor socket_;
  const std::unique_ptr<ByteStream> stream_;
  const PeerIdentity peer_;
  Host& host_;

  mutable std::mutex mutex_;
  Sending sending_;
  std::atomic<bool> wants_write_{false};

  // The receiving thread's own.
  FrameAssembler assembler_;
  bool pending_ = false;
  bool ran_dry_ = false;         // the last read had all there was
  std::thread::id held_back_{};  // as in sending_
  bool finished_ = false;
  std::atomic<std::uint64_t> frames_received_{0};
  std::atomic<std::uint64_t> bytes_received_{0};
};

}  // namespace hawser::transport::tcp
