#pragma once

#include "hawser/base/fault.h"

// The deliberate faults of this layer: ways to be wrong that tests/sim_refs must find. They share
// the switches of base/fault.h, from bit 14 on.
#ifdef HAWSER_DELIBERATE_FAULTS

namespace hawser::testing {

enum RefFault : std::uint32_t {
  kForgetUnpin = 1u << 14,        // a ticket that has left holds its giver for ever
  kForgetSpent = 1u << 15,        // a fork that was dropped before it was told of is listed again
  kSkipPin = 1u << 16,            // a ticket that is on its way does not hold its giver
  kForgetShare = 1u << 17,        // the owner is not told of a ticket that has left
  kForgetHolder = 1u << 18,       // a claim is confirmed and not written down
  kDropAck = 1u << 19,            // records are not acknowledged
  kForgetRetry = 1u << 20,        // records are sent once
  kDeliverTwice = 1u << 21,       // records that come again are acted on again
  kSkipGap = 1u << 22,            // records that are missing are not waited for
  kKeepLostHolder = 1u << 23,     // a holder that is lost stays on the list
  kTrustLostOwner = 1u << 24,     // a reference to a lost owner does not fail
  kNeverAsk = 1u << 25,           // tickets that nobody claims are not asked about
  kForgetEarlyDrop = 1u << 26,    // a drop that overtook its creation is forgotten
  kNeverDeny = 1u << 27,          // a claim of a value that is gone is not answered
  kForgetDrop = 1u << 28,         // the owner is not told when a holder lets go
  kReuseRefIds = 1u << 29,        // ids do not tell one incarnation from the next
  kForgetWaiters = 1u << 30,      // calls that wait for a value are not woken
  kDropWhileCreating = 1u << 31,  // a drop does not wait for the creation to end
};

}  // namespace hawser::testing

#endif
