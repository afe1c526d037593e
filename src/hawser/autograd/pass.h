#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "hawser/autograd/contexts.h"
#include "hawser/autograd/desk.h"

namespace hawser::autograd {

// One pass, for those who look.
struct PassReport {
  PassId id{};
  ContextId context{};
  Party initiator;
  std::string_view stage;  // "exploring", "running", "complete", "committing", "aborting"
  std::size_t awaited = 0;
  std::size_t arrived = 0;
  std::size_t unanswered = 0;  // calls to other nodes
  Duration age{};
};

// One backward pass, on one of the nodes that take part in it.
//
//                   told enough            all have run,           Commit
//   Exploring ------------------> Running ----------------> Complete -------> Committing --> done
//       |                            |     all children          |                 |
//       |          an error here, an Abort, a peer lost, the deadline              |
//       +----------------------------+------------> Aborting <---+-----------------+
//                                                       |
//                                                       +--> done, when all have stopped
//
// Exploring: SMART only. The send functions that will get a gradient are being found. Told enough:
// all send functions of the context on this node have been found, or nothing more will be.
// Running: the local part is at work. Complete: this node and its children have done their part,
// and wait for the verdict. The initiator goes from Running to Committing by itself.
//
// Part of Conductor; sans-IO. When done() the conductor forgets it and buries its id.
class Pass {
 public:
  // `context` lives until the pass is aborted or done.
  Pass(Desk& desk, PassHeader header, const Membership& context, TimePoint now);

  // --- at the initiator ---
  void begin(TimePoint now);
  // False: too late.
  bool cancel(TimePoint now);

  // --- what the layer above tells ---
  void explored(Exploration exploration, const Result<std::vector<MessageId>>& recvs,
                TimePoint now);
  // False: the pass has failed, and the gradients are not wanted.
  bool send_gradients(MessageId recv, GradientHandle gradients, TimePoint now);
  void local_ended(const Result<void>& result, TimePoint now);

  // --- what others say; each is answered ---
  void on(const Party& from, Incoming call, const Discover& discover, TimePoint now);
  void on(const Party& from, Incoming call, const Proceed& proceed, TimePoint now);
  void on(const Party& from, Incoming call, const Gradients& gradients, TimePoint now);
  void on(const Party& from, Incoming call, const Commit& commit, TimePoint now);
  void on(const Party& from, Incoming call, const Abort& abort, TimePoint now);
  void answered(Outgoing call, const Result<Reply>& reply, TimePoint now);

  // --- the world ---
  // Nothing more is said to `told_by`, who knows.
  void abort(Error why, TimePoint now, const Party* told_by = nullptr);
  // Gone without a word to anybody: this node has a new incarnation.
  void forsake(const Error& why);
  bool has_spoken_with(std::string_view peer) const;
  bool has_spoken_with(const Party& up_to) const;
  void tick(TimePoint now);
  Deadline next_due() const;

  ContextId context() const { return header_.context; }
  const Party& initiator() const { return header_.initiator; }
  bool done() const { return done_; }
  std::optional<Error> error() const;
  PassReport report(TimePoint now) const;

 private:
  struct Exploring {
    std::vector<std::pair<MessageId, GradientHandle>> held;  // gradients that were early
  };
  struct Running {};
  struct Complete {};
  struct Committing {};
  struct Aborting {
    Error why;
    TimePoint until;  // then others are not waited for any longer
  };
  using Stage = std::variant<Exploring, Running, Complete, Committing, Aborting>;
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(stage_);
  }

  // What one Discover, or the roots, has led to. It is over when all of that is.
  struct Discovery {
    std::optional<Incoming> asked_by{};  // nobody: the roots
    bool explored = false;
    std::size_t unanswered = 0;  // Discovers sent because of it
    bool waits = false;          // somebody there needs a Proceed
  };
  struct Call {
    Party to;
    std::optional<Exploration> discovery{};  // of a Discover: because of which
  };
  enum class Local { NotStarted, AtWork, Ended };

  bool initiated_here() const { return header_.initiator == desk_.self.party(); }
  PassHeader header(TimePoint now) const;
  void call(const Party& to, Message message, std::optional<Exploration> discovery = {});

  void explore(Discovery discovery, std::vector<MessageId> sends);
  void end_if_over(Exploration exploration, TimePoint now);
  bool still_explores() const;
  void start_if_told_enough(TimePoint now);
  void nothing_more_to_discover(TimePoint now);
  void start(TimePoint now);
  void deliver(MessageId send, GradientHandle gradients);
  void complete_if_all_have_run();
  void commit();
  void end_if_committed();
  void end_if_stopped(TimePoint now);
  std::string describe_missing() const;
  Error broken(const std::string& what) const;
  Error unexpected(MessageId send) const;

  Desk& desk_;
  const PassHeader header_;
  const Membership* context_;
  const TimePoint since_;
  const Deadline deadline_;
  Stage stage_{};
  Local local_ = Local::NotStarted;
  bool committed_ = false;  // what was collected here
  bool done_ = false;

  std::map<Exploration, Discovery> discoveries_{};
  std::uint64_t explorations_ = 0;
  std::set<Party> waits_below_{};  // whom to tell that discovery is over
  bool discovery_over_ = false;

  std::set<MessageId> awaited_{};     // send functions
  std::set<MessageId> arrived_{};     // of those, whose gradients came
  std::set<MessageId> reached_{};     // recv functions that were found
  std::set<MessageId> fired_{};       // that have run
  std::map<Outgoing, Call> calls_{};  // not answered
  std::set<Party> contacts_{};        // with whom was spoken in this pass
  std::set<Party> children_{};
  bool has_parent_ = false;
  std::optional<Incoming> owed_{};  // the answer to the parent's Gradients or Commit
};

}  // namespace hawser::autograd
