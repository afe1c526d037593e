#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/error.h"
#include "hawser/base/ids.h"
#include "hawser/base/unique_function.h"
#include "hawser/wire/message.h"

namespace hawser::agent {

// How a call ended. `error` is set unless it returned; a failed call may carry a payload too.
// The payload's views point into the frame.
struct Answer {
  wire::InFrame frame;
  wire::ReceivedPayload payload;
  wire::Notes notes;
  std::optional<Error> error;
  // Whom the call was sent to; nothing when it never left this node.
  std::optional<Incarnation> sent_to{};
};

// Called exactly once per call, on whichever thread learnt the outcome. Must not block and must not
// run user code.
using AnswerHandler = UniqueFunction<void(Answer&&)>;

struct OutstandingCall {
  std::string function;
  TimePoint started;
  Deadline deadline;
  Duration budget = Duration::max();  // as given by the caller, for messages
  std::size_t bytes = 0;              // of its payload, for flow control
  Incarnation only_to{};              // zero: whoever has the name
  AnswerHandler on_answer;
};

// The calls that one end of a connection waits for. An id is a slot and its generation, so look-up
// is an array access and an id that was answered is never mistaken for a newer one.
//
//   CALL-2  Every call that was opened leaves the table exactly once: by take(), expire() or
//           take_all(). Whoever gets it out calls its handler.
//
// Not thread-safe: the session's lock guards it. Pure: no clock, no I/O, calls nobody.
class CallTable {
 public:
  explicit CallTable(std::size_t limit) : limit_(limit) {}

  // Nothing when the limit is reached; the call is untouched then.
  std::optional<CallId> open(OutstandingCall& call);
  std::optional<OutstandingCall> take(CallId id);
  // Those whose deadline has passed.
  std::vector<std::pair<CallId, OutstandingCall>> expire(TimePoint now);
  std::vector<OutstandingCall> take_all();

  std::size_t size() const { return size_; }
  std::size_t bytes() const { return bytes_; }  // of all payloads
  // never() when there is none.
  Deadline earliest() const;

  template <class F>
  void for_each(F visit) const {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].call) visit(id_of(slot), *slots_[slot].call);
    }
  }

 private:
  struct Slot {
    std::uint32_t generation = 1;
    std::optional<OutstandingCall> call;
  };
  CallId id_of(std::size_t slot) const {
    return CallId{(std::uint64_t{slots_[slot].generation} << 32) | slot};
  }
  OutstandingCall release(std::size_t slot);

  std::size_t limit_;
  std::size_t size_ = 0;
  std::size_t bytes_ = 0;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace hawser::agent
