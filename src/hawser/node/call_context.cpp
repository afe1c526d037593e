#include "hawser/node/call_context.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "hawser/node/autograd.h"
#include "hawser/node/kept.h"
#include "hawser/node/node.h"
#include "hawser/node/references.h"

namespace hawser {
namespace {

thread_local const CallContext* serving = nullptr;

// Whether nobody need be woken for the news that a value is there: the caller looks for such news
// by itself while the creation is young (References, LEISURE-1), and its patience is far from over.
bool may_be_answered_at_leisure(const agent::IncomingCall& call) {
  using std::chrono::microseconds;
  constexpr microseconds kYoung = std::chrono::milliseconds(1);
  constexpr microseconds kAmple = std::chrono::milliseconds(100);
  constexpr microseconds kMost = std::chrono::hours(24 * 365);
  if (call.deadline().is_never()) return false;
  const auto budget = microseconds(
      static_cast<std::int64_t>(std::min<std::uint64_t>(call.call().budget_us, 2 * kMost.count())));
  const Duration left = call.deadline().remaining(std::chrono::steady_clock::now());
  return budget >= kAmple && budget <= kMost && budget - left < kYoung;
}

void answer_kept(agent::IncomingCall& call, wire::Payload&& copy, wire::Notes&& notes) {
  if (may_be_answered_at_leisure(call)) {
    call.reply_at_leisure(std::move(copy), std::move(notes));
  } else {
    call.reply(std::move(copy), std::move(notes));
  }
}

}  // namespace

const CallContext* current_call() { return serving; }

ServingCall::ServingCall(const CallContext* context)
    : previous_(std::exchange(serving, context)),
      scope_(context ? context->autograd_context() : std::nullopt),
      anomaly_scope_(context ? context->anomaly_mode() : autograd::AnomalyMode::Off) {
  if (context && context->service()) recording_.emplace(context->service()->recorder());
}

ServingCall::~ServingCall() { serving = previous_; }

// Whoever learns of it has more to do, and every hand may be in a function that waits to be told.
void CallContext::on_cancel(UniqueFunction<void()> callback) const {
  call_->on_cancel([scheduler = node_->scheduler(), callback = std::move(callback)]() mutable {
    scheduler->post_beside(std::move(callback));
  });
}

std::optional<autograd::ContextId> CallContext::autograd_context() const {
  const auto& note = call_->call().notes.autograd;
  if (!note) return std::nullopt;
  return autograd::ContextId{note->context};
}

autograd::AnomalyMode CallContext::anomaly_mode() const {
  const auto& note = call_->call().notes.autograd;
  return note ? engine::anomaly_mode_of(note->anomaly_mode) : autograd::AnomalyMode::Off;
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

// Whether this thread serves the call, so that it has nothing more to do once that is answered. (A
// future may be settled by a function that goes on.)
bool CallContext::ends_here() const { return serving && serving->call_ == call_; }

void CallContext::keep(std::shared_ptr<Kept> result) const {
  wire::Payload copy;
  copy.value = wire::ValueBytes(result->constant_copy());
  wire::Notes notes;
  if (service_) notes.report = service_->finish({});
  // What comes for the value before it is there waits for it, so the answer need not.
  answer_kept(*call_, std::move(copy), std::move(notes));
  static_cast<References::Expected*>(call_->attached().get())
      ->fulfil(std::move(result), ends_here());
}

void CallContext::fail(Error error, wire::Payload&& payload) const {
  std::optional<wire::TraceReport> report;
  if (service_) report = service_->finish(payload);
  if (!keeps_result()) {
    call_->fail(std::move(error), std::move(payload), std::move(report));
    return;
  }
  static_cast<References::Expected*>(call_->attached().get())
      ->fail({std::move(error), std::move(payload)}, ends_here());
  wire::Notes notes;
  notes.report = std::move(report);
  answer_kept(*call_, {}, std::move(notes));
}

}  // namespace hawser
