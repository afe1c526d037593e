#include "hawser/refs/owner_ledger.h"

#include <algorithm>
#include <utility>

#include "hawser/refs/fault.h"

namespace hawser::refs {

// ------------------------------------------------------------------------------- values

RefId OwnerLedger::make(bool ready, TimePoint now) {
  const RefId ref = desk_.new_id<RefId>();
  Owned& owned = refs_[ref];
  owned.stage = ready ? Stage::Ready : Stage::Pending;
  owned.local = 1;
  owned.since = now;
  return ref;
}

OwnerLedger::Creation OwnerLedger::create(const RefId& ref, const ForkId& fork,
                                          const Party& creator, TimePoint now) {
  Roster::Entry& holder = desk_.roster.of(creator.name);
  if (holder.is_over(creator.incarnation)) return Creation::Refused;
  if (dead_refs_.contains(ref) || dead_forks_.contains(fork)) return Creation::Refused;
  Owned& owned = refs_[ref];
  if (owned.stage != Stage::Awaited) {
    return owned.creator == fork ? Creation::Again : Creation::Refused;
  }
  owned.stage = Stage::Pending;
  owned.creator = fork;
  owned.since = now;
  // Those who were early wait for this word.
  for (const auto& [early, held] : owned.forks) {
    if (!held.claimed) continue;
    desk_.courier.post({held.holder->name, held.incarnation}, Confirm{ref, early});
  }
  owned.forks[fork] = {&holder, creator.incarnation, true, true};
  return Creation::New;
}

bool OwnerLedger::fulfil(const RefId& ref, bool success) {
  Owned* owned = find(ref);
  if (!owned || owned->stage != Stage::Pending) return false;
  owned->stage = success ? Stage::Ready : Stage::Failed;
  if (!HAWSER_FAULT(kForgetWaiters)) {
    wake_all(*owned, success ? Finding::Ready : Finding::Failed);
  }
  return true;
}

Finding OwnerLedger::wait(const RefId& ref, Waiter waiter, TimePoint now) {
  Owned* owned = find_or_await(ref, now);
  if (!owned) return Finding::Gone;
  switch (owned->stage) {
    case Stage::Ready:
      return Finding::Ready;
    case Stage::Failed:
      return Finding::Failed;
    case Stage::Abandoned:
      return Finding::Gone;
    case Stage::Awaited:
    case Stage::Pending:
      break;
  }
  owned->waiters.push_back(waiter);
  return Finding::Pending;
}

void OwnerLedger::stop_waiting(const RefId& ref, Waiter waiter, TimePoint now) {
  const auto at = refs_.find(ref);
  if (at == refs_.end()) return;
  std::erase(at->second.waiters, waiter);
  drop_if_unheld(at, now);
}

void OwnerLedger::wake_all(Owned& owned, Finding finding) {
  for (const Waiter waiter : std::exchange(owned.waiters, {})) {
    desk_.actions.push_back(Wake{waiter, finding});
  }
}

// ------------------------------------------------------------------------------- local handles

bool OwnerLedger::hold(const RefId& ref) {
  Owned* owned = find(ref);
  if (owned) ++owned->local;
  return owned != nullptr;
}

void OwnerLedger::let_go(const RefId& ref, TimePoint now) {
  const auto at = refs_.find(ref);
  if (at == refs_.end() || at->second.local == 0) return;
  --at->second.local;
  drop_if_unheld(at, now);
}

// ------------------------------------------------------------------------------- tickets

std::optional<wire::ReferenceTicket> OwnerLedger::grant(const RefId& ref, std::string_view child,
                                                        std::string type) {
  Owned* owned = find(ref);
  if (!owned || owned->stage == Stage::Abandoned) return std::nullopt;
  const ForkId fork = desk_.new_id<ForkId>();
  owned->forks[fork] = {&desk_.roster.of(child), Incarnation{}, false, true};
  in_hand_.emplace(fork, ref);
  return wire::ReferenceTicket{.owner = desk_.self.name,
                               .owner_incarnation = number(desk_.self.incarnation),
                               .ref_on = ref.on,
                               .ref_local = ref.local,
                               .fork_on = fork.on,
                               .fork_local = fork.local,
                               .parent = desk_.self.name,
                               .type = std::move(type)};
}

bool OwnerLedger::settled(const ForkId& fork, std::optional<Incarnation> sent_to, TimePoint now) {
  const auto given = in_hand_.find(fork);
  if (given == in_hand_.end()) return false;
  const RefId ref = given->second;
  in_hand_.erase(given);
  const auto at = refs_.find(ref);
  if (at == refs_.end()) return true;
  const auto held = at->second.forks.find(fork);
  if (held == at->second.forks.end() || held->second.claimed) return true;
  const Incarnation receiver = held->second.holder->resolve(sent_to);
  if (receiver == Incarnation{}) {
    at->second.forks.erase(held);
    drop_if_unheld(at, now);
  } else {
    held->second.incarnation = receiver;
    ask_later(ref, fork, now);
  }
  return true;
}

bool OwnerLedger::adopt(const RefId& ref, const ForkId& fork, TimePoint now) {
  if (dead_forks_.contains(fork)) return false;
  // Not awaited by itself if it is refused below.
  const bool own = fork.on == desk_.self.origin;
  Owned* owned = own ? find(ref) : find_or_await(ref, now);
  if (!owned || owned->stage == Stage::Abandoned) return false;
  const std::size_t known = owned->forks.erase(fork);
  if (own && known == 0) return false;
  dead_forks_.bury(fork, now);  // its giver may speak of it later, and a copy may come
  ++owned->local;
  return true;
}

// ------------------------------------------------------------------------------- what holders say

void OwnerLedger::on(const Party& from, const Claim& claim, TimePoint now) {
  const bool own = claim.fork.on == desk_.self.origin;
  Owned* owned = own ? find(claim.ref) : find_or_await(claim.ref, now);
  const bool refused = own && owned && !owned->forks.contains(claim.fork);
  if (!owned || refused || owned->stage == Stage::Abandoned) {
    if (!HAWSER_FAULT(kNeverDeny)) desk_.courier.post(from, Deny{claim.ref, claim.fork});
    return;
  }
  if (!HAWSER_FAULT(kForgetHolder)) {
    Fork& fork = owned->forks[claim.fork];
    fork.holder = &desk_.roster.of(from.name);
    fork.incarnation = from.incarnation;
    fork.claimed = true;
  }
  if (!own && owned->stage != Stage::Awaited) {
    desk_.courier.post(from, Confirm{claim.ref, claim.fork});
  }
}

void OwnerLedger::on(const Party&, const Share& share, TimePoint now) {
  if (dead_forks_.contains(share.fork)) return;
  Roster::Entry& child = desk_.roster.of(share.child.name);
  if (child.is_over(share.child.incarnation)) return;
  Owned* owned = find_or_await(share.ref, now);
  if (!owned || owned->stage == Stage::Abandoned) return;
  const auto [at, added] =
      owned->forks.try_emplace(share.fork, Fork{&child, share.child.incarnation, false, true});
  at->second.told = true;
  if (added) ask_later(share.ref, share.fork, now);
}

// A fork that was never claimed is its creator's, and overtook the creation.
void OwnerLedger::on(const Party& from, const Drop& drop, TimePoint now) {
  const auto at = refs_.find(drop.ref);
  if (at == refs_.end()) {
    if (HAWSER_FAULT(kForgetEarlyDrop)) return;
    dead_refs_.bury(drop.ref, now);
    dead_forks_.bury(drop.fork, now);
    return;
  }
  Owned& owned = at->second;
  const auto held = owned.forks.find(drop.fork);
  if (held == owned.forks.end()) {
    if (owned.stage != Stage::Awaited) return;
    dead_refs_.bury(drop.ref, now);
    dead_forks_.bury(drop.fork, now);
    return abandon(at);
  }
  if (held->second.holder->name != from.name) return;  // not the speaker's to drop
  // Its giver will speak of it yet, and must not bring it back to life.
  if (!held->second.told && !HAWSER_FAULT(kForgetSpent)) dead_forks_.bury(drop.fork, now);
  owned.forks.erase(held);
  drop_if_unheld(at, now);
}

void OwnerLedger::on(const Party& from, const Refuse& refuse, TimePoint now) {
  const auto at = refs_.find(refuse.ref);
  if (at == refs_.end()) return;
  const auto held = at->second.forks.find(refuse.fork);
  if (held == at->second.forks.end() || held->second.claimed) return;
  if (held->second.holder->name != from.name) return;
  at->second.forks.erase(held);
  drop_if_unheld(at, now);
}

// ------------------------------------------------------------------------------- the world

void OwnerLedger::lost(const Roster::Entry& node, TimePoint now) {
  if (HAWSER_FAULT(kKeepLostHolder)) return;
  std::vector<RefId> changed;
  for (auto& [ref, owned] : refs_) {
    const auto gone = std::erase_if(owned.forks, [&](const auto& fork) {
      return fork.second.holder == &node && node.is_over(fork.second.incarnation);
    });
    if (gone > 0) changed.push_back(ref);
  }
  for (const RefId& ref : changed) drop_if_unheld(refs_.find(ref), now);
}

// Nobody but this node itself holds anything of its former incarnation.
void OwnerLedger::rejoin(TimePoint now) {
  std::vector<RefId> all;
  for (auto& [ref, owned] : refs_) {
    owned.forks.clear();
    all.push_back(ref);
  }
  for (const RefId& ref : all) {
    const auto at = refs_.find(ref);
    if (at->second.stage == Stage::Awaited) {
      abandon(at);
    } else {
      drop_if_unheld(at, now);
    }
  }
  unclaimed_.clear();
  awaited_.clear();
  in_hand_.clear();
}

void OwnerLedger::tick(TimePoint now) {
  while (!unclaimed_.empty() && unclaimed_.front().when <= now) {
    const Due due = unclaimed_.front();
    unclaimed_.pop_front();
    if (!HAWSER_FAULT(kNeverAsk)) ask(due, now);
  }
  while (!awaited_.empty() && awaited_.front().when <= now) {
    const RefId ref = awaited_.front().ref;
    awaited_.pop_front();
    if (!is_awaited(ref)) continue;
    const auto at = refs_.find(ref);
    // It may have been let go meanwhile, and be awaited anew.
    if (at->second.since + desk_.options.await_creation <= now) abandon(at);
  }
}

Deadline OwnerLedger::next_due() const {
  Deadline due;
  if (!unclaimed_.empty()) due = std::min(due, Deadline(unclaimed_.front().when));
  if (!awaited_.empty()) due = std::min(due, Deadline(awaited_.front().when));
  return due;
}

// Claims come in the order in which tickets left, more or less: what is resolved is at the front.
void OwnerLedger::ask_later(const RefId& ref, const ForkId& fork, TimePoint now) {
  while (!unclaimed_.empty() && !find_unclaimed(unclaimed_.front())) unclaimed_.pop_front();
  unclaimed_.push_back({now + desk_.options.ask_after, ref, fork});
}

const OwnerLedger::Fork* OwnerLedger::find_unclaimed(const Due& due) const {
  const auto at = refs_.find(due.ref);
  if (at == refs_.end()) return nullptr;
  const auto held = at->second.forks.find(due.fork);
  if (held == at->second.forks.end() || held->second.claimed) return nullptr;
  return &held->second;
}

void OwnerLedger::ask(const Due& due, TimePoint now) {
  const Fork* fork = find_unclaimed(due);
  if (!fork) return;
  if (fork->holder->name != desk_.self.name) {
    // Once is enough: the courier does not lose it.
    desk_.courier.post({fork->holder->name, fork->incarnation}, Inquire{due.ref, due.fork});
    return;
  }
  // This node has to ask itself, and has not seen it.
  dead_forks_.bury(due.fork, now);
  const auto at = refs_.find(due.ref);
  at->second.forks.erase(due.fork);
  drop_if_unheld(at, now);
}

// ------------------------------------------------------------------------------- coming and going

OwnerLedger::Owned* OwnerLedger::find(const RefId& ref) {
  const auto at = refs_.find(ref);
  return at == refs_.end() ? nullptr : &at->second;
}

bool OwnerLedger::is_awaited(const RefId& ref) const {
  const auto at = refs_.find(ref);
  return at != refs_.end() && at->second.stage == Stage::Awaited;
}

bool OwnerLedger::made_here(const RefId& ref) const {
  const auto& lives = desk_.earlier_origins;
  return ref.on == desk_.self.origin ||
         std::find(lives.begin(), lives.end(), ref.on) != lives.end();
}

OwnerLedger::Owned* OwnerLedger::find_or_await(const RefId& ref, TimePoint now) {
  if (Owned* owned = find(ref)) return owned;
  if (made_here(ref) || dead_refs_.contains(ref)) return nullptr;
  Owned& owned = refs_[ref];
  owned.since = now;
  while (!awaited_.empty() && !is_awaited(awaited_.front().ref)) awaited_.pop_front();
  awaited_.push_back({now + desk_.options.await_creation, ref, {}});
  return &owned;
}

void OwnerLedger::abandon(Refs::iterator at) {
  const RefId ref = at->first;
  Owned& owned = at->second;
  owned.stage = Stage::Abandoned;
  for (const auto& [fork, held] : std::exchange(owned.forks, {})) {
    if (held.claimed) {
      desk_.courier.post({held.holder->name, held.incarnation}, Deny{ref, fork});
    }
  }
  wake_all(owned, Finding::Gone);
  if (owned.local == 0) refs_.erase(at);
}

void OwnerLedger::drop_if_unheld(Refs::iterator at, TimePoint now) {
  Owned& owned = at->second;
  if (!owned.forks.empty() || owned.local > 0) return;
  if (owned.stage == Stage::Awaited) {
    // Its creation may come yet: not dead, only not spoken of.
    if (owned.waiters.empty()) refs_.erase(at);
    return;
  }
  wake_all(owned, Finding::Gone);
  if (owned.stage != Stage::Abandoned) {
    desk_.actions.push_back(DropValue{at->first});
    dead_refs_.bury(at->first, now);
  }
  refs_.erase(at);
}

// ------------------------------------------------------------------------------- looking

bool OwnerLedger::is_involved(const Roster::Entry& node) const {
  return std::any_of(refs_.begin(), refs_.end(), [&](const auto& ref) {
    return std::any_of(ref.second.forks.begin(), ref.second.forks.end(),
                       [&](const auto& fork) { return fork.second.holder == &node; });
  });
}

bool OwnerLedger::has_holders() const {
  return std::any_of(refs_.begin(), refs_.end(),
                     [](const auto& ref) { return !ref.second.forks.empty(); });
}

std::vector<OwnedReport> OwnerLedger::report(TimePoint now) const {
  static constexpr std::string_view kStages[] = {"awaited", "pending", "ready", "failed",
                                                 "abandoned"};
  std::vector<OwnedReport> all;
  all.reserve(refs_.size());
  for (const auto& [ref, owned] : refs_) {
    OwnedReport report{.ref = ref,
                       .stage = kStages[static_cast<std::size_t>(owned.stage)],
                       .local = owned.local,
                       .waiters = owned.waiters.size(),
                       .age = now - owned.since,
                       .holders = {}};
    for (const auto& [fork, held] : owned.forks) {
      report.holders.push_back({fork, held.holder->name, number(held.incarnation), held.claimed});
    }
    all.push_back(std::move(report));
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.ref < b.ref; });
  return all;
}

}  // namespace hawser::refs
