#pragma once

#include <atomic>
#include <cstdint>

#include "hawser/base/step.h"

namespace hawser::transport {

// Who looks after a node's links. One seat per node; at most one thread sits on it, and only that
// thread calls Link::receive(). The seat makes no system calls and knows no links.
//
//                    knock, take                          lend
//        +--------+ -------------> +--------------------+ ------> +------------+
//        | Asleep |                | WaiterPolls        |         | WaiterAway |
//        |        |                | HandPolls          |         | HandAway   |
//        +--------+ <------------- +--------------------+ <------ +------------+
//                    leave, vacate    ^                  reclaim      |
//                                     |          steal (anybody)      |
//                                     +-------------------------------+
//
//   Asleep       Nobody polls. The bell is armed, and an anchor, a hand of the crew, sleeps on it.
//   WaiterPolls  A user's thread polls inside a blocking wait. It runs no user code (CALL-1).
//   HandPolls    A thread of the crew polls.
//   HandAway     The hand runs a handler that is usually brief and means to go on polling.
//   WaiterAway   The waiter has what it waited for, but more replies are on their way to it.
//                In both the bell is not armed: peers would have to ring for each frame that
//                arrives meanwhile, which costs them more than the frame. If the sitter does not
//                come back within a tick, an anchor steals the seat. The tick runs only while
//                seats are being lent.
//
// SEAT-1, no frame is left lying. Who wants to leave arms the bell and the sockets, looks at
// everything once more, and then calls leave(). Who is woken by the bell knocks: either the seat
// was Asleep and is now his, or the knock is recorded in the seat's word, and then leave() fails:
// the sitter has to arm and look again. Work that is queued rather than received is announced by
// nudge() in the same way. One word, changed only by read-modify-write: there is no moment in which
// a knock can fall between looking and leaving.
//
// A mark is an errand for the sitter who finds it:
//   - a hand that leaves looks at the links and at the queue after it has seen the mark, or before
//     it vacates sees that another hand will (it rings the bell);
//   - a waiter looks at the links only. Whoever queues a task therefore rings the bell too when
//     nudge() says that a waiter has the seat, and a waiter that gets the seat from a hand (it
//     reclaims in a handler what the hand has lent, or steals) rings the bell for tasks that were
//     queued while the hand had it.
//
// poll_seat_test.cpp runs these rules through every interleaving.
class PollSeat {
 public:
  enum class State : std::uint32_t {
    Asleep = 0,
    WaiterPolls = 1,
    HandPolls = 2,
    WaiterAway = 5,
    HandAway = 6,
  };
  // Names a thread; any number but 0.
  using Sitter = std::uint32_t;
  // All there is to a seat; what is read of it may be outdated.
  struct Snapshot {
    std::uint64_t word = 0;
    std::uint64_t lends = 0;
  };

  PollSeat() = default;
  explicit PollSeat(const Snapshot& found) : word_(found.word), lends_(found.lends) {}
  Snapshot snapshot() const {
    return {word_.load(std::memory_order_seq_cst), lends_.load(std::memory_order_seq_cst)};
  }

  // Certain for the one who asks about himself, unless he is Away.
  bool is_with(Sitter who, State state) const {
    return (word_.load(std::memory_order_relaxed) & ~kKnocked) == word(who, state);
  }
  State state() const { return state_of(word_.load(std::memory_order_seq_cst)); }

  // Asleep -> Polls.
  bool take(Sitter who, State polls) {
    std::uint64_t expected = 0;
    return word_.compare_exchange_strong(expected, word(who, polls), std::memory_order_seq_cst);
  }

  // "There is something to look at": takes the seat if it is Asleep (true), else leaves a mark that
  // makes the sitter look again before it can leave.
  bool knock(Sitter who) {
    for (std::uint64_t seen = word_.load(std::memory_order_seq_cst);;) {
      const bool asleep = state_of(seen) == State::Asleep;
      const std::uint64_t wanted = asleep ? word(who, State::HandPolls) : seen | kKnocked;
      HAWSER_STEP();
      if (word_.compare_exchange_weak(seen, wanted, std::memory_order_seq_cst)) return asleep;
    }
  }

  // The same for somebody who will not sit down himself: the state he found.
  State nudge() {
    HAWSER_STEP();
    for (std::uint64_t seen = word_.load(std::memory_order_seq_cst);;) {
      if (state_of(seen) == State::Asleep) return State::Asleep;
      if (word_.compare_exchange_weak(seen, seen | kKnocked, std::memory_order_seq_cst)) {
        return state_of(seen);
      }
    }
  }

  // Polls -> Asleep, unless somebody knocked: then false, and the sitter stays.
  bool leave(Sitter who, State polls) {
    HAWSER_STEP();
    std::uint64_t expected = word(who, polls);
    if (word_.compare_exchange_strong(expected, 0, std::memory_order_seq_cst)) return true;
    word_.fetch_and(~kKnocked, std::memory_order_seq_cst);
    return false;
  }

  // Polls -> Asleep whatever happened. True when somebody knocked: see that another looks.
  bool vacate() {
    HAWSER_STEP();
    return (word_.exchange(0, std::memory_order_seq_cst) & kKnocked) != 0;
  }

  // Polls -> Away.
  void lend() {
    lends_.fetch_add(1, std::memory_order_seq_cst);
    HAWSER_STEP();
    word_.fetch_or(kAway, std::memory_order_seq_cst);
  }
  // Away -> `polls`, by the one who lent it. False when somebody stole the seat.
  bool reclaim(Sitter who, State polls) {
    return replace_away([who](std::uint64_t seen) { return sitter_of(seen) == who; }, who, polls);
  }
  bool steal(Sitter who, State polls) {
    return replace_away([](std::uint64_t) { return true; }, who, polls);
  }
  // Counts lend(): unchanged over a tick while Away means that the sitter has not been back.
  std::uint64_t lends() const { return lends_.load(std::memory_order_seq_cst); }

 private:
  static constexpr std::uint64_t kKnocked = std::uint64_t{1} << 31;
  static constexpr std::uint64_t kAway = 4;
  static constexpr std::uint64_t word(Sitter who, State state) {
    return (std::uint64_t{who} << 32) | static_cast<std::uint32_t>(state);
  }
  static constexpr State state_of(std::uint64_t word) { return static_cast<State>(word & 7); }
  static constexpr Sitter sitter_of(std::uint64_t word) { return static_cast<Sitter>(word >> 32); }

  template <class Condition>
  bool replace_away(Condition may, Sitter who, State polls) {
    for (std::uint64_t seen = word_.load(std::memory_order_seq_cst);;) {
      if ((seen & kAway) == 0 || !may(seen)) return false;
      const std::uint64_t wanted = word(who, polls) | (seen & kKnocked);
      HAWSER_STEP();
      if (word_.compare_exchange_weak(seen, wanted, std::memory_order_seq_cst)) return true;
    }
  }

  alignas(64) std::atomic<std::uint64_t> word_{0};
  std::atomic<std::uint64_t> lends_{0};
};

}  // namespace hawser::transport
