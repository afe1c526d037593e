#pragma once

// Deliberate faults: ways to be wrong that the simulator must find. Each is a switch that a test
// build can turn on; in a release every one of them is the constant false.
//
//   if (!HAWSER_FAULT(kForgetDeadline)) watch(deadline);
#ifdef HAWSER_DELIBERATE_FAULTS

#include <atomic>
#include <cstdint>

namespace hawser::testing {

enum Fault : std::uint32_t {
  kReuseCallIds = 1u << 0,       // an id names two calls, one after the other
  kForgetDeadline = 1u << 1,     // a call's deadline is not watched
  kIgnoreIncarnation = 1u << 2,  // a stale incarnation is let in
  kDropAnswer = 1u << 3,         // a reply is taken from the table and not delivered
  kAnswerTwice = 1u << 4,        // a request can be answered twice
  kForgetOnLoss = 1u << 5,       // calls outstanding on a lost connection are not failed
  kNeverSuspect = 1u << 6,       // silence is not noticed
  kKeepCancelled = 1u << 7,      // a cancellation does not reach the handler
  kLeaveEarly = 1u << 8,         // a graceful shutdown does not wait for rest
  kForgetWaiting = 1u << 9,      // calls that wait for a connection are not failed with it
  kTrustOneCount = 1u << 10,     // a single look at the world is taken for rest
  kStayWithSteward = 1u << 11,   // nobody takes over from a steward that is lost
  kForgetPutAside = 1u << 12,    // a call that was put aside is not started when it may
};

// Layers above have switches of their own: refs/fault.h, autograd/fault.h.
inline std::atomic<std::uint64_t> faults{0};

}  // namespace hawser::testing

#define HAWSER_FAULT(fault) \
  ((::hawser::testing::faults.load(std::memory_order_relaxed) & ::hawser::testing::fault) != 0)

#else

#define HAWSER_FAULT(fault) false

#endif
