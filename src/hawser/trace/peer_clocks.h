#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "hawser/base/guarded.h"
#include "hawser/wire/message.h"

namespace hawser::trace {

// Clocks drift apart, and are set: what is older says nothing about now.
inline constexpr std::int64_t kClockValid_ns = 60'000'000'000;

// How far the wall clocks of peers are from ours, as far as calls to them have shown. A request is
// received after it was sent and answered before the answer arrives: each call bounds the
// difference from both sides, and all bounds together are better than any. Thread-safe.
class PeerClocks {
 public:
  struct Offset {
    std::int64_t ns = 0;        // theirs minus ours
    std::int64_t error_ns = 0;  // at most so far off
  };

  // One call: two times of our clock around two of theirs.
  void learn(std::string_view peer, std::int64_t sent_ns, std::int64_t received_ns,
             std::int64_t answered_ns, std::int64_t arrived_ns);
  // What has been learnt within the last minute. Where the bounds allow for no difference at all,
  // none is assumed: nodes of one host share a clock. The offset stays the same while the bounds
  // allow for it, so that what was translated before agrees with what comes later.
  Offset offset_of(std::string_view peer) const;

 private:
  struct Bounds {
    std::int64_t least = 0;
    std::int64_t most = 0;
    std::int64_t since_ns = 0;
    std::int64_t offset = 0;

    void choose();
  };
  mutable Guarded<std::map<std::string, Bounds, std::less<>>> bounds_;
};

// Puts the times of a report of `peer` into our clock, and says how exact that is.
void translate(wire::TraceReport& report, PeerClocks::Offset offset);
// All times of an event are later by so much.
void move(wire::TraceEvent& event, std::int64_t later_ns);

}  // namespace hawser::trace
