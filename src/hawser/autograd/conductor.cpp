#include "hawser/autograd/conductor.h"

#include <algorithm>
#include <utility>

#include "hawser/autograd/fault.h"
#include "hawser/base/overloaded.h"

namespace hawser::autograd {
namespace {

Error lost_error(std::string_view peer, Incarnation incarnation, std::string_view what) {
  return Error(ErrorKind::PeerLost, std::string(peer) + " " + std::string(what),
               {.node = std::string(peer), .incarnation = hawser::number(incarnation)});
}

}  // namespace

Conductor::Conductor(Self self, ConductorOptions options)
    : desk_(std::move(self), options),
      contexts_(desk_),
      endings_(options.remember, options.max_remembered) {
  if (HAWSER_FAULT(kReuseNumbers)) desk_.numbers.start_over({desk_.self.name, {}, desk_.self.rank});
}

// ------------------------------------------------------------------------------- contexts

bool Conductor::release(ContextId context, TimePoint now) {
  if (!is_in(context)) return false;
  drop(context, {}, now);
  return true;
}

void Conductor::drop(ContextId context, std::string_view told_by, TimePoint now) {
  for (auto& [id, pass] : passes_) {
    if (pass.context() != context) continue;
    pass.abort(
        Error(ErrorKind::Cancelled, "the autograd context was released", {.node = desk_.self.name}),
        now);
  }
  contexts_.drop(context, told_by, now);
}

bool Conductor::record_recv(const Note& note, const Party& from, bool with_function,
                            TimePoint now) {
  if (lives_.is_over(from)) return false;  // no gradient could be sent back
  met(from, now);
  return contexts_.record_recv(note, from, with_function, lives_, now);
}

std::optional<ContextReport> Conductor::context(ContextId context, TimePoint now) const {
  if (!is_in(context)) return std::nullopt;
  return contexts_.report(context, now);
}

// ------------------------------------------------------------------------------- passes

Result<PassId> Conductor::backward(ContextId id, Mode mode, RunOptions run, Deadline deadline,
                                   TimePoint now) {
  const Membership* context = contexts_.find(id);
  if (!context) {
    return Error(ErrorKind::Invalid,
                 "Could not find autograd context with id: " + std::to_string(number(id)),
                 {.node = desk_.self.name});
  }
  const auto pass = desk_.numbers.next<PassId>();
  const PassHeader header{.context = id,
                          .pass = pass,
                          .initiator = desk_.self.party(),
                          .mode = mode,
                          .run = run,
                          .budget = deadline.remaining(now)};
  passes_.try_emplace(pass, desk_, header, *context, now).first->second.begin(now);
  return pass;
}

bool Conductor::cancel(PassId id, TimePoint now) {
  Pass* pass = find(id);
  return pass && pass->initiator() == desk_.self.party() && pass->cancel(now);
}

void Conductor::explored(PassId id, Exploration exploration,
                         const Result<std::vector<MessageId>>& recvs, TimePoint now) {
  if (Pass* pass = find(id)) pass->explored(exploration, recvs, now);
}

bool Conductor::send_gradients(PassId id, MessageId recv, GradientHandle gradients, TimePoint now) {
  Pass* pass = find(id);
  return pass && pass->send_gradients(recv, gradients, now);
}

void Conductor::local_ended(PassId id, const Result<void>& result, TimePoint now) {
  if (Pass* pass = find(id)) pass->local_ended(result, now);
}

Pass* Conductor::find(PassId id) {
  const auto at = passes_.find(id);
  return at == passes_.end() || at->second.done() ? nullptr : &at->second;
}

// The error that ended a pass is the answer to all that comes later.
Pass* Conductor::find_or_refuse(PassId id, Incoming call) {
  if (Pass* pass = find(id)) return pass;
  const auto at = passes_.find(id);
  const auto why = at == passes_.end() ? endings_.error(id) : at->second.error();
  const Error over(ErrorKind::Cancelled, "the backward pass is over on " + desk_.self.name,
                   {.node = desk_.self.name});
  desk_.answer(call, why.value_or(over));
  return nullptr;
}

Pass* Conductor::find_or_join(const PassHeader& header, Incoming call, TimePoint now) {
  const bool over = endings_.contains(header.pass) && !HAWSER_FAULT(kWakeAborted);
  if (passes_.contains(header.pass) || over || header.initiator.name == desk_.self.name) {
    return find_or_refuse(header.pass, call);
  }
  if (lives_.is_over(header.initiator)) {
    desk_.answer(call, lost_error(header.initiator.name, header.initiator.incarnation,
                                  "began the backward pass, and is lost"));
    return nullptr;
  }
  const Membership* context = contexts_.find(header.context);
  if (!context) {
    const bool released = contexts_.was_released(header.context);
    desk_.answer(call, Error(released ? ErrorKind::Cancelled : ErrorKind::Invalid,
                             desk_.self.name + " is not in autograd context " +
                                 std::to_string(number(header.context)) +
                                 (released ? ": it was released" : ""),
                             {.node = desk_.self.name}));
    return nullptr;
  }
  return &passes_.try_emplace(header.pass, desk_, header, *context, now).first->second;
}

// ------------------------------------------------------------------------------- messages

void Conductor::receive(const Party& from, Incoming call, const Message& message, TimePoint now) {
  if (lives_.is_over(from)) {
    return desk_.answer(call, lost_error(from.name, from.incarnation, "has been given up"));
  }
  met(from, now);
  std::visit([&](const auto& said) { on(from, call, said, now); }, message);
}

void Conductor::on(const Party& from, Incoming call, const Discover& message, TimePoint now) {
  if (Pass* pass = find_or_join(message.pass, call, now)) pass->on(from, call, message, now);
}

void Conductor::on(const Party& from, Incoming call, const Gradients& message, TimePoint now) {
  if (Pass* pass = find_or_join(message.pass, call, now)) pass->on(from, call, message, now);
}

void Conductor::on(const Party& from, Incoming call, const Proceed& message, TimePoint now) {
  // It may have been told by somebody else before, and be done since.
  const bool ended_well = endings_.contains(message.pass) && !endings_.error(message.pass);
  if (ended_well) return desk_.answer(call, Reply{});
  if (Pass* pass = find_or_refuse(message.pass, call)) pass->on(from, call, message, now);
}

void Conductor::on(const Party& from, Incoming call, const Commit& message, TimePoint now) {
  if (Pass* pass = find_or_refuse(message.pass, call)) pass->on(from, call, message, now);
}

void Conductor::on(const Party& from, Incoming call, const Abort& message, TimePoint now) {
  if (Pass* pass = find(message.pass)) return pass->on(from, call, message, now);
  endings_.remember(message.pass, message.why, now);  // what it overtook must not begin the pass
  desk_.answer(call, Reply{});
}

void Conductor::on(const Party& from, Incoming call, const Release& message, TimePoint now) {
  desk_.answer(call, Reply{});
  for (const ContextId context : message.contexts) drop(context, from.name, now);
}

void Conductor::on(const Party&, Incoming call, const Inquire& message, TimePoint) {
  desk_.answer(call, contexts_.inquired(message.contexts));
}

void Conductor::answered(Outgoing call, const Result<Reply>& reply, TimePoint now) {
  const auto at = desk_.calls.find(call);
  if (at == desk_.calls.end()) return;
  const Desk::Purpose purpose = std::move(at->second);
  desk_.calls.erase(at);
  std::visit(Overloaded{[&](PassId id) {
                          if (Pass* pass = find(id)) pass->answered(call, reply, now);
                        },
                        [&](const Desk::ToRelease& errand) {
                          contexts_.released(errand, call, reply.ok(), now);
                        },
                        [&](const Desk::ToInquire& errand) {
                          for (const ContextId gone : contexts_.answered(errand, reply)) {
                            drop(gone, {}, now);
                          }
                        }},
             purpose);
}

// ------------------------------------------------------------------------------- the world

void Conductor::met(const Party& party, TimePoint now) {
  if (party.name == desk_.self.name || !lives_.learn(party)) return;
  lives_ended({party.name, Incarnation{hawser::number(party.incarnation) - 1}}, now);
}

void Conductor::lost(const Party& party, TimePoint now) {
  lives_.lost(party);
  lives_ended(party, now);
}

void Conductor::lives_ended(const Party& up_to, TimePoint now) {
  for (auto& [id, pass] : passes_) {
    const bool touched = pass.has_spoken_with(up_to) || lives_.is_over(pass.initiator());
    if (touched) pass.abort(lost_error(up_to.name, up_to.incarnation, "was lost"), now);
  }
  for (const ContextId context : contexts_.lost(up_to, lives_)) drop(context, up_to.name, now);
}

void Conductor::disconnected(std::string_view peer, TimePoint now) {
  if (HAWSER_FAULT(kIgnoreCut)) return;
  for (auto& [id, pass] : passes_) {
    if (!pass.has_spoken_with(peer)) continue;
    pass.abort(lost_error(peer, {}, "lost its connection to " + desk_.self.name), now);
  }
}

void Conductor::rejoined(Self self, TimePoint now) {
  const Error why = lost_error(desk_.self.name, desk_.self.incarnation, "was given up by others");
  for (auto& [id, pass] : passes_) {
    if (!pass.done()) pass.forsake(why);
  }
  bury_done(now);
  contexts_.rejoin();
  desk_.calls.clear();  // their answers mean nothing to the new life
  desk_.self = std::move(self);
  desk_.numbers.start_over(desk_.self);
}

// ------------------------------------------------------------------------------- time

void Conductor::tick(TimePoint now) {
  for (auto& [id, pass] : passes_) {
    if (!pass.done()) pass.tick(now);
  }
  contexts_.tick(now);
}

Deadline Conductor::next_due() const {
  Deadline due = contexts_.next_due();
  for (const auto& [id, pass] : passes_) due = std::min(due, pass.next_due());
  return due;
}

Actions Conductor::take_actions(TimePoint now) {
  bury_done(now);
  return std::exchange(desk_.actions, {});
}

void Conductor::bury_done(TimePoint now) {
  for (auto at = passes_.begin(); at != passes_.end();) {
    if (at->second.done()) {
      endings_.remember(at->first, at->second.error(), now);
      at = passes_.erase(at);
    } else {
      ++at;
    }
  }
}

// ------------------------------------------------------------------------------- looking

bool Conductor::idle() const { return contexts_.idle() && passes_.empty() && desk_.calls.empty(); }

std::vector<PassReport> Conductor::passes(TimePoint now) const {
  std::vector<PassReport> all;
  for (const auto& [id, pass] : passes_) all.push_back(pass.report(now));
  return all;
}

}  // namespace hawser::autograd
