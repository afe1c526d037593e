#include <cstring>
#include <utility>
#include <vector>

#include "hawser/transport/sim/sim_transport.h"

namespace hawser::transport::sim {
namespace {

constexpr auto kUnheardOf = static_cast<wire::Kind>(0xEE);

wire::FrameHeader header_of(const wire::InFrame& frame) {
  wire::FrameHeader header;
  header.kind = frame.kind;
  header.body_bytes = static_cast<std::uint32_t>(frame.body.size());
  header.segment_count = static_cast<std::uint32_t>(frame.segments.size());
  for (const Buffer& segment : frame.segments) header.segment_bytes += segment.size();
  return header;
}

wire::InFrame copied(const wire::OutFrame& frame, BufferPool& pool) {
  wire::InFrame copy{frame.kind, wire::BodyBytes(frame.body.size()), {}};
  if (!frame.body.empty()) std::memcpy(copy.body.data(), frame.body.data(), frame.body.size());
  copy.segments.reserve(frame.segments.size());
  for (const Buffer& segment : frame.segments) {
    Buffer& own = copy.segments.emplace_back(pool.take(segment.size()));
    if (!segment.empty()) std::memcpy(own.data(), segment.data(), segment.size());
  }
  return copy;
}

}  // namespace

SimLink::SimLink(std::shared_ptr<SimCable> cable, SimCable::Side side, PeerIdentity peer,
                 const Limits& limits, SimNetwork& network)
    : cable_(std::move(cable)),
      side_(side),
      peer_(std::move(peer)),
      limits_(limits),
      network_(network) {}

bool SimLink::send(wire::OutFrame frame) {
  const std::size_t bytes = frame.total_bytes();
  // One lock for the count and the order of frames.
  auto book = book_.lock();
  if (!cable_->send(side_, copied(frame, network_.pool()))) return false;
  ++book->stats.frames_sent;
  book->stats.bytes_sent += bytes;
  return true;
}

Link::Received SimLink::receive(wire::InFrame& frame) {
  const Received received = cable_->receive(side_, frame);
  if (received != Received::Frame) return received;
  if (auto why = objection(frame)) {
    book_.lock()->reason = std::move(*why);
    close();
    return Received::Closed;
  }
  auto book = book_.lock();
  ++book->stats.frames_received;
  book->stats.bytes_received += frame.total_bytes();
  return Received::Frame;
}

std::optional<std::string> SimLink::objection(const wire::InFrame& frame) const {
  const wire::FrameHeader header = header_of(frame);
  if (auto why = wire::objection(header, limits_)) return why;
  std::vector<std::uint64_t> sizes;
  sizes.reserve(frame.segments.size());
  for (const Buffer& segment : frame.segments) sizes.push_back(segment.size());
  return wire::objection(header, sizes, limits_);
}

void SimLink::close() { cable_->close(side_); }

void SimLink::send_garbage() { cable_->send(side_, {kUnheardOf, wire::BodyBytes(16), {}}); }

std::shared_ptr<SimLink> make_sim_loopback(SimNetwork& network,
                                           const std::shared_ptr<SimProcess>& process,
                                           PeerIdentity self, const Limits& limits) {
  auto cable = network.lay_cable(process, process);
  return std::make_shared<SimLink>(std::move(cable), 0, std::move(self), limits, network);
}

}  // namespace hawser::transport::sim
