#include "hawser/engine/current_context.h"

#include <torch/csrc/distributed/autograd/context/container.h>

namespace hawser::engine {
namespace {

using Slot = torch::distributed::autograd::DistAutogradContainer;
constexpr std::int64_t kNone = -1;  // libtorch's word for it

std::int64_t as_slot(std::optional<autograd::ContextId> context) {
  return context ? static_cast<std::int64_t>(autograd::number(*context)) : kNone;
}

}  // namespace

std::optional<autograd::ContextId> current_context() {
  const std::int64_t id = Slot::currentContextId();
  if (id == kNone) return std::nullopt;
  return autograd::ContextId{static_cast<std::uint64_t>(id)};
}

void set_current_context(std::optional<autograd::ContextId> context) {
  Slot::forceCurrentContextId(as_slot(context));
}

ContextScope::ContextScope(std::optional<autograd::ContextId> context)
    : previous_(Slot::currentContextId()) {
  const std::int64_t id = as_slot(context);
  if (id != previous_) Slot::forceCurrentContextId(id);
}

ContextScope::~ContextScope() {
  if (Slot::currentContextId() != previous_) Slot::forceCurrentContextId(previous_);
}

}  // namespace hawser::engine
