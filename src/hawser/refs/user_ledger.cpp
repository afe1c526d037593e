#include "hawser/refs/user_ledger.h"

#include <algorithm>
#include <utility>

#include "hawser/refs/fault.h"
#include "hawser/refs/ticket.h"

namespace hawser::refs {
namespace {

Error owner_lost(const Roster::Entry& owner, Incarnation incarnation) {
  return Error(ErrorKind::PeerLost,
               "the owner of the reference, '" + owner.name + "', is lost and the value with it",
               {.node = owner.name, .incarnation = number(incarnation)});
}

Error no_such_value(const Party& owner) {
  return Error(ErrorKind::PeerLost,
               "'" + owner.name +
                   "' has no such value: whoever gave this reference was lost before the owner "
                   "heard of it, or the value was never created",
               {.node = owner.name, .incarnation = number(owner.incarnation)});
}

Error not_held() {
  return Error(ErrorKind::Invalid, "the reference has been released and can be used no more");
}

}  // namespace

// ------------------------------------------------------------------------------- creation

wire::Creation UserLedger::create(std::string_view owner, TimePoint now) {
  const RefId ref = desk_.new_id<RefId>();
  const ForkId fork = desk_.new_id<ForkId>();
  Held& held = held_[fork];
  held.ref = ref;
  held.owner = &desk_.roster.of(owner);
  held.since = now;
  return {{ref.on, ref.local}, {fork.on, fork.local}};
}

void UserLedger::created(const ForkId& fork, Incarnation owner, TimePoint now) {
  const auto at = held_.find(fork);
  if (at == held_.end() || !std::holds_alternative<Creating>(at->second.state)) return;
  Held& held = at->second;
  held.owner_incarnation = owner == Incarnation{} ? held.owner->alive() : owner;
  if (held.owner->is_over(held.owner_incarnation) || held.owner_incarnation == Incarnation{}) {
    return fail(at, owner_lost(*held.owner, owner), now);
  }
  held.state = Listed{};
  held.on_list = true;
  desk_.actions.push_back(Confirmed{fork});
  tell_shares(fork, held);
  pay_debts(at, now);
}

// The creation may have arrived all the same, or arrive yet. The owner is told to forget it when
// the program lets go, after it was told of those this node has given the reference to.
void UserLedger::creation_failed(const ForkId& fork, Error why, std::optional<Incarnation> sent_to,
                                 TimePoint now) {
  const auto at = held_.find(fork);
  if (at == held_.end() || !std::holds_alternative<Creating>(at->second.state)) return;
  Held& held = at->second;
  const Incarnation owner = held.owner->resolve(sent_to);
  if (owner == Incarnation{}) return fail(at, std::move(why), now);
  held.owner_incarnation = owner;
  held.on_list = true;
  tell_shares(fork, held);
  held.state = why;
  desk_.actions.push_back(Failed{fork, std::move(why)});
  pay_debts(at, now);
}

// ------------------------------------------------------------------------------- tickets

UserLedger::Adoption UserLedger::adopt(const wire::ReferenceTicket& ticket, TimePoint now) {
  const ForkId fork = fork_of(ticket);
  if (dead_forks_.contains(fork)) return Adoption::Refused;
  const auto known = held_.find(fork);
  if (known != held_.end()) {
    ++known->second.handles;
    return Adoption::Again;
  }
  const auto at = held_.try_emplace(fork).first;
  Held& held = at->second;
  held.ref = ref_of(ticket);
  held.owner = &desk_.roster.of(ticket.owner);
  held.owner_incarnation = Incarnation{ticket.owner_incarnation};
  held.received = true;
  held.since = now;
  // The owner wrote it down when it gave the ticket.
  const bool listed = ticket.parent == ticket.owner && ticket.owner_incarnation != 0;
  if (listed) {
    held.state = Listed{};
  } else {
    held.state = Adopted{};
  }
  if (held.owner_incarnation == Incarnation{}) held.owner_incarnation = held.owner->alive();
  if (held.waits()) return Adoption::New;  // until bind() or lost()
  if (held.owner->is_over(held.owner_incarnation)) {
    fail(at, owner_lost(*held.owner, held.owner_incarnation), now);
  } else {
    held.on_list = true;
    desk_.courier.post(held.owner_party(), Claim{held.ref, fork});
  }
  return Adoption::New;
}

Result<wire::ReferenceTicket> UserLedger::grant(const ForkId& fork, std::string_view child,
                                                std::string type) {
  const auto at = held_.find(fork);
  if (at == held_.end()) return not_held();
  Held& held = at->second;
  if (held.failed()) return std::get<Error>(held.state);
  const ForkId ticket = desk_.new_id<ForkId>();
  if (!HAWSER_FAULT(kSkipPin)) ++held.pins;
  given_.emplace(ticket, Given{fork, &desk_.roster.of(child)});
  // Before the creation has ended it is the best guess that there is.
  const Incarnation owner =
      held.owner_incarnation == Incarnation{} ? held.owner->alive() : held.owner_incarnation;
  return wire::ReferenceTicket{.owner = held.owner->name,
                               .owner_incarnation = number(owner),
                               .ref_on = held.ref.on,
                               .ref_local = held.ref.local,
                               .fork_on = ticket.on,
                               .fork_local = ticket.local,
                               .parent = desk_.self.name,
                               .type = std::move(type)};
}

// The owner hears of the ticket before it can hear that this node lets go: records keep their
// order.
bool UserLedger::settled(const ForkId& fork, std::optional<Incarnation> sent_to, TimePoint now) {
  const auto given = given_.find(fork);
  if (given == given_.end()) return false;
  const auto [from, child] = given->second;
  given_.erase(given);
  const auto at = held_.find(from);
  if (at == held_.end()) return true;
  Held& held = at->second;
  // Also to somebody whom this node has given up: that is for the owner to judge.
  const Incarnation receiver =
      sent_to == Incarnation{} ? child->current : sent_to.value_or(Incarnation{});
  if (receiver != Incarnation{} && !HAWSER_FAULT(kForgetShare)) {
    const Share share{held.ref, fork, {child->name, receiver}};
    if (held.waits()) {
      untold_[from].push_back(share);
    } else if (held.on_list) {
      desk_.courier.post(held.owner_party(), share);
    }
  }
  if (!HAWSER_FAULT(kSkipPin) && !HAWSER_FAULT(kForgetUnpin)) --held.pins;
  pay_debts(at, now);
  return true;
}

void UserLedger::tell_shares(const ForkId& fork, const Held& held) {
  const auto untold = untold_.find(fork);
  if (untold == untold_.end()) return;
  for (const Share& share : untold->second) desk_.courier.post(held.owner_party(), share);
  untold_.erase(untold);
}

// ------------------------------------------------------------------------------- use

Result<Party> UserLedger::begin_use(const ForkId& fork) {
  const auto at = held_.find(fork);
  if (at == held_.end()) return not_held();
  if (at->second.failed()) return std::get<Error>(at->second.state);
  ++at->second.pins;
  return at->second.owner_party();
}

void UserLedger::end_use(const ForkId& fork, TimePoint now) {
  const auto at = held_.find(fork);
  if (at == held_.end() || at->second.pins == 0) return;
  --at->second.pins;
  pay_debts(at, now);
}

void UserLedger::drop(const ForkId& fork, TimePoint now) {
  const auto at = held_.find(fork);
  if (at == held_.end() || at->second.handles == 0) return;
  --at->second.handles;
  const bool creating = std::holds_alternative<Creating>(at->second.state);
  if (creating && HAWSER_FAULT(kDropWhileCreating)) return created(fork, Incarnation{}, now);
  pay_debts(at, now);
}

void UserLedger::drop_all(TimePoint now) {
  std::vector<ForkId> all;
  for (auto& [fork, held] : held_) {
    held.handles = 0;
    all.push_back(fork);
  }
  for (const ForkId& fork : all) pay_debts(held_.find(fork), now);
}

// ------------------------------------------------------------------------------- what owners say

void UserLedger::on(const Party& from, const Confirm& confirm, TimePoint) {
  const auto at = held_.find(confirm.fork);
  if (at == held_.end() || at->second.owner_party() != from) return;
  if (!std::holds_alternative<Adopted>(at->second.state)) return;
  at->second.state = Listed{};
  desk_.actions.push_back(Confirmed{confirm.fork});
}

void UserLedger::on(const Party& from, const Deny& deny, TimePoint now) {
  const auto at = held_.find(deny.fork);
  if (at == held_.end() || at->second.owner_party() != from || !at->second.on_list) return;
  fail(at, no_such_value(from), now);
}

void UserLedger::on(const Party& from, const Inquire& inquire, TimePoint now) {
  const auto at = held_.find(inquire.fork);
  if (at != held_.end() && at->second.on_list) return;  // the claim is on its way
  dead_forks_.bury(inquire.fork, now);
  desk_.courier.post(from, Refuse{inquire.ref, inquire.fork});
}

// ------------------------------------------------------------------------------- the world

void UserLedger::bind(Roster::Entry& owner, TimePoint now) {
  std::vector<ForkId> found;
  for (const auto& [fork, held] : held_) {
    const bool adopted = std::holds_alternative<Adopted>(held.state);
    if (held.owner == &owner && adopted && held.waits()) found.push_back(fork);
  }
  for (const ForkId& fork : found) {
    const auto at = held_.find(fork);
    at->second.owner_incarnation = owner.current;
    at->second.on_list = true;
    desk_.courier.post(at->second.owner_party(), Claim{at->second.ref, fork});
    tell_shares(fork, at->second);
    pay_debts(at, now);
  }
}

// Creations end with the call that carries them, not here.
void UserLedger::lost(const Roster::Entry& owner, bool unreachable, TimePoint now) {
  if (HAWSER_FAULT(kTrustLostOwner)) return;
  std::vector<ForkId> gone;
  for (const auto& [fork, held] : held_) {
    if (held.owner != &owner || std::holds_alternative<Creating>(held.state)) continue;
    if (owner.is_over(held.owner_incarnation) || (unreachable && held.waits())) {
      gone.push_back(fork);
    }
  }
  for (const ForkId& fork : gone) {
    const auto at = held_.find(fork);
    fail(at, owner_lost(owner, at->second.owner_incarnation), now);
  }
}

// Owners have crossed this node's former incarnation off their lists, or will at its first word.
void UserLedger::rejoin(TimePoint now) {
  std::vector<ForkId> all;
  for (const auto& [fork, held] : held_) all.push_back(fork);
  for (const ForkId& fork : all) {
    fail(held_.find(fork),
         Error(ErrorKind::PeerLost,
               "this node was given up by others and has come back as a new incarnation; what it "
               "held is lost",
               {.node = desk_.self.name}),
         now);
  }
}

void UserLedger::fail(HeldForks::iterator at, Error why, TimePoint now) {
  Held& held = at->second;
  untold_.erase(at->first);
  held.on_list = false;
  if (!held.failed()) {
    held.state = why;
    desk_.actions.push_back(Failed{at->first, std::move(why)});
  }
  pay_debts(at, now);
}

void UserLedger::pay_debts(HeldForks::iterator at, TimePoint now) {
  Held& held = at->second;
  // One that has failed answers with its error until the program lets go, and so is its owner's.
  if (held.handles > 0 || held.pins > 0 || held.waits()) return;
  if (held.on_list && !HAWSER_FAULT(kForgetDrop)) {
    desk_.courier.post(held.owner_party(), Drop{held.ref, at->first});
  }
  if (held.received) dead_forks_.bury(at->first, now);
  held_.erase(at);
}

// ------------------------------------------------------------------------------- looking

bool UserLedger::is_involved(const Roster::Entry& node) const {
  return std::any_of(held_.begin(), held_.end(), [&](const auto& fork) {
    return fork.second.owner == &node && !fork.second.failed();
  });
}

bool UserLedger::confirmed(const ForkId& fork) const {
  const auto at = held_.find(fork);
  return at != held_.end() && std::holds_alternative<Listed>(at->second.state);
}

std::optional<Error> UserLedger::error(const ForkId& fork) const {
  const auto at = held_.find(fork);
  if (at == held_.end()) return not_held();
  if (at->second.failed()) return std::get<Error>(at->second.state);
  return std::nullopt;
}

std::vector<HeldReport> UserLedger::report(TimePoint now) const {
  static constexpr std::string_view kStates[] = {"creating", "adopted", "confirmed", "failed"};
  std::vector<HeldReport> all;
  all.reserve(held_.size());
  for (const auto& [fork, held] : held_) {
    all.push_back({.ref = held.ref,
                   .fork = fork,
                   .owner = held.owner->name,
                   .owner_incarnation = number(held.owner_incarnation),
                   .state = kStates[held.state.index()],
                   .handles = held.handles,
                   .pins = held.pins,
                   .age = now - held.since});
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.fork < b.fork; });
  return all;
}

}  // namespace hawser::refs
