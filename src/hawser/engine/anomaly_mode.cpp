#include "hawser/engine/anomaly_mode.h"

#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>

#include "hawser/base/guarded.h"

namespace hawser::engine {
namespace {

using Mode = torch::autograd::AnomalyMode;

struct Scopes {
  int alive = 0;
  AnomalyMode before = AnomalyMode::Off;  // the first of them
  AnomalyMode set = AnomalyMode::Off;     // by the latest
};
Guarded<Scopes>& scopes() {
  static Guarded<Scopes> scopes;
  return scopes;
}

void set_mode(AnomalyMode mode) {
  Mode::set_enabled(mode != AnomalyMode::Off, mode != AnomalyMode::Trace);
}

}  // namespace

AnomalyMode anomaly_mode() {
  if (!Mode::is_enabled()) return AnomalyMode::Off;
  return Mode::should_check_nan() ? AnomalyMode::TraceAndCheckNan : AnomalyMode::Trace;
}

AnomalyMode anomaly_mode_of(std::int64_t told) {
  if (told == static_cast<int>(AnomalyMode::Off)) return AnomalyMode::Off;
  return told == static_cast<int>(AnomalyMode::Trace) ? AnomalyMode::Trace
                                                      : AnomalyMode::TraceAndCheckNan;
}

AnomalyScope::AnomalyScope(AnomalyMode asked_for) : counts_(asked_for != AnomalyMode::Off) {
  if (!counts_) return;
  auto all = scopes().lock();
  if (all->alive++ == 0) all->before = anomaly_mode();
  all->set = std::max(asked_for, anomaly_mode());
  set_mode(all->set);
}

AnomalyScope::~AnomalyScope() {
  if (!counts_) return;
  auto all = scopes().lock();
  if (--all->alive == 0 && anomaly_mode() == all->set) set_mode(all->before);
}

}  // namespace hawser::engine
