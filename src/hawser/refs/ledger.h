#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hawser/refs/desk.h"
#include "hawser/refs/owner_ledger.h"
#include "hawser/refs/user_ledger.h"

namespace hawser::refs {

// All that a node knows of references: to its own values (by RefId) and to those of others (by
// ForkId). PROTOCOL.md is the manual; it names the invariants REF-1 to REF-4.
//
// Sans-IO: every method is an event with the time at which it happened. What is to be done because
// of it is collected until take_actions(); several events may be told before it, and what they want
// said to one node then travels in one message. Ids and states only: values, handles and futures
// are with the layer above.
//
// Not thread-safe: the layer above has one lock around it, and performs actions after releasing it.
class Ledger {
 public:
  Ledger(Self self, LedgerOptions options);

  // ------ creating a value on another node ------
  // It goes into the call as `creates`. The fork in it is held, and may be used, given on and
  // dropped at once.
  wire::Creation create(std::string_view owner, TimePoint now);
  // How that call ended, exactly once. `owner` is the incarnation that answered. With an error:
  // what `sent_to` was, nothing when the call never left this node, zero when nobody knows.
  void created(const ForkId& fork, Incarnation owner, TimePoint now);
  void creation_failed(const ForkId& fork, Error why, std::optional<Incarnation> sent_to,
                       TimePoint now);

  // ------ values of this node ------
  // A value of the program's own (or of a call of this node to itself), with one local handle.
  RefId make(bool ready, TimePoint now) { return owner_.make(ready, now); }
  // A call with `creates` has come in. When its frame is read, before later frames are.
  using Creation = OwnerLedger::Creation;
  Creation accept_creation(const wire::Creation& creation, const Party& from, TimePoint now);
  // The function has returned or failed. False: nobody wants the value any more.
  bool fulfil(const RefId& ref, bool success) { return owner_.fulfil(ref, success); }
  // For a call on a reference, and for local_value().
  Finding wait(const RefId& ref, Waiter waiter, TimePoint now);
  void stop_waiting(const RefId& ref, Waiter waiter, TimePoint now);
  // Local handles. False when there is no such value.
  bool hold(const RefId& ref) { return owner_.hold(ref); }
  void let_go(const RefId& ref, TimePoint now) { owner_.let_go(ref, now); }

  // ------ giving references away ------
  // A ticket for `child`, to be put into a call or reply to it. Never waits (REF-4).
  Result<wire::ReferenceTicket> grant(const RefId& own, std::string_view child, std::string type);
  Result<wire::ReferenceTicket> grant(const ForkId& held, std::string_view child, std::string type);
  // The message that carries these tickets is out of this node's hands: the call has ended, however
  // it ended, or the reply has been given to a connection. `sent_to` as above.
  void settled(std::span<const ForkId> forks, std::optional<Incarnation> sent_to, TimePoint now);

  // ------ receiving references ------
  enum class Adoption {
    Mine,     // it came home: one more local handle on its RefId
    New,      // its ForkId is held, and may be used at once
    Again,    // a second copy: one more handle on the same ForkId
    Refused,  // too late, or a copy of one that is over: the arguments cannot be read (PeerLost)
  };
  // When the frame is read, before later frames are.
  Adoption adopt(const wire::ReferenceTicket& ticket, TimePoint now);

  // ------ references to values elsewhere ------
  // Around each call on the reference, from before it is sent until it has ended. The incarnation
  // is zero while it is not known.
  Result<Party> begin_use(const ForkId& fork) { return user_.begin_use(fork); }
  void end_use(const ForkId& fork, TimePoint now) { user_.end_use(fork, now); }
  // A handle is gone; release() of the program likewise.
  void drop(const ForkId& fork, TimePoint now) { user_.drop(fork, now); }
  bool confirmed(const ForkId& fork) const { return user_.confirmed(fork); }
  // Why it cannot be used, if so.
  std::optional<Error> error(const ForkId& fork) const { return user_.error(fork); }

  // ------ the world ------
  void receive(const Party& from, Message message, TimePoint now);
  // There is a connection to this incarnation; all before it are over.
  void met(const Party& party, TimePoint now);
  // The connection is gone; the peer may be there still.
  void disconnected(std::string_view peer, TimePoint now);
  // This incarnation, and all before it, have been given up and will not be let in again. With
  // incarnation zero: nobody of that name can be found; references that do not know their owner's
  // incarnation yet fail.
  void lost(const Party& party, TimePoint now);
  // This node was given up by others and goes on as a new incarnation. Its values stay where it
  // holds them itself; everything else is void.
  void rejoined(Self self, TimePoint now);

  // The life of that node that references are to, as far as is known; zero if none is.
  Incarnation known_life(std::string_view peer) { return desk_.roster.of(peer).alive(); }
  // Whether anything depends on that node being there.
  bool concerns(std::string_view peer) { return matters(desk_.roster.of(peer)); }

  void tick(TimePoint now);
  // When tick() is wanted; too early does no harm.
  Deadline next_due() const;

  // What is to be done. After every event or batch of events.
  Actions take_actions(TimePoint now);
  // The same, but for what is to be said to others, which may wait: the more is said at once, the
  // fewer messages it takes.
  Actions take_actions_here() { return std::exchange(desk_.actions, {}); }
  bool has_something_to_say() const { return desk_.courier.has_something_to_say(); }
  bool has_plenty_to_say() const { return desk_.courier.has_plenty_to_say(); }

  // ------ shutting down, and looking ------
  // Lets go of every fork of a value elsewhere.
  void release_all(TimePoint now) { user_.drop_all(now); }
  // Nobody elsewhere holds anything here, nothing is held elsewhere, nothing is left to be said.
  bool idle() const;
  std::vector<OwnedReport> owned(TimePoint now) const { return owner_.report(now); }
  std::vector<HeldReport> held(TimePoint now) const { return user_.report(now); }
  std::size_t unacknowledged() const { return desk_.courier.unacknowledged(); }

 private:
  struct Search {
    TimePoint due;
    Duration pause;
  };
  void learn(const Party& party, TimePoint now);
  void seek(const std::string& peer, TimePoint now);
  bool matters(const Roster::Entry& node) const;

  Desk desk_;
  OwnerLedger owner_;
  UserLedger user_;
  std::map<std::string, Search, std::less<>> searches_;
};

// One line for each reference that keeps a node from being idle().
std::vector<std::string> describe_leaks(const Ledger& ledger, TimePoint now);

}  // namespace hawser::refs
