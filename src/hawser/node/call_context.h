#pragma once

#include <memory>
#include <string>

#include "hawser/agent/incoming_call.h"
#include "hawser/base/clock.h"

namespace hawser {

class Node;

// What a handler may know about the call it serves. A handler asks for it by taking a
// `const CallContext&` as its first parameter. Cheap to copy; may outlive the handler.
class CallContext {
 public:
  CallContext(Node& node, std::shared_ptr<agent::IncomingCall> call)
      : node_(&node), call_(std::move(call)) {}

  Node& node() const { return *node_; }
  const std::string& caller() const { return call_->caller(); }
  Deadline deadline() const { return call_->deadline(); }
  // The caller no longer wants the answer: it cancelled, its time is up, or it is gone.
  bool cancelled() const { return call_->cancelled(); }
  // Called once when that happens, on a thread that must not be held up.
  void on_cancel(UniqueFunction<void()> callback) const { call_->on_cancel(std::move(callback)); }

  const std::shared_ptr<agent::IncomingCall>& call() const { return call_; }

 private:
  Node* node_;
  std::shared_ptr<agent::IncomingCall> call_;
};

// The call that this thread is serving; null outside handlers. Calls made meanwhile inherit its
// deadline, belong to its chain, and are cancelled with it.
const CallContext* current_call();

// Sets it for a scope: the one guard around user code.
class ServingCall {
 public:
  explicit ServingCall(const CallContext* context);
  ~ServingCall();
  ServingCall(const ServingCall&) = delete;

 private:
  const CallContext* previous_;
};

}  // namespace hawser
