#include "hawser/autograd/contexts.h"

#include <algorithm>
#include <utility>

#include "hawser/autograd/fault.h"

namespace hawser::autograd {

// ------------------------------------------------------------------------------- the forward pass

ContextId Contexts::create(TimePoint now) {
  const auto id = desk_.numbers.next<ContextId>();
  contexts_.emplace(id, Membership{.creator = desk_.self.party(), .since = now});
  return id;
}

std::optional<Note> Contexts::record_send(ContextId id, const Party& to, bool with_function) {
  Membership* context = look_up(id);
  if (!context) return std::nullopt;
  const auto message = desk_.numbers.next<MessageId>();
  meet(*context, to);
  if (with_function) context->sends.emplace(message, Membership::SendFunction{});
  return Note{id, message, context->creator};
}

void Contexts::send_failed(ContextId id, MessageId message, bool left) {
  Membership* context = look_up(id);
  if (!context) return;
  const auto at = context->sends.find(message);
  if (at == context->sends.end()) return;
  if (left) {
    at->second.call_failed = true;
  } else {
    context->sends.erase(at);
  }
}

bool Contexts::record_recv(const Note& note, const Party& from, bool with_function,
                           const Lives& lives, TimePoint now) {
  Membership* context = look_up(note.context);
  if (!context) {
    // Of its own contexts a node knows those that exist; those of its earlier lives are over.
    const bool over = note.creator.name == desk_.self.name || lives.is_over(note.creator) ||
                      (dead_.contains(note.context) && !HAWSER_FAULT(kRaiseTheDead));
    if (over) return false;
    const TimePoint ask_at = now + desk_.options.ask_after;
    context = &contexts_
                   .emplace(note.context,
                            Membership{.creator = note.creator, .since = now, .ask_at = ask_at})
                   .first->second;
    next_ask_ = std::min(next_ask_, Deadline(ask_at));
  }
  meet(*context, from);
  if (with_function) context->recvs.emplace(note.message, from);
  return true;
}

void Contexts::meet(Membership& context, const Party& peer) {
  if (peer.name == desk_.self.name) return;
  Incarnation& latest = context.known[peer.name];
  latest = std::max(latest, peer.incarnation);
}

// ------------------------------------------------------------------------------- the end

void Contexts::drop(ContextId id, std::string_view told_by, TimePoint now) {
  const auto at = contexts_.find(id);
  if (at != contexts_.end()) {
    for (const auto& [name, incarnation] : at->second.known) {
      if (name == told_by || HAWSER_FAULT(kForgetRelease)) continue;
      releases_.post({name, incarnation}, id);
    }
    contexts_.erase(at);
    desk_.act(DropContext{id});
  }
  dead_.bury(id, now);
}

std::vector<ContextId> Contexts::lost(const Party& party, const Lives& lives) {
  releases_.lost(party);
  std::vector<ContextId> over;
  if (HAWSER_FAULT(kKeepLostContexts)) return over;
  for (const auto& [id, context] : contexts_) {
    if (!is_mine(context) && lives.is_over(context.creator)) over.push_back(id);
  }
  std::sort(over.begin(), over.end());
  return over;
}

void Contexts::rejoin() {
  for (const ContextReport& each : report(TimePoint{})) {
    desk_.act(DropContext{each.id});
  }
  contexts_.clear();
  releases_.clear();
  dead_.clear();
  next_ask_ = Deadline::never();
}

// ------------------------------------------------------------------------------- asking

Reply Contexts::inquired(const std::vector<ContextId>& contexts) const {
  Reply reply;
  for (const ContextId id : contexts) {
    if (!contexts_.contains(id)) reply.gone.push_back(id);
  }
  return reply;
}

std::vector<ContextId> Contexts::answered(const Desk::ToInquire& errand,
                                          const Result<Reply>& reply) {
  if (reply.ok()) {
    for (const ContextId id : errand.contexts) {
      if (Membership* context = look_up(id)) context->asked_in_vain = 0;
    }
    return reply.value().gone;
  }
  std::vector<ContextId> given_up;
  for (const ContextId id : errand.contexts) {
    Membership* context = look_up(id);
    if (context && ++context->asked_in_vain >= desk_.options.asks_in_vain) given_up.push_back(id);
  }
  return given_up;
}

void Contexts::tick(TimePoint now) {
  releases_.tick(now);
  if (!next_ask_.passed(now)) return;
  next_ask_ = Deadline::never();
  std::map<Party, std::vector<ContextId>> due;
  for (auto& [id, context] : contexts_) {
    if (is_mine(context) || HAWSER_FAULT(kNeverInquire)) continue;
    if (context.ask_at <= now) {
      due[context.creator].push_back(id);
      context.ask_at = now + desk_.options.ask_after;
    }
    next_ask_ = std::min(next_ask_, Deadline(context.ask_at));
  }
  for (auto& [creator, contexts] : due) {
    std::sort(contexts.begin(), contexts.end());
    desk_.send(creator, Inquire{contexts}, Desk::ToInquire{contexts}, desk_.options.errand_timeout);
  }
}

// ------------------------------------------------------------------------------- looking

Membership* Contexts::look_up(ContextId id) {
  const auto at = contexts_.find(id);
  return at == contexts_.end() ? nullptr : &at->second;
}

const Membership* Contexts::find(ContextId id) const {
  const auto at = contexts_.find(id);
  return at == contexts_.end() ? nullptr : &at->second;
}

bool Contexts::concerns(std::string_view peer) const {
  return releases_.concerns(peer) ||
         std::any_of(contexts_.begin(), contexts_.end(), [&](const auto& entry) {
           return entry.second.creator.name == peer || entry.second.known.contains(peer);
         });
}

ContextReport Contexts::report(ContextId id, TimePoint now) const {
  const Membership& context = contexts_.at(id);
  ContextReport report{.id = id,
                       .creator = context.creator,
                       .known = {},
                       .sends = {},
                       .recvs = {},
                       .age = now - context.since};
  for (const auto& [name, incarnation] : context.known) report.known.push_back(name);
  for (const auto& [message, function] : context.sends) report.sends.push_back(message);
  for (const auto& [message, from] : context.recvs) report.recvs.push_back(message);
  std::sort(report.sends.begin(), report.sends.end());
  std::sort(report.recvs.begin(), report.recvs.end());
  return report;
}

std::vector<ContextReport> Contexts::report(TimePoint now) const {
  std::vector<ContextReport> all;
  for (const auto& [id, context] : contexts_) all.push_back(report(id, now));
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return all;
}

}  // namespace hawser::autograd
