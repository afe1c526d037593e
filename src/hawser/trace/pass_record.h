#pragma once

#include <ATen/ThreadLocalState.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "hawser/base/guarded.h"
#include "hawser/trace/call_record.h"
#include "hawser/trace/recorder.h"
#include "hawser/trace/service.h"

namespace hawser::trace {

// What this node does in one backward pass, for those who want to know it: who watches the thread
// that began the pass, wherever that was, and profiles of serving. Thread-safe.
class PassRecord {
 public:
  // On the thread that begins the pass.
  PassRecord(std::uint64_t pass, wire::TraceProcess self);
  // Of a pass that another node has begun; `wants` is a set of wire::TraceWants.
  PassRecord(std::uint64_t pass, std::uint32_t wants, wire::TraceProcess self);

  std::uint64_t pass() const { return pass_; }
  bool begun_here() const { return !own_; }
  // 0: nobody wants to know anything.
  std::uint32_t wants() const { return wants_; }
  // What is done in this state of a thread is recorded.
  const at::ThreadLocalState& state() const { return state_; }

  // For a message by which another node may hear of the pass.
  wire::TraceNote note() const;
  // Gradients are sent, and their writing began at `called_ns`. The record ends with their answer.
  std::shared_ptr<CallRecord> send_gradients(std::string_view to, std::int64_t called_ns,
                                             std::size_t bytes) const;

  // This node's functions: it is known what they wait for; all have run; the pass is over.
  void part_begun();
  void part_done();
  void over();

 private:
  friend class PassService;
  struct Part {
    std::int64_t start_ns = 0;
    std::int64_t begun_ns = 0;
    std::int64_t done_ns = 0;
    bool told = false;
  };
  void tell(Part& part);

  const std::uint64_t pass_;
  const wire::TraceProcess self_;
  const std::shared_ptr<Recorder> own_;       // null: of the thread that began the pass
  const std::shared_ptr<Recorder> recorder_;  // null: there are only profilers of libtorch
  const at::ThreadLocalState state_;
  const std::uint32_t wants_;
  Guarded<Part> part_;
};

// A message of a recorded pass that is served, from its arrival to its answer.
//
//   TRACE-2  What a node has recorded in a pass goes to its parent in the pass, with the answer
//            that makes it a child (autograd/DESIGN.md): whoever began the pass has everything when
//            it ends.
class PassService {
 public:
  // `gradients_of` is the message of the forward pass, 0 if this is not about gradients. `profiles`
  // must outlive this.
  PassService(std::shared_ptr<PassRecord> record, const std::optional<wire::TraceNote>& note,
              std::uint64_t gradients_of, ServingProfiles& profiles);

  std::uint64_t pass() const { return record_->pass(); }
  // The answer is ready. `is_last`: this node does nothing more in the pass. What goes with the
  // answer, if its sender has asked.
  std::optional<wire::TraceReport> finish(bool is_last);

 private:
  const std::shared_ptr<PassRecord> record_;
  const std::optional<wire::TraceNote> note_;
  const std::uint64_t gradients_of_;
  ServingProfiles& profiles_;
  const std::uint32_t thread_;
  const std::int64_t served_ns_;
};

// The passes of a node that are recorded, which mostly are none. Thread-safe.
class PassRecords {
 public:
  // `profiles` must be there whenever this is used.
  PassRecords(wire::TraceProcess self, ServingProfiles& profiles)
      : self_(std::move(self)), profiles_(profiles) {}

  // On the thread that begins the pass.
  void begin(std::uint64_t pass);
  // A message of the pass has come. Null if nobody wants to know about it.
  std::shared_ptr<PassService> serve(std::uint64_t pass, const std::optional<wire::TraceNote>& note,
                                     std::uint64_t gradients_of);
  // Null when it is not recorded; costs one load while none is.
  std::shared_ptr<PassRecord> find(std::uint64_t pass) const;
  // The pass is over; `begun_here` says whether that is the word about passes of this node, or
  // about those of others.
  void end(std::uint64_t pass, bool begun_here);

 private:
  using Records = std::unordered_map<std::uint64_t, std::shared_ptr<PassRecord>>;
  // The one that is there, if another thread was faster.
  std::shared_ptr<PassRecord> add(std::shared_ptr<PassRecord> record);

  const wire::TraceProcess self_;
  ServingProfiles& profiles_;
  std::atomic<std::size_t> count_{0};  // written under the lock
  mutable Guarded<Records> records_;
};

// While it exists, what this thread starts is recorded for the pass, if that is recorded, and else
// for nobody: threads that run one pass also start others.
class StartingPart {
 public:
  explicit StartingPart(PassRecord* record);

 private:
  std::optional<at::ThreadLocalStateGuard> state_;
};

}  // namespace hawser::trace
