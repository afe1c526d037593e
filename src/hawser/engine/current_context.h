#pragma once

#include <optional>

#include "hawser/autograd/ids.h"

// The context that this thread computes in. The slot is libtorch's own: its interpreter of
// TorchScript carries it along when it goes on with a script on another thread.
namespace hawser::engine {

std::optional<autograd::ContextId> current_context();

// Sets it, or that there is none, for a scope.
class ContextScope {
 public:
  explicit ContextScope(std::optional<autograd::ContextId> context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;

 private:
  const std::int64_t previous_;
};

// Sets it until further notice.
void set_current_context(std::optional<autograd::ContextId> context);

}  // namespace hawser::engine
