#include "hawser/trace/peer_clocks.h"

#include <algorithm>

namespace hawser::trace {

void PeerClocks::Bounds::choose() {
  if (least <= offset && offset <= most) return;
  offset = least <= 0 && 0 <= most ? 0 : least + (most - least) / 2;
}

void PeerClocks::learn(std::string_view peer, std::int64_t sent_ns, std::int64_t received_ns,
                       std::int64_t answered_ns, std::int64_t arrived_ns) {
  auto all = bounds_.lock();
  const auto [known, is_new] = all->try_emplace(std::string(peer));
  Bounds& bounds = known->second;
  const Bounds now{answered_ns - arrived_ns, received_ns - sent_ns, arrived_ns, bounds.offset};
  const Bounds both{std::max(bounds.least, now.least), std::min(bounds.most, now.most),
                    bounds.since_ns, bounds.offset};
  // Bounds that contradict each other are of a clock that was set in between.
  const bool stale = arrived_ns - bounds.since_ns > kClockValid_ns || both.least > both.most;
  bounds = is_new || stale ? now : both;
  bounds.choose();
}

PeerClocks::Offset PeerClocks::offset_of(std::string_view peer) const {
  auto all = bounds_.lock();
  const auto known = all->find(peer);
  if (known == all->end()) return {};
  const Bounds& bounds = known->second;
  return {bounds.offset, std::max(bounds.most - bounds.offset, bounds.offset - bounds.least)};
}

void translate(wire::TraceReport& report, PeerClocks::Offset offset) {
  for (wire::TraceProcess& process : report.processes) process.clock_error_ns += offset.error_ns;
  if (offset.ns == 0) return;
  for (wire::TraceEvent& event : report.events) move(event, -offset.ns);
}

void move(wire::TraceEvent& event, std::int64_t later_ns) {
  event.start_ns += later_ns;
  event.end_ns += later_ns;
  if (event.begun_ns) event.begun_ns += later_ns;
  if (event.done_ns) event.done_ns += later_ns;
}

}  // namespace hawser::trace
