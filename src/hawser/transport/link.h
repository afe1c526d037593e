#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/error.h"
#include "hawser/base/ids.h"
#include "hawser/wire/frame.h"

namespace hawser::transport {

// Who is at the other end, as proved by the handshake.
struct PeerIdentity {
  std::string name;
  Incarnation incarnation{};
  std::uint16_t minor = 0;              // of its protocol version
  std::vector<std::uint16_t> features;  // that both ends have
  std::optional<std::uint32_t> rank{};  // of one that has connected to this node, if it has any
};

struct LinkTraffic {
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
};

struct LinkStats : LinkTraffic {
  std::size_t bytes_queued = 0;   // accepted by send(), and neither written nor taken by the peer
  std::size_t bytes_shared = 0;   // shm: mapped for this link
  std::size_t bytes_adopted = 0;  // shm: of the peer's arena, in received tensors that are alive
};

// One established connection between two incarnations of two nodes: the contract that every
// transport keeps and tests/contract checks.
//
//   LINK-1  Frames arrive complete, unchanged, once, in the order in which send() accepted them.
//   LINK-2  send() never blocks, and runs no foreign code but destructors of the segments.
//   LINK-3  After close(), or when the other end is gone, receive() returns Closed after the frames
//           that had arrived before, send() returns false, and all segments are let go.
//   LINK-4  A malformed byte from the peer closes this link with a reason and does nothing else.
//   LINK-5  Memory taken for a peer is bounded by Limits whatever it sends.
//   LINK-6  kill -9 at either end closes the other end's link, and leaves nothing behind.
//   LINK-7  Who was told that a link is backlogged learns when that may have changed: the link asks
//           to be looked at, and receive() returns Nothing at least once.
//   LINK-8  What is held back is written by flush(), by the next send(), or at once where the host
//           knows of nobody who will flush; in the order in which it was accepted.
class Link {
 public:
  enum class Received { Frame, Nothing, Closed };

  virtual ~Link() = default;

  virtual std::string_view transport() const = 0;  // "tcp", "tls", "shm", "sim"
  virtual const PeerIdentity& peer() const = 0;

  // Any thread. Writes what the medium takes at once and queues the rest, which the poller writes
  // on. False when the link is closed; the frame is dropped then.
  virtual bool send(wire::OutFrame frame) = 0;
  // The same, for a frame that nobody is likely to wait for: a peer that sleeps need not be woken.
  // It finds the frame when it looks at its links for another reason.
  virtual bool send_at_leisure(wire::OutFrame frame) { return send(std::move(frame)); }

  // The same, where the peer has plenty to do: the frame may be held back and travel with those
  // that follow (LINK-8).
  virtual bool send_with_more(wire::OutFrame frame) { return send(std::move(frame)); }
  // Any thread. Writes what is held back; how long the first of it has waited.
  virtual Duration flush() { return {}; }

  // Any thread, and cheap while little is queued: whether more than `limit` bytes that were
  // accepted by send() wait for the peer (LINK-7). What the medium itself holds need not count.
  virtual bool backlogged(std::size_t limit) = 0;

  // Takes the next complete frame, and writes on what is queued. Called by one thread at a time,
  // not always the same one (whoever holds the poll seat).
  virtual Received receive(wire::InFrame& frame) = 0;

  // Whether receive() has something to do that its descriptor would not announce: bytes in a ring,
  // decrypted bytes in a buffer, a queue that can be written on. Same thread rule as receive().
  virtual bool pending() const = 0;

  // To be watched for reading, and for writing while wants_write(); -1 if there is none. Stays
  // open, and readable once the link is closed, until the link is destroyed.
  virtual int descriptor() const = 0;
  virtual bool wants_write() const = 0;
  // Whether every frame is announced by the descriptor; otherwise pending() must be asked as well.
  virtual bool announced_by_descriptor() const { return true; }

  // Any thread, idempotent. Frames that were accepted by send() and not yet written are dropped.
  virtual void close() = 0;
  // Why the link closed by itself; empty while open, and after a plain close() or a clean end.
  virtual std::optional<std::string> close_reason() const = 0;

  // A number that the peer counts up while it lives, where it can be seen without a message; the
  // link then needs no heartbeats.
  virtual std::optional<std::uint64_t> pulse() const { return std::nullopt; }

  virtual LinkStats stats() const = 0;
  // A part of that, and cheap: it is asked for once per heartbeat interval.
  virtual LinkTraffic traffic() const { return stats(); }
};

}  // namespace hawser::transport
