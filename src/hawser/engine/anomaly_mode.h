#pragma once

#include <cstdint>

#include "hawser/autograd/messages.h"

// The anomaly mode of libtorch, of which a process has one.
namespace hawser::engine {

using autograd::AnomalyMode;

AnomalyMode anomaly_mode();

// As told by a peer; what is unknown is taken for the most that is known.
AnomalyMode anomaly_mode_of(std::int64_t told);

// Switches it on, or further on, for a scope, if another node asks for it. When the last such scope
// of the process ends, the mode is what it was before the first, unless the program has changed it
// meanwhile.
class AnomalyScope {
 public:
  explicit AnomalyScope(AnomalyMode asked_for);
  ~AnomalyScope();
  AnomalyScope(const AnomalyScope&) = delete;

 private:
  const bool counts_;
};

}  // namespace hawser::engine
