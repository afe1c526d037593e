#include "sim_refs/sim_node.h"

#include <algorithm>
#include <utility>

namespace hawser::refs::simulation {
namespace {

using namespace std::chrono_literals;

}  // namespace

// Shorter than in production, by the same factor; and longer than messages fly (story.cpp).
LedgerOptions ledger_options() {
  LedgerOptions options;
  options.courier = {.first_retry = 20ms, .last_retry = 160ms, .max_records = 4, .plenty = 3};
  options.ask_after = 1s;
  options.await_creation = 4s;
  options.remember = 4s;
  options.max_remembered = 1000;
  options.first_reach = 20ms;
  options.last_reach = 160ms;
  return options;
}
Duration longest_call() { return 2s; }

SimNode::SimNode(Surroundings& out, Party self, std::uint32_t rank)
    : out_(out),
      self_(std::move(self)),
      rank_(rank),
      ledger_({self_.name, self_.incarnation, origin_of(rank, self_.incarnation)},
              ledger_options()) {}

// ------------------------------------------------------------------------------- serving

void SimNode::receive(const Envelope& envelope) {
  switch (envelope.kind) {
    case Kind::Letter:
      ledger_.receive(envelope.from, envelope.letter, now());
      perform();
      // After that: what was said of a value that went with an earlier record of the same letter
      // was said too late.
      out_.model().letter(envelope.from, self_, envelope.letter);
      break;
    case Kind::Create:
      serve_creation(envelope);
      break;
    case Kind::Carry:
      serve_carry(envelope);
      break;
    case Kind::Use:
      serve_use(envelope);
      break;
    case Kind::CarryReply:
      take_tickets(envelope.tickets);
      end(envelope.call, &envelope, {});
      break;
    case Kind::CreateReply:
    case Kind::UseReply:
      end(envelope.call, &envelope, {});
      break;
  }
  perform();
}

void SimNode::serve_creation(const Envelope& envelope) {
  const SimTicket& ticket = envelope.tickets.at(0);
  const RefId ref = ref_of(ticket.ticket);
  Envelope reply{
      .kind = Kind::CreateReply, .from = self_, .to = envelope.from, .call = envelope.call};
  const ForkId fork = fork_of(ticket.ticket);
  switch (
      ledger_.accept_creation({{ref.on, ref.local}, {fork.on, fork.local}}, envelope.from, now())) {
    case Ledger::Creation::Again:
      return;
    case Ledger::Creation::Refused:
      reply.finding = Finding::Gone;
      out_.send(std::move(reply));
      return;
    case Ledger::Creation::New:
      break;
  }
  out_.model().created(ticket.value, self_);
  in_the_making_[ref] = ticket.value;
  auto& whims = out_.whims();
  const Duration takes =
      whims.per_mille(300) ? whims.between(50ms, 800ms) : whims.between(0ms, 20ms);
  const bool success = whims.per_mille(900);
  out_.later(self_, takes, [this, ref, value = ticket.value, success, reply] {
    const bool wanted = in_the_making_.erase(ref) > 0;
    if (ledger_.fulfil(ref, success)) values_[ref] = value;
    if (wanted != values_.contains(ref)) {
      out_.model().complain(self_.name + " was not told whether a value is wanted");
    }
    perform();
    // Whoever waited for it has been woken.
    for (const auto& [waiter, use] : waiting_) {
      if (use.value == value) out_.model().complain("a use of a value that is there still waits");
    }
    Envelope done = reply;
    done.from = self_;
    out_.send(std::move(done));
    perform();
  });
}

void SimNode::serve_carry(const Envelope& envelope) {
  take_tickets(envelope.tickets);
  auto& whims = out_.whims();
  if (whims.per_mille(50)) return;  // it never answers
  const Duration takes = whims.between(0ms, 60ms);
  out_.later(self_, takes,
             [this, to = envelope.from, number = envelope.call, wants = envelope.wants_tickets] {
               Envelope reply{.kind = Kind::CarryReply, .from = self_, .to = to, .call = number};
               const auto which = wants ? any_handle() : std::nullopt;
               if (which) {
                 const auto ticket = give(handles_[*which], to.name);
                 if (ticket) reply.tickets.push_back(*ticket);
               }
               const std::vector<SimTicket> given = reply.tickets;
               const auto sent = out_.send(std::move(reply));
               for (const SimTicket& each : given) out_.model().settled(each.number);
               ledger_.settled(forks_of(given), sent, now());
               if (which && out_.whims().per_mille(300)) {
                 if (const auto any = any_handle()) drop(*any);
               }
               perform();
             });
}

void SimNode::take_tickets(const std::vector<SimTicket>& tickets) {
  for (const SimTicket& each : tickets) {
    Handle handle{.value = each.value,
                  .ticket = each.number,
                  .fork = fork_of(each.ticket),
                  .ref = ref_of(each.ticket)};
    switch (ledger_.adopt(each.ticket, now())) {
      case Ledger::Adoption::Refused:
        out_.model().refused(each.number, self_);
        continue;
      case Ledger::Adoption::Mine:
        out_.model().adopted(each.number, self_, true);
        handle.ticket = 0;
        handle.at_home = true;
        break;
      case Ledger::Adoption::New:
      case Ledger::Adoption::Again:
        tickets_[handle.fork] = each.number;
        out_.model().adopted(each.number, self_, false);
        break;
    }
    handles_.push_back(handle);
    perform();
    // A reference can be used in the step that brings it.
    if (!handle.at_home && out_.whims().per_mille(300)) use(handle);
  }
}

void SimNode::serve_use(const Envelope& envelope) {
  const auto waiter = Waiter{out_.next_call()};
  const Finding finding = ledger_.wait(envelope.ref, waiter, now());
  if (finding != Finding::Pending) return answer_use(envelope, finding);
  waiting_.emplace(waiter, envelope);
  out_.later(self_, longest_call(), [this, waiter] {
    const auto at = waiting_.find(waiter);
    if (at == waiting_.end()) return;
    const RefId ref = at->second.ref;
    waiting_.erase(at);
    ledger_.stop_waiting(ref, waiter, now());
    perform();
  });
}

void SimNode::answer_use(const Envelope& use, Finding finding) {
  const auto value = values_.find(use.ref);
  // Dropped between being found and being looked at, by actions that were performed meanwhile.
  if (value == values_.end()) finding = Finding::Gone;
  out_.model().found(use, self_, finding,
                     value == values_.end() ? std::nullopt : std::optional(value->second));
  Envelope reply{.kind = Kind::UseReply,
                 .from = self_,
                 .to = use.from,
                 .call = use.call,
                 .value = use.value,
                 .used = use.used,
                 .finding = finding};
  out_.send(std::move(reply));
}

// ------------------------------------------------------------------------------- the world

void SimNode::met(const Party& party) {
  ledger_.met(party, now());
  perform();
}

void SimNode::disconnected(const std::string& peer) {
  ledger_.disconnected(peer, now());
  // What was outstanding on the connection has failed.
  std::vector<CallNumber> cut;
  for (const auto& [number, call] : calls_) {
    if (call.to == peer && call.sent_to) cut.push_back(number);
  }
  for (const CallNumber number : cut) end(number, nullptr, ErrorKind::PeerLost);
  perform();
}

void SimNode::lost(const Party& party) {
  ledger_.lost(party, now());
  disconnected(party.name);
}

void SimNode::rejoin(Incarnation incarnation) {
  const Party old = self_;
  self_.incarnation = incarnation;
  out_.model().rejoined(old, self_);
  ledger_.rejoined({self_.name, incarnation, origin_of(rank_, incarnation)}, now());
  for (const auto& [waiter, use] : std::exchange(waiting_, {})) {
    ledger_.stop_waiting(use.ref, waiter, now());
  }
  while (!calls_.empty()) end(calls_.begin()->first, nullptr, ErrorKind::PeerLost);
  perform();
  // Functions that were at work end with the calls that started them.
  for (const auto& [ref, value] : std::exchange(in_the_making_, {})) {
    if (ledger_.fulfil(ref, false)) values_[ref] = value;
  }
  timer_ = Deadline::never();  // went with the former life
  perform();
}

void SimNode::perform() {
  for (const Action& action : ledger_.take_actions(now())) {
    if (const auto* send = std::get_if<Send>(&action)) {
      out_.send({.kind = Kind::Letter, .from = self_, .to = send->to, .letter = send->message});
    } else if (const auto* reach = std::get_if<Reach>(&action)) {
      out_.reach(self_, reach->peer);
    } else if (const auto* tell = std::get_if<TellLost>(&action)) {
      out_.tell_lost(self_, tell->party);
    } else if (const auto* drop = std::get_if<DropValue>(&action)) {
      auto& place = values_.contains(drop->ref) ? values_ : in_the_making_;
      const auto value = place.find(drop->ref);
      if (value == place.end()) {
        out_.model().complain(self_.name + " drops a value that it has not got");
      } else {
        out_.model().dropped(value->second);
        place.erase(value);
      }
    } else if (const auto* wake = std::get_if<Wake>(&action)) {
      const auto waits = waiting_.find(wake->waiter);
      if (waits == waiting_.end()) continue;
      const Envelope use = std::move(waits->second);
      waiting_.erase(waits);
      answer_use(use, wake->finding);
    } else if (const auto* failed = std::get_if<Failed>(&action)) {
      out_.model().failed(tickets_[failed->fork], failed->why.kind());
    }
  }
  arm_timer();
}

void SimNode::arm_timer() {
  const Deadline due = ledger_.next_due();
  if (due >= timer_ || due.is_never()) return;
  timer_ = due;
  out_.later(self_, due.at() - now(), [this, due] {
    if (timer_ != due) return;  // another was set since
    timer_ = Deadline::never();
    ledger_.tick(now());
    perform();
  });
}

// ------------------------------------------------------------------------------- checks

void SimNode::check_tables() {
  std::map<ForkId, std::uint32_t> expected;
  for (const Handle& handle : handles_) {
    if (!handle.at_home) ++expected[handle.fork];
  }
  for (const HeldReport& held : ledger_.held(now())) {
    const auto at = expected.find(held.fork);
    const std::uint32_t handles = at == expected.end() ? 0 : at->second;
    if (handles != held.handles) {
      out_.model().complain(self_.name + " has another count of handles than its ledger");
    }
    if (at != expected.end()) expected.erase(at);
  }
  if (!expected.empty()) out_.model().complain(self_.name + "'s ledger has forgotten a handle");
}

void SimNode::check_rest() {
  check_tables();
  for (const HeldReport& held : ledger_.held(now())) {
    const bool settled = held.state == "confirmed" || held.state == "failed";
    if (!settled || held.pins > 0) {
      out_.model().complain("REF-2: at rest, " + self_.name + " has a reference that is " +
                            std::string(held.state) + " with " + std::to_string(held.pins) +
                            " pins");
    }
  }
  if (ledger_.unacknowledged() > 0) {
    out_.model().complain("REF-2: at rest, " + self_.name + " still has something to say");
  }
  if (!waiting_.empty()) out_.model().complain("at rest, uses wait at " + self_.name);
}

void SimNode::check_empty() {
  if (ledger_.idle() && ledger_.owned(now()).empty() && values_.empty()) return;
  std::string text = "REF-2: " + self_.name + " is not empty:";
  for (const auto& line : describe_leaks(ledger_, now())) text += "\n    " + line;
  for (const auto& owned : ledger_.owned(now())) {
    if (owned.holders.empty()) text += "\n    " + to_string(owned.ref) + " held by nobody";
  }
  out_.model().complain(text);
}

}  // namespace hawser::refs::simulation
