#pragma once

#include "hawser/base/fault.h"

// The deliberate faults of this layer: ways to be wrong that tests/sim_autograd must find. They
// share the switches of base/fault.h, from bit 32 on.
#ifdef HAWSER_DELIBERATE_FAULTS

namespace hawser::testing {

enum GradFault : std::uint64_t {
  kStartUntold = std::uint64_t{1} << 32,   // a node starts before it knows what to wait for
  kNeverProceed = std::uint64_t{1} << 33,  // nobody is told that discovery is over
  kForgetBranch = std::uint64_t{1} << 34,  // one of the recv functions that were found is not told
  kAnswerEarly = std::uint64_t{1} << 35,   // a child does not wait for its children
  kFinishEarly = std::uint64_t{1} << 36,   // the initiator does not wait for its children
  kDropHeld = std::uint64_t{1} << 37,      // gradients that came before the start are lost
  kDeliverAgain = std::uint64_t{1} << 38,  // a gradient that was held is delivered twice
  kForgetAbort = std::uint64_t{1} << 39,   // a failure is not passed on
  kForgetStop = std::uint64_t{1} << 40,    // a failure does not stop the local part
  kWakeAborted = std::uint64_t{1} << 41,   // a late message begins a pass again that was aborted
  kKeepLostContexts = std::uint64_t{1} << 42,  // contexts of lost creators stay
  kForgetRelease = std::uint64_t{1} << 43,     // a release is not passed on
  kReleaseOnce = std::uint64_t{1} << 44,       // a release that did not arrive is not sent again
  kRaiseTheDead = std::uint64_t{1} << 45,      // a late message creates a released context again
  kNeverInquire = std::uint64_t{1} << 46,      // members never ask for the creator
  kReuseNumbers = std::uint64_t{1} << 47,      // ids do not tell one life from the next
  kIgnoreCut = std::uint64_t{1} << 48,         // a pass goes on over a connection that was lost
  kForgetCommit = std::uint64_t{1} << 49,      // children are not told to commit
  kCommitAborted = std::uint64_t{1} << 50,     // what an aborted pass collected is kept
  kLoseCause = std::uint64_t{1} << 51,         // the error that is passed on is not the first one
  kBlameMessenger = std::uint64_t{1} << 52,    // the error names another node
};

}  // namespace hawser::testing

#endif
