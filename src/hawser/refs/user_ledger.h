#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/error.h"
#include "hawser/base/result.h"
#include "hawser/refs/desk.h"
#include "hawser/refs/graveyard.h"
#include "hawser/wire/message.h"

namespace hawser::refs {

// One fork that this node holds of a value elsewhere, for those who look.
struct HeldReport {
  RefId ref;
  ForkId fork;
  std::string owner;
  std::uint64_t owner_incarnation = 0;
  std::string_view state;  // "creating", "adopted", "confirmed", "failed"
  std::uint32_t handles = 0;
  std::uint32_t pins = 0;  // tickets and uses that are on their way
  Duration age{};
};

// The forks that this node holds of values that live elsewhere.
//
//   create --> Creating --+-- created -------> Confirmed --+-- owner lost --> Failed
//                         +-- creation_failed --> Failed   |
//   adopt ---> Adopted ---+-- Confirm -------> Confirmed --+
//                         +-- Deny, owner lost --> Failed
//
// In each state there are handles (of the program) and pins: one for each ticket that was given on
// and each use that is on its way. The owner is told Drop when the last of both is gone, and not
// before the creation has ended: so a drop never overtakes what needs the value.
//
// Part of Ledger; sans-IO.
class UserLedger {
 public:
  explicit UserLedger(Desk& desk)
      : desk_(desk), dead_forks_(desk.options.remember, desk.options.max_remembered) {}

  // --- creation ---
  // What to put into the call that creates the value; its fork is held.
  wire::Creation create(std::string_view owner, TimePoint now);
  void created(const ForkId& fork, Incarnation owner, TimePoint now);
  // `sent_to`: nothing when the call never left.
  void creation_failed(const ForkId& fork, Error why, std::optional<Incarnation> sent_to,
                       TimePoint now);

  // --- tickets ---
  enum class Adoption { New, Again, Refused };
  Adoption adopt(const wire::ReferenceTicket& ticket, TimePoint now);
  Result<wire::ReferenceTicket> grant(const ForkId& fork, std::string_view child, std::string type);
  bool settled(const ForkId& fork, std::optional<Incarnation> sent_to, TimePoint now);

  // --- use ---
  // Whom to call. Until end_use() the value stays.
  Result<Party> begin_use(const ForkId& fork);
  void end_use(const ForkId& fork, TimePoint now);
  void drop(const ForkId& fork, TimePoint now);
  void drop_all(TimePoint now);

  // --- what owners say ---
  void on(const Party& from, const Confirm& confirm, TimePoint now);
  void on(const Party& from, const Deny& deny, TimePoint now);
  void on(const Party& from, const Inquire& inquire, TimePoint now);

  // --- the world ---
  // The owner is there: what did not know whom to turn to does now.
  void bind(Roster::Entry& owner, TimePoint now);
  // `unreachable`: nobody of that name is there. What has not found its owner yet fails as well.
  void lost(const Roster::Entry& owner, bool unreachable, TimePoint now);
  void rejoin(TimePoint now);

  bool is_involved(const Roster::Entry& node) const;
  bool holds(const ForkId& fork) const { return held_.contains(fork); }
  bool confirmed(const ForkId& fork) const;
  std::optional<Error> error(const ForkId& fork) const;
  bool empty() const { return held_.empty(); }
  std::size_t size() const { return held_.size(); }
  std::vector<HeldReport> report(TimePoint now) const;

 private:
  struct Creating {};
  struct Adopted {};
  struct Listed {};  // the owner has said so
  struct Held {
    RefId ref;
    Roster::Entry* owner = nullptr;
    Incarnation owner_incarnation{};  // zero: not known yet
    std::variant<Creating, Adopted, Listed, Error> state;
    std::uint32_t handles = 1;
    std::uint32_t pins = 0;
    bool on_list = false;   // the owner has it, or may have: it is owed a Drop
    bool received = false;  // by a ticket, of which a copy may come
    TimePoint since{};

    bool failed() const { return std::holds_alternative<Error>(state); }
    // Its owner, or whether there will be one, is not known yet.
    bool waits() const {
      return std::holds_alternative<Creating>(state) ||
             (std::holds_alternative<Adopted>(state) && owner_incarnation == Incarnation{});
    }
    Party owner_party() const { return {owner->name, owner_incarnation}; }
  };
  using HeldForks = std::unordered_map<ForkId, Held, IdHash>;
  struct Given {
    ForkId from;
    Roster::Entry* child = nullptr;
  };

  // Each of them may be the end of the fork.
  void fail(HeldForks::iterator at, Error why, TimePoint now);
  void pay_debts(HeldForks::iterator at, TimePoint now);
  void tell_shares(const ForkId& fork, const Held& held);

  Desk& desk_;
  HeldForks held_;
  std::unordered_map<ForkId, Given, IdHash> given_;                // on their way
  std::unordered_map<ForkId, std::vector<Share>, IdHash> untold_;  // of forks that wait
  Graveyard<ForkId> dead_forks_;                                   // refused, or held once
};

}  // namespace hawser::refs
