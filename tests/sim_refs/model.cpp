#include "sim_refs/model.h"

#include <algorithm>

namespace hawser::refs::simulation {
namespace {

std::uint64_t life(const Party& party) { return number(party.incarnation); }

std::string text(const Party& party) { return party.name + "@" + std::to_string(life(party)); }

}  // namespace

std::string_view to_string(Kind kind) {
  static constexpr std::string_view kNames[] = {"Letter",     "Create", "CreateReply", "Carry",
                                                "CarryReply", "Use",    "UseReply"};
  return kNames[static_cast<std::size_t>(kind)];
}

// ------------------------------------------------------------------------------- lives

void Model::ended(const Party& party) {
  if (is_alive(party)) alive_.erase(party.name);
  last_end_[party.name] = world_.now();
  std::erase_if(bars_, [&](const auto& bar) { return bar.first == party; });
}

void Model::crashed(const Party& party) {
  ended(party);
  for (Value& value : values_) {
    if (value.owner_name == party.name) value.local = 0;
  }
}

bool Model::is_alive(const Party& party) const {
  const auto found = alive_.find(party.name);
  return found != alive_.end() && found->second == party.incarnation;
}

void Model::rejoined(const Party& old, const Party& heir) {
  std::set<std::pair<Party, Party>> inherited;
  for (const auto& [by, other] : bars_) {
    if (by == old) inherited.insert({heir, other});
  }
  ended(old);
  started(heir);
  bars_.merge(inherited);
  // What it held itself stays its own; what others held of it is void.
  for (Value& value : values_) {
    if (value.owner != old || value.dropped) continue;
    value.owner = heir;
    for (const TicketNumber number : value.tickets) tickets_[number].excused = true;
  }
}

void Model::told_unreachable(const Party& by, const std::string& name) {
  for (Ticket& ticket : tickets_) {
    if (ticket.holder == by && values_[ticket.value].owner_name == name) ticket.shaky = true;
  }
}

bool Model::apart(const Party& one, const Party& other) const {
  return bars_.contains({one, other}) || bars_.contains({other, one});
}

// ------------------------------------------------------------------------------- values

ValueNumber Model::new_value(const std::string& owner, const Party& creator) {
  ++counts_.values;
  values_.push_back({});
  values_.back().owner_name = owner;
  values_.back().creator = creator;
  values_.back().born = world_.now();
  return values_.size() - 1;
}

void Model::created(ValueNumber number, const Party& owner) {
  world_.note("value", number, "is created on", owner.name, life(owner));
  Value& value = values_[number];
  if (value.owner) complain("value " + std::to_string(number) + " is created twice");
  value.owner = owner;
  for (const TicketNumber ticket : value.tickets) {
    tickets_[ticket].shaky |= owner_changed_about_birth(value);
    if (tickets_[ticket].from == 0) tickets_[ticket].heard = true;  // the creation's own
  }
}

void Model::dropped(ValueNumber number) {
  world_.note("value", number, "is dropped");
  ++counts_.dropped;
  values_[number].dropped = true;
  watched_.insert(number);
}

// ------------------------------------------------------------------------------- tickets

TicketNumber Model::granted(ValueNumber value, const ForkId& fork, const Party& giver,
                            TicketNumber from) {
  ++counts_.tickets;
  const TicketNumber number = tickets_.size();
  world_.note(giver.name, life(giver), "makes ticket", number, "from", from, "to value", value);
  tickets_.push_back({});
  Ticket& ticket = tickets_.back();
  ticket.value = value;
  ticket.giver = giver;
  ticket.from = from;
  ticket.heard = from == 0 && values_[value].owner == giver;
  ticket.in_hand = true;
  values_[value].tickets.push_back(number);
  by_fork_[fork] = number;
  return number;
}

TicketNumber Model::creates(ValueNumber value, const ForkId& fork, const Party& creator) {
  const TicketNumber number = granted(value, fork, creator, 0);
  tickets_[number].in_hand = false;  // it stays with its maker
  values_[value].creating = true;
  adopted(number, creator, false);
  return number;
}

void Model::flies(TicketNumber number, const Party& to) {
  ++tickets_[number].copies;
  tickets_[number].receiver = to;
}

void Model::settled(TicketNumber number) {
  world_.note("ticket", number, "is settled");
  tickets_[number].settled = world_.now();
  tickets_[number].in_hand = false;
}

void Model::adopted(TicketNumber number, const Party& by, bool at_home) {
  world_.note(by.name, life(by), "takes ticket", number);
  ++counts_.adopted;
  Ticket& ticket = tickets_[number];
  ticket.was_adopted = true;
  if (at_home) {
    ++values_[ticket.value].local;
  } else {
    ticket.holder = by;
    ++ticket.handles;
  }
}

void Model::refused(TicketNumber number, const Party& by) {
  world_.note(by.name, life(by), "refuses ticket", number);
  ++counts_.refused;
  const Ticket& ticket = tickets_[number];
  const bool late = ticket.settled && *ticket.settled + ask_after_ <= world_.now();
  if (ticket.was_adopted || late || may_be_denied(ticket)) return;
  complain("REF-1: " + text(by) + " refuses " + describe(number));
}

void Model::failed(TicketNumber number, ErrorKind why) {
  world_.note("ticket", number, "fails", hawser::to_string(why));
  ++counts_.failed;
  Ticket& ticket = tickets_[number];
  if (ticket.failed) complain(describe(number) + " fails twice");
  const Value& value = values_[ticket.value];
  const bool own_creation =
      ticket.from == 0 && value.creation_over && ticket.giver == value.creator;
  if (!own_creation && ticket.holder && is_alive(*ticket.holder) && !may_be_denied(ticket)) {
    complain("REF-1: " + describe(number) + " fails");
  }
  if (!own_creation && why != ErrorKind::PeerLost) {
    complain("REF-1: " + describe(number) + " fails with " + std::string(hawser::to_string(why)));
  }
  ticket.failed = true;
}

void Model::could_not_give(TicketNumber number) {
  if (!tickets_[number].failed) complain("REF-4: " + describe(number) + " cannot be given on");
}

void Model::could_not_give_own(ValueNumber number, const Party& by) {
  if (values_[number].owner != by) return;  // awaited, and never created in this life
  complain("REF-1: value " + std::to_string(number) + " cannot be given by its owner");
}

void Model::letter(const Party& from, const Party& to, const Message& message) {
  // Whether the owner still listens to somebody who is dead, it alone knows.
  if (!is_alive(from)) return;
  std::uint64_t& next = next_record_.try_emplace({from, to}, 1).first->second;
  if (message.first > next) return;
  for (std::uint64_t i = next - message.first; i < message.records.size(); ++i, ++next) {
    const Record& record = message.records[i];
    if (const auto* claim = std::get_if<Claim>(&record)) hear(claim->fork, to);
    if (const auto* share = std::get_if<Share>(&record)) hear(share->fork, to);
  }
}

void Model::hear(const ForkId& fork, const Party& owner) {
  const auto found = by_fork_.find(fork);
  if (found == by_fork_.end()) return;
  Ticket& ticket = tickets_[found->second];
  const Value& value = values_[ticket.value];
  if (value.owner == owner && !value.dropped) ticket.heard = true;
}

// ------------------------------------------------------------------------------- judging

bool Model::counts_as_holder(const Ticket& ticket) const {
  const Value& value = values_[ticket.value];
  if (ticket.excused || ticket.failed || !value.owner) return false;
  const auto present = [&](const Party& party) {
    return is_alive(party) && !apart(party, *value.owner);
  };
  const bool wanted = ticket.handles > 0 || ticket.uses > 0;
  if (ticket.holder && wanted && present(*ticket.holder)) return true;
  const bool fresh = !ticket.settled || *ticket.settled + ask_after_ > world_.now();
  return ticket.copies > 0 && !ticket.was_adopted && fresh && present(ticket.receiver);
}

// A creator whose creation failed, for all it knows, still has the reference until it lets go.
bool Model::may_keep(const Ticket& ticket) const {
  const Value& value = values_[ticket.value];
  return ticket.failed && ticket.from == 0 && ticket.handles > 0 && ticket.holder && value.owner &&
         is_alive(*ticket.holder) && !apart(*ticket.holder, *value.owner);
}

bool Model::is_legitimate(const Ticket& ticket) const {
  if (ticket.heard) return true;
  const Value& value = values_[ticket.value];
  if (!is_alive(ticket.giver) || apart(ticket.giver, *value.owner)) return false;
  const Ticket& from = tickets_[ticket.from];
  return ticket.from != 0 && !from.excused && is_legitimate(from);
}

bool Model::owner_changed_about_birth(const Value& value) const {
  const auto end = last_end_.find(value.owner_name);
  constexpr auto kLongestToNotice = std::chrono::seconds(2);
  return end != last_end_.end() && end->second + kLongestToNotice >= value.born;
}

bool Model::may_be_denied(const Ticket& ticket) const {
  const Value& value = values_[ticket.value];
  if (ticket.excused) return true;
  for (TicketNumber each = ticket.from; each != 0; each = tickets_[each].from) {
    if (tickets_[each].shaky) return true;
  }
  if (ticket.shaky) return true;
  if (!value.owner) {
    const auto there = alive_.find(value.owner_name);
    const bool given_up = ticket.holder && there != alive_.end() &&
                          apart(*ticket.holder, {value.owner_name, there->second});
    return value.creation_over || !is_alive(value.creator) || given_up ||
           owner_changed_about_birth(value);
  }
  if (!is_alive(*value.owner)) return true;
  if (ticket.holder && apart(*ticket.holder, *value.owner)) return true;
  if (!ticket.holder && apart(ticket.receiver, *value.owner)) return true;
  return !is_legitimate(ticket);
}

void Model::found(const Envelope& use, const Party& owner, Finding finding,
                  std::optional<ValueNumber> value) {
  if (finding == Finding::Gone) {
    ++counts_.gone;
    if (!may_be_denied(tickets_[use.used]) && counts_as_holder(tickets_[use.used])) {
      complain("REF-1: " + text(owner) + " does not find the value of " + describe(use.used));
    }
    return;
  }
  ++counts_.found;
  if (!value) {
    complain(text(owner) + " believes it has the value of " + describe(use.used));
  } else if (*value != use.value) {
    complain("REF-3: a use of value " + std::to_string(use.value) + " found value " +
             std::to_string(*value));
  }
}

void Model::check() {
  for (auto at = watched_.begin(); at != watched_.end();) {
    const Value& value = values_[*at];
    bool missed = false;
    if (value.owner && is_alive(*value.owner)) {
      if (value.local > 0) complain("REF-1: value " + std::to_string(*at) + " is held at home");
      for (const TicketNumber number : value.tickets) {
        const Ticket& ticket = tickets_[number];
        if (!counts_as_holder(ticket)) continue;
        missed = true;
        if (!is_legitimate(ticket)) continue;
        complain("REF-1: value " + std::to_string(*at) + " is gone, but there is " +
                 describe(number));
      }
    }
    if (missed) ++counts_.orphans;
    at = missed ? std::next(at) : watched_.erase(at);
  }
}

bool Model::is_held(const Value& value) const {
  return value.local > 0 || value.creating ||
         std::any_of(value.tickets.begin(), value.tickets.end(), [&](const TicketNumber number) {
           const Ticket& ticket = tickets_[number];
           return ticket.in_hand || ticket.uses > 0 || counts_as_holder(ticket) || may_keep(ticket);
         });
}

void Model::check_promptness(Duration bound) {
  for (ValueNumber number = 1; number < values_.size(); ++number) {
    Value& value = values_[number];
    if (!value.owner || value.dropped) continue;
    if (is_held(value)) {
      value.unheld_since.reset();
    } else if (!value.unheld_since) {
      value.unheld_since = world_.now();
    } else if (*value.unheld_since + bound < world_.now()) {
      complain("REF-2: value " + std::to_string(number) + " stays though nobody holds it");
    }
  }
}

void Model::check_rest() {
  for (ValueNumber number = 1; number < values_.size(); ++number) {
    const Value& value = values_[number];
    if (!value.owner || value.dropped || !is_alive(*value.owner) || value.local > 0) continue;
    const bool held =
        std::any_of(value.tickets.begin(), value.tickets.end(), [&](const TicketNumber ticket) {
          return tickets_[ticket].copies == 0 &&
                 (counts_as_holder(tickets_[ticket]) || may_keep(tickets_[ticket]));
        });
    if (!held) {
      complain("REF-2: value " + std::to_string(number) + " of " + text(*value.owner) +
               " is held by nobody and is still there");
    }
  }
}

std::string Model::describe(TicketNumber number) const {
  const Ticket& ticket = tickets_[number];
  std::string line = "ticket " + std::to_string(number) + " to value " +
                     std::to_string(ticket.value) + ", given by " + text(ticket.giver);
  if (ticket.holder) line += ", held by " + text(*ticket.holder);
  if (ticket.copies > 0) line += ", on its way to " + text(ticket.receiver);
  return line;
}

void Model::complain(const std::string& what) {
  world_.note("complaint", what);
  complaints_.push_back(what);
}

}  // namespace hawser::refs::simulation
