// What messages have to do with references: the tickets that they carry, and the calls that make a
// value or are about one.

#include <optional>
#include <utility>
#include <vector>

#include "hawser/agent/crew.h"
#include "hawser/node/call_context.h"
#include "hawser/node/function.h"
#include "hawser/node/references.h"
#include "hawser/refs/ticket.h"

namespace hawser {
namespace {

refs::RefId subject_of(const CallContext& context) {
  const wire::RefName subject = *context.call()->call().subject;
  return {subject.on, subject.local};
}

void serve_found(const CallContext& context, const Found& found) {
  if (found.failure) {
    return context.fail(found.failure->error, wire::Payload(found.failure->payload));
  }
  const ServingCall serving(&context);
  try {
    const std::string_view method = context.call()->call().function;
    if (!method.empty()) return found.value->call(context, method);
    if (context.keeps_result()) return context.keep(found.value);
    const bool for_script = !context.call()->payload().value.empty();
    context.reply(for_script ? write_kept(found.value->script_value(nullptr))
                             : found.value->copy());
  } catch (const detail::BadRequest& bad) {
    context.fail(bad.error);
  } catch (KeptFailure& failure) {
    context.fail(std::move(failure.error), std::move(failure.payload));
  } catch (...) {
    context.fail(remote_error(std::current_exception()));
  }
}

}  // namespace

// ------------------------------------------------------------------------------- tickets

std::vector<refs::ForkId> References::give(wire::Payload& payload, std::string_view to) {
  std::vector<refs::ForkId> forks;
  std::vector<wire::ReferenceTicket> tickets;
  std::optional<Error> refusal;
  ask([&](State& state, TimePoint now) {
    for (const auto& held : payload.held) {
      const auto& handle = static_cast<const RefHandle&>(*held);
      if (&handle.references() != this) {
        refusal.emplace(ErrorKind::Invalid,
                        "a reference of another node cannot be sent by '" + self_ + "'");
      } else if (handle.released()) {
        refusal.emplace(ErrorKind::Invalid, "the reference has been released");
      } else if (const auto known = state.values.find(handle.id());
                 known != state.values.end() && known->second.not_created) {
        refusal = known->second.failure->error;
      }
      if (refusal) break;
      auto ticket = handle.fork() ? state.ledger.grant(*handle.fork(), to, handle.type())
                                  : state.ledger.grant(handle.id(), to, handle.type());
      if (!ticket.ok()) {
        refusal = ticket.error();
        break;
      }
      forks.push_back(refs::fork_of(ticket.value()));
      tickets.push_back(std::move(ticket.value()));
    }
    if (refusal) state.ledger.settled(forks, std::nullopt, now);
  });
  if (refusal) throw *refusal;
  payload.references = std::move(tickets);
  payload.held.clear();
  return forks;
}

void References::given(const std::vector<refs::ForkId>& forks, std::string_view to,
                       std::optional<Incarnation> sent_to) {
  tell([&](State& state, TimePoint now) {
    // The connection of a node to itself outlives its incarnations.
    if (sent_to && to == self_) sent_to = state.incarnation;
    state.ledger.settled(forks, sent_to, now);
  });
}

void References::adopt(wire::ReceivedPayload& payload) {
  payload.held.clear();
  payload.held.resize(payload.references.size());
  tell([&](State& state, TimePoint now) {
    for (std::size_t i = 0; i < payload.references.size(); ++i) {
      wire::ReferenceTicket& ticket = payload.references[i];
      const refs::RefId id = refs::ref_of(ticket);
      const refs::ForkId fork = refs::fork_of(ticket);
      std::shared_ptr<RefHandle> handle;
      switch (state.ledger.adopt(ticket, now)) {
        case refs::Ledger::Adoption::Mine:
          handle = new_handle(state, self_, id, std::nullopt, std::move(ticket.type));
          break;
        case refs::Ledger::Adoption::New:
          handle = new_handle(state, std::move(ticket.owner), id, fork, std::move(ticket.type));
          handle->received_ = true;
          break;
        case refs::Ledger::Adoption::Again:
          handle = state.handles[fork].handle.lock();
          if (handle) {
            state.ledger.drop(fork, now);  // one handle is enough
          } else {
            handle = new_handle(state, std::move(ticket.owner), id, fork, std::move(ticket.type));
            handle->received_ = true;
          }
          break;
        case refs::Ledger::Adoption::Refused:
          break;
      }
      payload.held[i] = std::move(handle);
    }
  });
}

// ------------------------------------------------------------------------------- making a value

References::Expected::~Expected() {
  if (done_.load()) return;
  fail({Error(ErrorKind::Cancelled, "the call that should have made the value ended without it"),
        {}},
       /*at_the_end=*/false);
}

void References::Expected::fulfil(std::shared_ptr<Kept> value, bool at_the_end) {
  if (done_.exchange(true)) return;
  references_->settle(id_, Found{.value = std::move(value)}, at_the_end);
}

void References::Expected::fail(KeptFailure failure, bool at_the_end) {
  if (done_.exchange(true)) return;
  references_->settle(id_, Found{.failure = std::move(failure)}, at_the_end);
}

std::shared_ptr<References::Expected> References::accept(const wire::Creation& creation,
                                                         std::string_view function,
                                                         const agent::Caller& from) {
  const refs::RefId id = refs::ref_of(creation);
  if (from.name == self_) return std::make_shared<Expected>(shared_from_this(), id);
  bool accepted = false;
  tell([&](State& state, TimePoint now) {
    out_.crew->attend(now);
    accepted = state.ledger.accept_creation(creation, {from.name, from.incarnation}, now) ==
               refs::Ledger::Creation::New;
    if (accepted) state.values.emplace(id, Value{.made_by = std::string(function)});
  });
  return accepted ? std::make_shared<Expected>(shared_from_this(), id) : nullptr;
}

// A value that is there twice, or that nobody wants any more, dies here.
void References::settle(const refs::RefId& id, Found outcome, bool at_the_end) {
  const auto event = [&](State& state, TimePoint) {
    const auto known = state.values.find(id);
    if (known == state.values.end() || known->second.value || known->second.failure) return;
    Value& value = known->second;
    if (outcome.failure) {
      outcome.failure->error = outcome.failure->error.about(self_, value.made_by);
    }
    const bool success = outcome.value != nullptr;
    if (!state.ledger.fulfil(id, success)) return;
    value.value = std::move(outcome.value);
    if (!success) value.failure = std::make_unique<KeptFailure>(std::move(*outcome.failure));
  };
  tell(event, {.at_the_end = at_the_end});
}

// ------------------------------------------------------------------------------- using a value

std::uint64_t References::when_there(const RefHandle& handle, UniqueFunction<void(Found)> then) {
  Waiting waiting{std::move(then), handle.id(), true};
  std::optional<Found> found;
  std::uint64_t number = 0;
  ask([&](State& state, TimePoint now) {
    number = state.next_number++;
    found = find_or_wait(state, now, number, waiting);
  });
  if (found) waiting.then(std::move(*found));
  return number;
}

void References::stop_waiting(const refs::RefId& id, std::uint64_t number) {
  Waiting dying;  // after the lock
  tell([&](State& state, TimePoint now) {
    const auto waiting = state.waiting.find(number);
    if (waiting == state.waiting.end()) return;
    dying = std::move(waiting->second);
    state.waiting.erase(waiting);
    state.ledger.stop_waiting(id, refs::Waiter{number}, now);
  });
}

bool References::has_value(const RefHandle& handle) {
  bool there = false;
  ask([&](State& state, TimePoint) {
    const auto known = state.values.find(handle.id());
    there = known != state.values.end() && known->second.value;
  });
  return there;
}

// Nothing when the value does not exist yet: then somebody waits for it now.
std::optional<Found> References::find_or_wait(State& state, TimePoint now, std::uint64_t number,
                                              Waiting& waiting) {
  const refs::Finding finding = state.ledger.wait(waiting.id, refs::Waiter{number}, now);
  if (finding != refs::Finding::Pending) return found(state, waiting.id, finding);
  state.waiting.emplace(number, std::move(waiting));
  return std::nullopt;
}

Found References::found(const State& state, const refs::RefId& id, refs::Finding finding) const {
  const auto known = state.values.find(id);
  if (finding == refs::Finding::Ready && known != state.values.end()) {
    return {.value = known->second.value};
  }
  if (finding == refs::Finding::Failed && known != state.values.end()) {
    return {.failure = *known->second.failure};
  }
  return {.failure = KeptFailure{Error(ErrorKind::PeerLost,
                                       "there is no value " + refs::to_string(id) + " on '" +
                                           self_ + "': it is gone, or was never created",
                                       {.node = self_}),
                                 {}}};
}

void References::serve(const CallContext& context) {
  const bool is_fetch = context.call()->call().function.empty();
  Waiting waiting{[context](const Found& found) { serve_found(context, found); },
                  subject_of(context), is_fetch};
  const refs::RefId id = waiting.id;
  std::optional<Found> found;
  std::uint64_t number = 0;
  ask([&](State& state, TimePoint now) {
    number = state.next_number++;
    found = find_or_wait(state, now, number, waiting);
  });
  if (found) return waiting.then(std::move(*found));
  stop_waiting_when_cancelled(context, id, number);
}

bool References::serve_without_running(const CallContext& context) {
  const refs::RefId id = subject_of(context);
  const bool is_fetch = context.call()->call().function.empty();
  const bool may_be_constant = is_fetch && !context.keeps_result() &&
                               context.call()->payload().value.empty() &&
                               !context.autograd_context();
  std::uint64_t number = 0;
  bool waits = false;
  wire::Payload constant;
  tell([&](State& state, TimePoint now) {
    number = state.next_number++;
    const refs::Finding finding = state.ledger.wait(id, refs::Waiter{number}, now);
    if (finding == refs::Finding::Pending) {
      waits = true;
      state.waiting.emplace(
          number,
          Waiting{[context](const Found& found) { serve_found(context, found); }, id, is_fetch});
    } else if (finding == refs::Finding::Ready && may_be_constant) {
      const auto known = state.values.find(id);
      if (known == state.values.end()) return;
      constant.value = wire::ValueBytes(known->second.value->constant_copy());
    }
  });
  if (waits) stop_waiting_when_cancelled(context, id, number);
  if (constant.value.empty()) return waits;
  context.reply(std::move(constant));
  return true;
}

void References::stop_waiting_when_cancelled(const CallContext& context, const refs::RefId& id,
                                             std::uint64_t number) {
  context.call()->on_cancel([weak = weak_from_this(), id, number] {
    if (const auto self = weak.lock()) self->stop_waiting(id, number);
  });
}

}  // namespace hawser
