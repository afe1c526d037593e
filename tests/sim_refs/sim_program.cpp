#include <algorithm>
#include <utility>

#include "sim_refs/sim_node.h"

// What the program on a simulated node does, and the calls it makes.
namespace hawser::refs::simulation {
namespace {

using namespace std::chrono_literals;

}  // namespace

// ------------------------------------------------------------------------------- the program

void SimNode::do_something() {
  auto& whims = out_.whims();
  switch (whims.below(10)) {
    case 0:
      return make_value();
    case 1:
    case 2:
      return create_elsewhere();
    case 3:
    case 4:
    case 5:
      return share();
    case 6:
      return ask_for_tickets();
    case 7: {
      const auto which = any_handle();
      if (which && !handles_[*which].at_home) use(handles_[*which]);
      return;
    }
    default:
      if (const auto which = any_handle()) drop(*which);
  }
}

std::optional<std::size_t> SimNode::any_handle() {
  if (handles_.empty()) return std::nullopt;
  return out_.whims().below(handles_.size());
}

void SimNode::make_value() {
  const ValueNumber value = out_.model().new_value(self_.name, self_);
  const RefId ref = ledger_.make(true, now());
  values_[ref] = value;
  out_.model().created(value, self_);
  out_.model().local(value, 1);
  handles_.push_back({.value = value, .ref = ref, .at_home = true});
  perform();
}

// A reference can be used, given on and dropped at once, before its value exists.
void SimNode::create_elsewhere() {
  auto& whims = out_.whims();
  const std::string owner = whims.one_of(out_.others(self_.name));
  const ValueNumber value = out_.model().new_value(owner, self_);
  const wire::Creation made = ledger_.create(owner, now());
  const ForkId fork = fork_of(made);
  const SimTicket ticket{{.ref_on = made.ref.on,
                          .ref_local = made.ref.local,
                          .fork_on = made.fork.on,
                          .fork_local = made.fork.local},
                         out_.model().creates(value, fork, self_),
                         value};
  tickets_[fork] = ticket.number;
  handles_.push_back(
      {.value = value, .ticket = ticket.number, .fork = fork, .ref = ref_of(ticket.ticket)});
  const Handle handle = handles_.back();
  Envelope envelope{.kind = Kind::Create, .from = self_, .to = {owner, {}}, .tickets = {ticket}};
  call({.kind = Kind::Create, .to = owner, .creates = ticket}, std::move(envelope));
  if (whims.per_mille(300)) use(handle);
  if (whims.per_mille(300)) {
    const std::string to = whims.one_of(out_.others(self_.name));
    if (const auto given = give(handle, to)) {
      Envelope carry{.kind = Kind::Carry, .from = self_, .to = {to, {}}, .tickets = {*given}};
      call({.kind = Kind::Carry, .to = to, .tickets = {*given}}, std::move(carry));
    }
  }
  // The creation may have failed at once and the handle be anywhere now.
  if (!whims.per_mille(200)) return;
  const auto at = std::find_if(handles_.begin(), handles_.end(),
                               [&](const Handle& each) { return each.ticket == handle.ticket; });
  if (at != handles_.end()) drop(static_cast<std::size_t>(at - handles_.begin()));
}

// To anybody, the owner and this node itself included.
void SimNode::share() {
  auto& whims = out_.whims();
  auto names = out_.others(self_.name);
  names.push_back(self_.name);
  const std::string to = whims.one_of(names);
  std::vector<SimTicket> given;
  for (std::uint64_t i = 1 + whims.below(3); i > 0; --i) {
    const auto which = any_handle();
    if (!which) return;
    if (const auto ticket = give(handles_[*which], to)) given.push_back(*ticket);
  }
  if (given.empty()) return;
  Envelope envelope{.kind = Kind::Carry, .from = self_, .to = {to, {}}, .tickets = given};
  envelope.wants_tickets = whims.per_mille(200);
  call({.kind = Kind::Carry, .to = to, .tickets = given}, std::move(envelope));
  // What was given may be let go at once.
  if (whims.per_mille(400)) {
    if (const auto which = any_handle()) drop(*which);
  }
}

void SimNode::ask_for_tickets() {
  const std::string to = out_.whims().one_of(out_.others(self_.name));
  Envelope envelope{.kind = Kind::Carry, .from = self_, .to = {to, {}}};
  envelope.wants_tickets = true;
  call({.kind = Kind::Carry, .to = to}, std::move(envelope));
}

std::optional<SimTicket> SimNode::give(const Handle& handle, const std::string& to) {
  auto ticket =
      handle.at_home ? ledger_.grant(handle.ref, to, "") : ledger_.grant(handle.fork, to, "");
  if (!ticket) {
    if (handle.at_home) {
      out_.model().could_not_give_own(handle.value, self_);
    } else {
      out_.model().could_not_give(handle.ticket);
    }
    return std::nullopt;
  }
  const ForkId fork = fork_of(ticket.value());
  return SimTicket{ticket.value(), out_.model().granted(handle.value, fork, self_, handle.ticket),
                   handle.value};
}

void SimNode::use(const Handle& handle) {
  const auto owner = ledger_.begin_use(handle.fork);
  if (!owner) return out_.model().could_not_give(handle.ticket);
  out_.model().used(handle.ticket, 1);
  Envelope envelope{.kind = Kind::Use,
                    .from = self_,
                    .to = owner.value(),
                    .ref = handle.ref,
                    .value = handle.value,
                    .used = handle.ticket};
  call({.kind = Kind::Use, .to = owner.value().name, .uses = handle}, std::move(envelope));
}

void SimNode::drop(std::size_t which) {
  const Handle handle = handles_[which];
  handles_.erase(handles_.begin() + static_cast<std::ptrdiff_t>(which));
  if (handle.at_home) {
    out_.model().local(handle.value, -1);
    ledger_.let_go(handle.ref, now());
  } else {
    out_.model().held(handle.ticket, -1);
    ledger_.drop(handle.fork, now());
  }
  perform();
}

void SimNode::use_everything() {
  const auto handles = handles_;
  for (const Handle& handle : handles) {
    if (!handle.at_home && !ledger_.error(handle.fork)) use(handle);
  }
}

void SimNode::drop_everything() {
  while (!handles_.empty()) drop(handles_.size() - 1);
}

// ------------------------------------------------------------------------------- calls

// Some have to wait for a connection first, and some of those never leave.
void SimNode::call(Call call, Envelope envelope) {
  auto& whims = out_.whims();
  const CallNumber number = out_.next_call();
  envelope.call = number;
  const Duration budget = whims.between(100ms, longest_call());
  const bool waits = whims.per_mille(60);
  calls_.emplace(number, std::move(call));
  if (waits) {
    const Duration delay = whims.between(1ms, 400ms);
    out_.later(self_, delay, [this, number, envelope] {
      if (calls_.contains(number)) post(number, envelope);
    });
  }
  out_.later(self_, budget, [this, number] { end(number, nullptr, ErrorKind::Timeout); });
  if (!waits) post(number, std::move(envelope));
  perform();
}

bool SimNode::post(CallNumber number, Envelope envelope) {
  envelope.from = self_;
  const auto sent = out_.send(std::move(envelope));
  const auto at = calls_.find(number);
  if (!sent) {
    end(number, nullptr, ErrorKind::PeerLost);
    return false;
  }
  if (at != calls_.end()) at->second.sent_to = sent;
  return true;
}

void SimNode::end(CallNumber number, const Envelope* reply, ErrorKind why) {
  const auto at = calls_.find(number);
  if (at == calls_.end()) return;
  const Call call = std::move(at->second);
  calls_.erase(at);
  // The layer above does not always know whom a call has reached.
  auto sent_to = call.sent_to;
  if (sent_to && !reply && out_.whims().per_mille(200)) sent_to = Incarnation{};
  for (const SimTicket& each : call.tickets) out_.model().settled(each.number);
  ledger_.settled(forks_of(call.tickets), sent_to, now());
  if (call.creates) {
    const ForkId fork = fork_of(call.creates->ticket);
    out_.model().creation_ended(call.creates->value);
    if (reply && reply->finding != Finding::Gone) {
      ledger_.created(fork, reply->from.incarnation, now());
    } else {
      out_.model().creation_over(call.creates->value);
      ledger_.creation_failed(fork, Error(why, "the creation failed"), sent_to, now());
    }
  }
  if (call.uses) {
    out_.model().used(call.uses->ticket, -1);
    ledger_.end_use(call.uses->fork, now());
  }
  perform();
}

}  // namespace hawser::refs::simulation
