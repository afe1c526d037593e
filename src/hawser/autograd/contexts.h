#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hawser/autograd/desk.h"
#include "hawser/autograd/releases.h"
#include "hawser/base/graveyard.h"

namespace hawser::autograd {

// What one node knows of one context.
struct Membership {
  struct SendFunction {
    bool call_failed = false;  // its receiver may never have got it
  };

  Party creator;
  std::map<std::string, Incarnation, std::less<>> known{};  // whom it sent to or received from
  std::unordered_map<MessageId, SendFunction> sends{};
  std::unordered_map<MessageId, Party> recvs{};  // from whom
  TimePoint since{};
  TimePoint ask_at{};  // whether it still exists; not at its creator
  int asked_in_vain = 0;
};

// One context, for those who look.
struct ContextReport {
  ContextId id{};
  Party creator;
  std::vector<std::string> known;
  std::vector<MessageId> sends;
  std::vector<MessageId> recvs;
  Duration age{};
};

// The contexts this node is in. One enters by creating it, or by receiving a note of it. It leaves
// when the context is released; whoever leaves tells all it knows, so that the word gets round. A
// member that the word has missed (because those between it and the creator were lost) asks the
// creator from time to time.
//
// Part of Conductor; sans-IO. Which contexts are to be dropped it says by what it returns: passes
// have to be stopped first.
class Contexts {
 public:
  explicit Contexts(Desk& desk)
      : desk_(desk), dead_(desk.options.remember, desk.options.max_remembered), releases_(desk) {}

  ContextId create(TimePoint now);
  // Nothing when this node is not in that context.
  std::optional<Note> record_send(ContextId context, const Party& to, bool with_function);
  // `left`: it may have been received.
  void send_failed(ContextId context, MessageId message, bool left);
  // False when the context is over: it is not entered again (GRAD-6).
  bool record_recv(const Note& note, const Party& from, bool with_function, const Lives& lives,
                   TimePoint now);

  // Leaves it, and tells all it knows but `told_by`.
  void drop(ContextId context, std::string_view told_by, TimePoint now);
  // To all that are over with that.
  std::vector<ContextId> lost(const Party& party, const Lives& lives);
  // This node has got a new incarnation: leaves all, and tells nobody.
  void rejoin();

  Reply inquired(const std::vector<ContextId>& contexts) const;
  void released(const Desk::ToRelease& errand, Outgoing call, bool arrived, TimePoint now) {
    releases_.answered(errand.peer, call, arrived, now);
  }
  std::vector<ContextId> answered(const Desk::ToInquire& errand, const Result<Reply>& reply);

  void tick(TimePoint now);
  Deadline next_due() const { return std::min(next_ask_, releases_.next_due()); }

  const Membership* find(ContextId context) const;
  bool was_released(ContextId context) const { return dead_.contains(context); }
  bool idle() const { return contexts_.empty() && releases_.empty(); }
  bool concerns(std::string_view peer) const;
  ContextReport report(ContextId context, TimePoint now) const;
  std::vector<ContextReport> report(TimePoint now) const;

 private:
  Membership* look_up(ContextId context);
  bool is_mine(const Membership& context) const { return context.creator == desk_.self.party(); }
  void meet(Membership& context, const Party& peer);

  Desk& desk_;
  std::unordered_map<ContextId, Membership> contexts_;
  Graveyard<ContextId> dead_;
  Releases releases_;
  Deadline next_ask_;  // not later than the first that is due
};

}  // namespace hawser::autograd
