#include "hawser/node/inspect.h"

#include <iomanip>
#include <sstream>

namespace hawser {
namespace {

std::string milliseconds(Duration duration) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(duration < std::chrono::milliseconds(10) ? 3 : 0)
       << std::chrono::duration<double, std::milli>(duration).count() << " ms";
  return text.str();
}

std::string bytes(std::uint64_t count) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(count);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  std::ostringstream text;
  text << std::fixed << std::setprecision(unit == 0 ? 0 : 1) << value << ' ' << kUnits[unit];
  return text.str();
}

void write_peer(std::ostream& out, const agent::PeerReport& peer) {
  out << "  " << peer.name << "  " << peer.state;
  if (peer.incarnation) out << ", incarnation " << peer.incarnation;
  if (!peer.transport.empty()) out << ", by " << peer.transport;
  if (peer.round_trip) out << ", round trip " << milliseconds(*peer.round_trip);
  if (peer.since_heard) out << ", heard " << milliseconds(*peer.since_heard) << " ago";
  out << "\n    sent " << peer.traffic.frames_sent << " frames (" << bytes(peer.traffic.bytes_sent)
      << "), received " << peer.traffic.frames_received << " ("
      << bytes(peer.traffic.bytes_received) << ")";
  if (peer.traffic.bytes_queued) out << ", queued " << bytes(peer.traffic.bytes_queued);
  if (peer.traffic.bytes_shared) out << ", shared " << bytes(peer.traffic.bytes_shared);
  if (peer.put_aside) out << ", " << peer.put_aside << " of its calls wait for it to take that";
  if (peer.waiting) out << ", " << peer.waiting << " calls wait for the connection";
  out << '\n';
  for (const std::string& why : peer.choice) out << "    " << why << '\n';
}

}  // namespace

std::string NodeReport::to_text() const {
  std::ostringstream out;
  out << "node '" << name << "', incarnation " << incarnation << '\n';
  for (const std::string& endpoint : endpoints) out << "  listens on " << endpoint << '\n';
  for (const std::string& why : unavailable) out << "  not available: " << why << '\n';
  out << "peers: " << peers.size() << '\n';
  for (const auto& peer : peers) write_peer(out, peer);
  out << "calls in flight: " << calls.size() << '\n';
  for (const auto& call : calls) {
    out << "  " << (call.incoming ? "from " : "to ") << call.peer << "  " << call.function << "  #"
        << number(call.id) << ", for " << milliseconds(call.age);
    if (call.remaining) out << ", " << milliseconds(*call.remaining) << " left";
    out << '\n';
  }
  out << "threads: " << crew.threads << " (" << crew.running << " in handlers, " << crew.parked
      << " parked), queued " << crew.queued << ", run " << crew.tasks_run << ", refused "
      << crew.refused << '\n';
  out << "memory: " << bytes(memory.lent + memory.adopted) << " in use, " << bytes(memory.adopted)
      << " of it in arenas of peers, " << bytes(memory.kept) << " kept for reuse, "
      << bytes(memory.shared) << " shared, " << bytes(memory.to_send) << " to be sent\n";
  if (connections_turned_away) {
    out << "connections turned away: " << connections_turned_away << '\n';
  }
  for (const std::string& member : shutdown_waits_for) {
    out << "shutdown waits for " << member << '\n';
  }
  return out.str();
}

}  // namespace hawser
