#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/refs/desk.h"
#include "hawser/refs/graveyard.h"
#include "hawser/wire/message.h"

namespace hawser::refs {

// One value that lives here, for those who look.
struct OwnedReport {
  struct Holder {
    ForkId fork;
    std::string node;
    std::uint64_t incarnation = 0;  // 0: the ticket is still in our hands
    bool claimed = false;           // false: the ticket is on its way, as far as is known
  };
  RefId ref;
  std::string_view stage;  // "awaited", "pending", "ready", "failed", "abandoned"
  std::uint32_t local = 0;
  std::size_t waiters = 0;
  Duration age{};
  std::vector<Holder> holders;
};

// The values that live on this node, and who holds on to each: local handles, and forks that were
// claimed by other nodes or are on their way to them.
//
//              create          fulfil
//   (Awaited) --------> Pending ------> Ready | Failed --> gone, with the last holder
//       |                                   ^
//       | never created                     | make
//       v
//   Abandoned --> gone, with the last local handle
//
// Awaited: others speak of a value whose creation is still on its way. It is no promise.
//
// The values themselves are with the layer above, by RefId. Part of Ledger; sans-IO.
class OwnerLedger {
 public:
  explicit OwnerLedger(Desk& desk)
      : desk_(desk),
        dead_refs_(desk.options.remember, desk.options.max_remembered),
        dead_forks_(desk.options.remember, desk.options.max_remembered) {}

  // --- values ---
  // A value of this node's own, with one local handle.
  RefId make(bool ready, TimePoint now);
  enum class Creation { New, Again, Refused };
  // Again: this creation has been here before, do nothing. Refused: its creator has given up, or is
  // lost: do not run it.
  Creation create(const RefId& ref, const ForkId& fork, const Party& creator, TimePoint now);
  // False when nobody wants it any more: drop it.
  bool fulfil(const RefId& ref, bool success);
  // Pending: Wake follows.
  Finding wait(const RefId& ref, Waiter waiter, TimePoint now);
  void stop_waiting(const RefId& ref, Waiter waiter, TimePoint now);

  // --- local handles ---
  bool hold(const RefId& ref);
  void let_go(const RefId& ref, TimePoint now);

  // --- tickets ---
  // Nothing when there is no such value.
  std::optional<wire::ReferenceTicket> grant(const RefId& ref, std::string_view child,
                                             std::string type);
  // False when this half has not given it.
  bool settled(const ForkId& fork, std::optional<Incarnation> sent_to, TimePoint now);
  // A ticket that has come home: one more local handle. False: it is refused.
  bool adopt(const RefId& ref, const ForkId& fork, TimePoint now);

  // --- what holders say ---
  void on(const Party& from, const Claim& claim, TimePoint now);
  void on(const Party& from, const Share& share, TimePoint now);
  void on(const Party& from, const Drop& drop, TimePoint now);
  void on(const Party& from, const Refuse& refuse, TimePoint now);

  // --- the world ---
  void lost(const Roster::Entry& node, TimePoint now);
  void rejoin(TimePoint now);
  void tick(TimePoint now);
  Deadline next_due() const;

  bool is_involved(const Roster::Entry& node) const;
  bool empty() const { return refs_.empty(); }
  bool has_holders() const;  // anywhere but here
  std::size_t size() const { return refs_.size(); }
  std::vector<OwnedReport> report(TimePoint now) const;

 private:
  enum class Stage : std::uint8_t { Awaited, Pending, Ready, Failed, Abandoned };

  struct Fork {
    Roster::Entry* holder = nullptr;
    Incarnation incarnation{};  // zero while the ticket has not left
    bool claimed = false;
    bool told = false;  // by whoever gave it
  };
  struct Owned {
    Stage stage = Stage::Awaited;
    std::uint32_t local = 0;
    ForkId creator{};  // once created from elsewhere
    TimePoint since{};
    std::map<ForkId, Fork> forks{};
    std::vector<Waiter> waiters{};
  };
  using Refs = std::unordered_map<RefId, Owned, IdHash>;
  struct Due {
    TimePoint when;
    RefId ref;
    ForkId fork{};
  };

  // Unknown ids are awaited, unless they cannot come into being any more: then null.
  Owned* find_or_await(const RefId& ref, TimePoint now);
  Owned* find(const RefId& ref);
  bool is_awaited(const RefId& ref) const;
  bool made_here(const RefId& ref) const;
  void ask_later(const RefId& ref, const ForkId& fork, TimePoint now);
  const Fork* find_unclaimed(const Due& due) const;
  void ask(const Due& due, TimePoint now);
  // The value did not and will not come into being.
  void abandon(Refs::iterator at);
  void drop_if_unheld(Refs::iterator at, TimePoint now);
  void wake_all(Owned& owned, Finding finding);

  Desk& desk_;
  Refs refs_;
  std::unordered_map<ForkId, RefId, IdHash> in_hand_;  // given by this node and not settled
  std::deque<Due> unclaimed_;                          // tickets to ask about, in order of time
  std::deque<Due> awaited_;                            // creations that should come
  Graveyard<RefId> dead_refs_;
  // Dropped before they were created or told of, or used up here.
  Graveyard<ForkId> dead_forks_;
};

}  // namespace hawser::refs
