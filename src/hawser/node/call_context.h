#pragma once

#include <memory>
#include <optional>
#include <string>

#include "hawser/agent/incoming_call.h"
#include "hawser/autograd/ids.h"
#include "hawser/base/clock.h"
#include "hawser/engine/anomaly_mode.h"
#include "hawser/engine/current_context.h"
#include "hawser/trace/service.h"

namespace hawser {

class Autograd;
class Kept;
class Node;
class References;

// What a handler may know about the call it serves. A handler asks for it by taking a
// `const CallContext&` as its first parameter. Cheap to copy; may outlive the handler.
class CallContext {
 public:
  // `service` records the call; null if nobody wants that.
  CallContext(Node& node, References& references, Autograd& autograd,
              std::shared_ptr<agent::IncomingCall> call, std::shared_ptr<trace::Service> service)
      : node_(&node),
        references_(&references),
        autograd_(&autograd),
        call_(std::move(call)),
        service_(std::move(service)) {}

  Node& node() const { return *node_; }
  References& references() const { return *references_; }
  const std::string& caller() const { return call_->caller().name; }
  Deadline deadline() const { return call_->deadline(); }
  // The context of distributed autograd that the caller computes in.
  std::optional<autograd::ContextId> autograd_context() const;
  // That the caller is in, if it computes in a context.
  autograd::AnomalyMode anomaly_mode() const;
  // The caller no longer wants the answer: it cancelled, its time is up, or it is gone.
  bool cancelled() const { return call_->cancelled(); }
  // Called once if that happens before the call is answered, on a thread of the node that does
  // nothing else: only other callbacks of this kind wait while it runs.
  void on_cancel(UniqueFunction<void()> callback) const;

  // --- for whoever runs the function: the answer, once ---

  // The function has returned, and its result is about to be written.
  void function_returned() const {
    if (service_) service_->function_returned();
  }

  // The caller wants a reference to the result, which stays here: keep() is wanted, not reply().
  bool keeps_result() const { return call_->attached() != nullptr; }
  void reply(wire::Payload&& payload, wire::Notes notes = {}) const;
  // A constant copy goes along with the answer, so that the caller need not come for it.
  void keep(std::shared_ptr<Kept> result) const;
  // Of a call that keeps its result: whoever asks for the result gets the error.
  void fail(Error error, wire::Payload&& payload = {}) const;

  const std::shared_ptr<agent::IncomingCall>& call() const { return call_; }
  const std::shared_ptr<trace::Service>& service() const { return service_; }

 private:
  bool ends_here() const;

  Node* node_;
  References* references_;
  Autograd* autograd_;
  std::shared_ptr<agent::IncomingCall> call_;
  std::shared_ptr<trace::Service> service_;
};

// The call that this thread is serving; null outside handlers. Calls made meanwhile inherit its
// deadline, belong to its chain and to its autograd context, and are cancelled with it. What is
// done meanwhile is recorded if the caller wants that.
const CallContext* current_call();

// Sets it for a scope: the one guard around user code.
class ServingCall {
 public:
  explicit ServingCall(const CallContext* context);
  ~ServingCall();
  ServingCall(const ServingCall&) = delete;

 private:
  const CallContext* previous_;
  const engine::ContextScope scope_;
  const engine::AnomalyScope anomaly_scope_;
  std::optional<trace::Recording> recording_;
};

}  // namespace hawser
