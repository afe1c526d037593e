#include "hawser/agent/call_table.h"

#include <algorithm>
#include <utility>

#include "hawser/base/fault.h"

namespace hawser::agent {

std::optional<CallId> CallTable::open(OutstandingCall& call) {
  if (size_ >= limit_) return std::nullopt;
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  bytes_ += call.bytes;
  slots_[slot].call.emplace(std::move(call));
  ++size_;
  return id_of(slot);
}

OutstandingCall CallTable::release(std::size_t slot) {
  OutstandingCall call = std::move(*slots_[slot].call);
  slots_[slot].call.reset();
  if (!HAWSER_FAULT(kReuseCallIds)) ++slots_[slot].generation;
  free_.push_back(static_cast<std::uint32_t>(slot));
  --size_;
  bytes_ -= call.bytes;
  return call;
}

std::optional<OutstandingCall> CallTable::take(CallId id) {
  const std::size_t slot = number(id) & 0xFFFFFFFF;
  if (slot >= slots_.size() || !slots_[slot].call || id_of(slot) != id) return std::nullopt;
  return release(slot);
}

std::vector<std::pair<CallId, OutstandingCall>> CallTable::expire(TimePoint now) {
  std::vector<std::pair<CallId, OutstandingCall>> expired;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot].call || !slots_[slot].call->deadline.passed(now)) continue;
    const CallId id = id_of(slot);
    expired.emplace_back(id, release(slot));
  }
  return expired;
}

std::vector<OutstandingCall> CallTable::take_all() {
  std::vector<OutstandingCall> calls;
  calls.reserve(size_);
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].call) calls.push_back(release(slot));
  }
  return calls;
}

Deadline CallTable::earliest() const {
  Deadline earliest = Deadline::never();
  for (const Slot& slot : slots_) {
    if (slot.call) earliest = std::min(earliest, slot.call->deadline);
  }
  return earliest;
}

}  // namespace hawser::agent
