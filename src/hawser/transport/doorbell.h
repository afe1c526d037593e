#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "hawser/transport/descriptor.h"

namespace hawser::transport {

// How a node that sleeps is woken by peers on the same host. One per node.
//
// A page of shared memory holds one word, `sleeping`: 0, or the number of the node's present sleep.
// An eventfd wakes. Both are given to every local peer. BELL-1: a frame that was published is seen,
// or the bell is rung:
//
//   sleeper (whoever holds the poll seat)        producer (any local peer)
//   1. sleeping := a new number                  1. publish the frame (its ring's tail)
//   2. look at every ring again                  2. if sleeping is n > 0: write the eventfd,
//   3. nothing there: sleep on the eventfd       3. then change sleeping from n to 0
//
// Both 1s and 2s are sequentially consistent, so one of the two sees the other. The eventfd is
// watched by edge and never read: every ring wakes one thread, which then looks at every ring of
// frames. Rings that come while nobody sleeps wait for the next who would.
//
// A frame that nobody is likely to wait for (Link::send_at_leisure) is published without step 2:
// then it is for the receiver to look now and then while it expects one (ring_if_asleep()).
//
// Step 3 of the producer spares the next one the system call. It comes after the ring, so that a
// producer that is stopped or killed between the two costs nothing but a second ring; the number
// keeps it from silencing a later sleep. Only the sleeper itself sets the word to a new number.
//
// The page also carries the node's pulse, counted up every heartbeat interval: local peers see that
// a node lives without being woken by heartbeats (64 nodes on a host are 2,016 pairs).
struct BellPage {
  alignas(64) std::atomic<std::uint32_t> sleeping{0};
  alignas(64) std::atomic<std::uint64_t> pulse{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// The node's own end.
class Doorbell {
 public:
  // Throws Error(Overloaded) when the system has no descriptor or memory for it.
  Doorbell();
  ~Doorbell();
  Doorbell(const Doorbell&) = delete;

  // Holder of the poll seat.
  void announce_sleep() {
    if (++sleeps_ == 0) ++sleeps_;
    page_->sleeping.exchange(sleeps_, std::memory_order_seq_cst);
  }
  void announce_awake() { page_->sleeping.exchange(0, std::memory_order_seq_cst); }
  bool announced_asleep() const { return page_->sleeping.load(std::memory_order_seq_cst) != 0; }
  // Any thread, for frames that do not come from a peer, or come without a ring. After publishing.
  void ring_if_asleep();
  void beat() { page_->pulse.fetch_add(1, std::memory_order_relaxed); }
  // Wakes whoever sleeps on it, unconditionally: for work that no ring announces.
  void ring();
  int event_fd() const { return event_.get(); }
  int page_fd() const { return memory_.get(); }  // sealed memfd of one page

 private:
  Descriptor memory_;
  Descriptor event_;
  BellPage* page_;
  std::uint32_t sleeps_ = 0;
};

// A peer's bell, mapped. Any thread.
class RemoteBell {
 public:
  // Takes descriptors received from a peer; checks size, seals and kind. Throws Error(Refused).
  RemoteBell(Descriptor page, Descriptor event);
  ~RemoteBell();
  RemoteBell(const RemoteBell&) = delete;

  // After publishing.
  void ring_if_asleep() {
    const std::uint32_t sleep = page_->sleeping.load(std::memory_order_seq_cst);
    if (sleep != 0) wake_from(sleep);
  }
  std::uint64_t pulse() const { return page_->pulse.load(std::memory_order_relaxed); }

 private:
  void wake_from(std::uint32_t sleep);
  Descriptor memory_;
  Descriptor event_;
  BellPage* page_;
};

}  // namespace hawser::transport
