#include "hawser/node/call_context.h"

#include <utility>

#include "hawser/node/autograd.h"
#include "hawser/node/references.h"

namespace hawser {
namespace {
thread_local const CallContext* serving = nullptr;
}

const CallContext* current_call() { return serving; }

ServingCall::ServingCall(const CallContext* context)
    : previous_(std::exchange(serving, context)),
      scope_(context ? context->autograd_context() : std::nullopt) {
  if (context && context->service()) recording_.emplace(context->service()->recorder());
}

ServingCall::~ServingCall() { serving = previous_; }

std::optional<autograd::ContextId> CallContext::autograd_context() const {
  const auto& note = call_->call().notes.autograd;
  if (!note) return std::nullopt;
  return autograd::ContextId{note->context};
}

// References in the answer are given to the caller, and are on their way once it is sent. Its
// tensors stay in the graph of the caller's context.
void CallContext::reply(wire::Payload&& payload, wire::Notes notes) const {
  const agent::Caller& caller = call_->caller();
  if (const auto context = autograd_context()) {
    notes.autograd = autograd_->record_send(*context, {caller.name, caller.incarnation}, payload);
  }
  if (service_) {
    notes.report = service_->finish(payload, notes.autograd ? notes.autograd->message : 0);
  }
  if (payload.held.empty()) {
    call_->reply(std::move(payload), std::move(notes));
    return;
  }
  const auto forks = references_->give(payload, caller.name);
  const bool sent = call_->reply(std::move(payload), std::move(notes));
  references_->given(forks, caller.name, sent ? std::optional(caller.incarnation) : std::nullopt);
}

void CallContext::keep(std::shared_ptr<Kept> result) const {
  static_cast<References::Expected*>(call_->attached().get())->fulfil(std::move(result));
  wire::Notes notes;
  if (service_) notes.report = service_->finish({});
  call_->reply({}, std::move(notes));
}

void CallContext::fail(Error error, wire::Payload&& payload) const {
  std::optional<wire::TraceReport> report;
  if (service_) report = service_->finish(payload);
  if (!keeps_result()) {
    call_->fail(std::move(error), std::move(payload), std::move(report));
    return;
  }
  static_cast<References::Expected*>(call_->attached().get())
      ->fail({std::move(error), std::move(payload)});
  wire::Notes notes;
  notes.report = std::move(report);
  call_->reply({}, std::move(notes));
}

}  // namespace hawser
