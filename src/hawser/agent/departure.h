#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "hawser/agent/agent.h"
#include "hawser/wire/message.h"

namespace hawser::agent {

// Leaving together, as protocol.fbs has it: a world of known members ends when every one of them
// has asked for it or is lost, and no call is running anywhere.
//
//   LEAVE-1  Nobody leaves while a member that is not lost has not asked.
//   LEAVE-2  Nobody leaves while a call between members that are not lost is on its way or running.
//   LEAVE-3  When every member has asked or is lost, and calls have ended, everybody leaves in
//            bounded time; also when the steward is lost, at whatever step.
//
// The steward is the member of the lowest rank that is not lost. Everybody else tells it, again and
// again, that they have asked (Arrival), and answers its Census. A node judges for itself who is
// lost: by what its own agent cannot reach. Two nodes may so have two stewards for a while; each
// steward leaves only with those who turned to it, and the rest, who see it gone, go on without it.
//
// At rest: in two rounds of the census running nobody was busy and nobody's counts or connections
// changed, and as many calls were received as sent. Counts are kept per open connection between
// members, so calls lost with a connection are in neither sum, nor are those of guests. Where the
// sums do not agree although members are lost (one that only the steward cannot see may still be
// connected to others), twenty unchanged rounds, a tick apart, are taken for rest: a call does not
// fly that long on a connection that lives.
//
// Every message may be lost, repeated or late: it is sent again at each tick while it matters.
//
// Sans-IO: events in, actions out; no clock, no threads. Not thread-safe.
class Departure {
 public:
  using Members = std::map<std::uint32_t, std::string>;  // by rank
  using Message = std::variant<wire::Arrival, wire::Census, wire::CensusReport, wire::Dismissal>;

  struct Send {
    std::string to;
    Message message;
    bool operator==(const Send&) const = default;
  };
  // Connect, if there is no connection; tell the outcome by reached() or given_up().
  struct Reach {
    std::string peer;
    bool operator==(const Reach&) const = default;
  };
  // Once: this node may close. `lost` are the members that did not make it.
  struct Finish {
    std::vector<std::string> lost;
    bool operator==(const Finish&) const = default;
  };
  using Action = std::variant<Send, Reach, Finish>;
  using Actions = std::vector<Action>;

  explicit Departure(std::string self) : self_(std::move(self)) {}

  // --- events; `activity` is that of this node at this moment ---
  // This node asks to leave. Once.
  Actions begin(Members members, const Activity& activity);
  Actions receive(const std::string& from, const Message& message, const Activity& activity);
  // A connection is there after all.
  Actions reached(const std::string& peer, const Activity& activity);
  // A connection is gone; the peer may be there still.
  Actions disconnected(const std::string& peer, const Activity& activity);
  // The peer cannot be reached: it is lost, until it is heard of again.
  Actions given_up(const std::string& peer, const Activity& activity);
  // At regular intervals after begin(), until it is finished.
  Actions tick(const Activity& activity);

  bool asked() const { return phase_ != Phase::Serving; }
  bool finished() const { return phase_ == Phase::Finished; }
  // Members that keep this node from leaving, as far as it knows: those that have not asked or are
  // busy, or (at anybody but the steward) the steward. Empty before begin().
  std::vector<std::string> waiting_for() const;

 private:
  // Serving: not asked. Asked: waits for the others and for rest. Dismissing: the steward, until
  // the others are gone. Finished.
  enum class Phase { Serving, Asked, Dismissing, Finished };

  struct Round {
    std::uint64_t number;
    std::map<std::string, wire::CensusReport> reports;  // with `round` zero, to be compared
  };
  struct LastReport {
    wire::CensusReport report;
    std::uint64_t changes = 0;
  };

  void on(const std::string& from, const wire::Arrival& arrival, const Activity& activity);
  void on(const std::string& from, const wire::Census& census, const Activity& activity);
  void on(const std::string& from, const wire::CensusReport& report, const Activity& activity);
  void on(const std::string& from, const wire::Dismissal& dismissal, const Activity& activity);

  bool is_member(const std::string& name) const;
  const std::string& steward() const;
  bool is_steward() const { return steward() == self_; }
  bool all_arrived() const;
  // What is to be done now that something has changed.
  void pursue(const Activity& activity);
  void reach_absent();
  void start_round(const Activity& activity);
  void ask_missing();
  void judge_round(const Activity& activity);
  bool at_rest(const Round& round);
  void forget_census();
  wire::CensusReport report_to(const std::string& asker, std::uint64_t round,
                               const Activity& activity);
  void dismiss();
  void gone(const std::string& peer);
  void finish(std::vector<std::string> lost);
  void send(const std::string& to, Message message);
  Actions take_actions();

  const std::string self_;
  Phase phase_ = Phase::Serving;
  Members members_;
  std::set<std::string> arrived_;  // others that have asked, as far as this connection told
  std::set<std::string> lost_;
  std::string announced_to_;
  std::map<std::string, LastReport> reported_;  // by who asked

  // Of the steward.
  std::uint64_t next_round_ = 1;
  std::optional<Round> round_;        // being asked
  std::optional<Round> previous_;     // complete
  unsigned unchanged_ = 0;            // rounds in a row
  bool hurried_ = false;              // the last round was started without waiting for a tick
  bool waits_for_tick_ = false;       // the next one is not
  std::set<std::string> still_here_;  // while Dismissing
  std::vector<std::string> left_behind_;
  unsigned ticks_dismissing_ = 0;
  unsigned ticks_ = 0;

  Actions actions_;
};

}  // namespace hawser::agent
