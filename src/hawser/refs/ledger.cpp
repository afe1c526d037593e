#include "hawser/refs/ledger.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "hawser/refs/fault.h"
#include "hawser/refs/ticket.h"

namespace hawser::refs {

Ledger::Ledger(Self self, LedgerOptions options)
    : desk_(std::move(self), options), owner_(desk_), user_(desk_) {
  if (HAWSER_FAULT(kReuseRefIds)) desk_.self.origin = rank_of(desk_.self.origin);
  desk_.roster.of(desk_.self.name).current = desk_.self.incarnation;
}

// ------------------------------------------------------------------------------- values

wire::Creation Ledger::create(std::string_view owner, TimePoint now) {
  return user_.create(owner, now);
}

void Ledger::created(const ForkId& fork, Incarnation owner, TimePoint now) {
  user_.created(fork, owner, now);
}

void Ledger::creation_failed(const ForkId& fork, Error why, std::optional<Incarnation> sent_to,
                             TimePoint now) {
  user_.creation_failed(fork, std::move(why), sent_to, now);
}

Ledger::Creation Ledger::accept_creation(const wire::Creation& creation, const Party& from,
                                         TimePoint now) {
  learn(from, now);
  return owner_.create(ref_of(creation), fork_of(creation), from, now);
}

Finding Ledger::wait(const RefId& ref, Waiter waiter, TimePoint now) {
  return owner_.wait(ref, waiter, now);
}

void Ledger::stop_waiting(const RefId& ref, Waiter waiter, TimePoint now) {
  owner_.stop_waiting(ref, waiter, now);
}

// ------------------------------------------------------------------------------- tickets

Result<wire::ReferenceTicket> Ledger::grant(const RefId& own, std::string_view child,
                                            std::string type) {
  auto ticket = owner_.grant(own, child, std::move(type));
  if (ticket) return *std::move(ticket);
  return Error(ErrorKind::PeerLost, "there is no such value: it was released, or never created",
               {.node = desk_.self.name});
}

Result<wire::ReferenceTicket> Ledger::grant(const ForkId& held, std::string_view child,
                                            std::string type) {
  return user_.grant(held, child, std::move(type));
}

void Ledger::settled(std::span<const ForkId> forks, std::optional<Incarnation> sent_to,
                     TimePoint now) {
  for (const ForkId& fork : forks) {
    if (!owner_.settled(fork, sent_to, now)) user_.settled(fork, sent_to, now);
  }
}

Ledger::Adoption Ledger::adopt(const wire::ReferenceTicket& ticket, TimePoint now) {
  if (ticket.owner == desk_.self.name) {
    // Of an earlier life of this node: the giver does not know yet that it is over.
    const std::uint64_t life = ticket.owner_incarnation;
    if (life != 0 && life != number(desk_.self.incarnation)) return Adoption::Refused;
    const bool mine = owner_.adopt(ref_of(ticket), fork_of(ticket), now);
    return mine ? Adoption::Mine : Adoption::Refused;
  }
  // The ticket is proof that there was such an incarnation, and so none before it.
  learn({ticket.owner, Incarnation{ticket.owner_incarnation}}, now);
  const auto adoption = user_.adopt(ticket, now);
  if (desk_.roster.of(ticket.owner).alive() == Incarnation{}) seek(ticket.owner, now);
  switch (adoption) {
    case UserLedger::Adoption::New:
      return Adoption::New;
    case UserLedger::Adoption::Again:
      return Adoption::Again;
    case UserLedger::Adoption::Refused:
      break;
  }
  return Adoption::Refused;
}

// ------------------------------------------------------------------------------- the world

void Ledger::receive(const Party& from, Message message, TimePoint now) {
  if (desk_.roster.is_over(from)) {
    desk_.actions.push_back(TellLost{from});
    return;
  }
  learn(from, now);
  for (const Record& record : desk_.courier.receive(from, std::move(message), now)) {
    std::visit(
        [&](const auto& said) {
          using Said = std::remove_cvref_t<decltype(said)>;
          if constexpr (std::is_same_v<Said, Share>) learn(said.child, now);
          if constexpr (requires { owner_.on(from, said, now); }) {
            owner_.on(from, said, now);
          } else {
            user_.on(from, said, now);
          }
        },
        record);
  }
}

// What is known of an incarnation says that those before it are over.
void Ledger::learn(const Party& party, TimePoint now) {
  Roster::Entry& node = desk_.roster.of(party.name);
  if (party.incarnation <= node.current || node.is_over(party.incarnation)) return;
  node.current = party.incarnation;
  desk_.courier.lost(node);
  owner_.lost(node, now);
  user_.lost(node, false, now);
  user_.bind(node, now);
}

void Ledger::met(const Party& party, TimePoint now) {
  if (desk_.roster.is_over(party)) {
    desk_.actions.push_back(TellLost{party});
    return;
  }
  learn(party, now);
  searches_.erase(party.name);
  desk_.courier.connected(party.name);
}

void Ledger::disconnected(std::string_view peer, TimePoint now) {
  const Roster::Entry& node = desk_.roster.of(peer);
  if (matters(node)) seek(node.name, now);
}

void Ledger::lost(const Party& party, TimePoint now) {
  Roster::Entry& node = desk_.roster.of(party.name);
  node.lost = std::max(node.lost, party.incarnation);
  searches_.erase(party.name);
  desk_.courier.lost(node);
  owner_.lost(node, now);
  user_.lost(node, party.incarnation == Incarnation{}, now);
}

void Ledger::rejoined(Self self, TimePoint now) {
  desk_.earlier_origins.push_back(desk_.self.origin);
  desk_.self = std::move(self);
  desk_.roster.of(desk_.self.name).current = desk_.self.incarnation;
  desk_.courier.start_over();
  searches_.clear();
  owner_.rejoin(now);
  user_.rejoin(now);
}

bool Ledger::matters(const Roster::Entry& node) const {
  return desk_.courier.has_mail_for(node.name) || user_.is_involved(node) ||
         owner_.is_involved(node);
}

void Ledger::seek(const std::string& peer, TimePoint now) {
  const Duration pause = desk_.options.first_reach;
  if (!searches_.try_emplace(peer, Search{now + pause, pause}).second) return;
  desk_.actions.push_back(Reach{peer});
}

// ------------------------------------------------------------------------------- time

void Ledger::tick(TimePoint now) {
  desk_.courier.tick(now);
  owner_.tick(now);
  for (auto at = searches_.begin(); at != searches_.end();) {
    auto& [peer, search] = *at;
    if (search.due > now) {
      ++at;
    } else if (matters(desk_.roster.of(peer))) {
      search.pause = std::min(search.pause * 2, desk_.options.last_reach);
      search.due = now + search.pause;
      desk_.actions.push_back(Reach{peer});
      ++at;
    } else {
      at = searches_.erase(at);
    }
  }
}

Deadline Ledger::next_due() const {
  Deadline due = std::min(desk_.courier.next_due(), owner_.next_due());
  for (const auto& [peer, search] : searches_) due = std::min(due, Deadline(search.due));
  return due;
}

Actions Ledger::take_actions(TimePoint now) {
  desk_.courier.collect(now, desk_.actions);
  return std::exchange(desk_.actions, {});
}

// ------------------------------------------------------------------------------- looking

bool Ledger::idle() const {
  return user_.empty() && !owner_.has_holders() && desk_.courier.unacknowledged() == 0;
}

std::vector<std::string> describe_leaks(const Ledger& ledger, TimePoint now) {
  const auto seconds = [](Duration age) {
    return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(age).count()) + " s";
  };
  std::vector<std::string> lines;
  for (const OwnedReport& owned : ledger.owned(now)) {
    if (owned.holders.empty()) continue;
    std::string line = "value " + to_string(owned.ref) + " (" + std::string(owned.stage) + ", " +
                       seconds(owned.age) + " old) is held by";
    for (const auto& holder : owned.holders) {
      line += " " + holder.node + (holder.claimed ? "" : " (unclaimed)");
    }
    lines.push_back(std::move(line));
  }
  for (const HeldReport& held : ledger.held(now)) {
    lines.push_back("reference " + to_string(held.fork) + " to value " + to_string(held.ref) +
                    " on " + held.owner + " (" + std::string(held.state) + ", " +
                    seconds(held.age) + " old, " + std::to_string(held.handles) + " handles, " +
                    std::to_string(held.pins) + " pins)");
  }
  return lines;
}

}  // namespace hawser::refs
