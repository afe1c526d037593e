#include "hawser/agent/incoming_call.h"

#include <utility>

#include "hawser/base/fault.h"

namespace hawser::agent {

IncomingCall::IncomingCall(wire::InFrame&& frame, wire::ReceivedCall&& call, Caller caller,
                           Deadline deadline, std::shared_ptr<AnswerPath> path,
                           RequestHandler& handler, Preparation preparation)
    : frame_(std::move(frame)),
      call_(std::move(call)),
      caller_(std::move(caller)),
      deadline_(deadline),
      path_(std::move(path)),
      handler_(handler),
      preparation_(std::move(preparation)) {}

IncomingCall::~IncomingCall() {
  if (answered_.load(std::memory_order_acquire)) return;
  fail(Error(ErrorKind::Remote, "the handler dropped the call without answering it"));
}

bool IncomingCall::claim_answer() {
  if (answered_.exchange(true, std::memory_order_acq_rel)) return HAWSER_FAULT(kAnswerTwice);
  std::exchange(*on_cancel_.lock(), {}).clear();
  path_->call_answered(call_.id);
  return !call_.one_way && !cancelled();
}

bool IncomingCall::reply(wire::Payload&& payload, wire::Notes&& notes) {
  return claim_answer() &&
         path_->send_reply(
             {.id = call_.id, .payload = std::move(payload), .notes = std::move(notes)});
}

bool IncomingCall::reply_at_leisure(wire::Payload&& payload, wire::Notes&& notes) {
  return claim_answer() &&
         path_->send_reply_at_leisure(
             {.id = call_.id, .payload = std::move(payload), .notes = std::move(notes)});
}

bool IncomingCall::fail(Error error, wire::Payload&& payload,
                        std::optional<wire::TraceReport> report) {
  return claim_answer() && !path_->is_past(deadline_) &&
         path_->send_failure({.id = call_.id,
                              .error = std::move(error),
                              .payload = std::move(payload),
                              .report = std::move(report)});
}

void IncomingCall::on_cancel(UniqueFunction<void()> callback) {
  {
    auto callbacks = on_cancel_.lock();
    if (answered_.load(std::memory_order_acquire)) return;
    if (!cancelled()) {
      callbacks->push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void IncomingCall::cancel() {
  std::vector<UniqueFunction<void()>> callbacks;
  {
    auto registered = on_cancel_.lock();
    if (cancelled_.exchange(true, std::memory_order_acq_rel)) return;
    callbacks.swap(*registered);
  }
  for (auto& callback : callbacks) callback();
}

void IncomingCall::run() {
  if (cancelled()) {
    claim_answer();
    return;
  }
  auto self = shared_from_this();
  if (!call_.one_way && path_->put_aside(self)) return;
  handler_.handle(std::move(self));
}

}  // namespace hawser::agent
