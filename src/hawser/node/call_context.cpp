#include "hawser/node/call_context.h"

#include <utility>

namespace hawser {
namespace {
thread_local const CallContext* serving = nullptr;
}

const CallContext* current_call() { return serving; }

ServingCall::ServingCall(const CallContext* context) : previous_(std::exchange(serving, context)) {}

ServingCall::~ServingCall() { serving = previous_; }

}  // namespace hawser
