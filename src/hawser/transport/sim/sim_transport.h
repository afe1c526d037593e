#pragma once

#include <memory>
#include <string>

#include "hawser/base/limits.h"
#include "hawser/transport/sim/sim_cable.h"
#include "hawser/transport/transport.h"

namespace hawser::transport::sim {

// The node's end of an established connection. Sends like any transport: copies the body, and the
// segments too, so that nothing is shared between simulated processes.
class SimLink final : public Link {
 public:
  SimLink(std::shared_ptr<SimCable> cable, SimCable::Side side, PeerIdentity peer,
          const Limits& limits, SimNetwork& network);
  ~SimLink() override { close(); }

  std::string_view transport() const override { return "sim"; }
  const PeerIdentity& peer() const override { return peer_; }
  bool send(wire::OutFrame frame) override;
  bool backlogged(std::size_t limit) override { return cable_->backlogged(side_, limit); }
  Received receive(wire::InFrame& frame) override;
  bool pending() const override { return cable_->pending(side_); }
  int descriptor() const override { return -1; }
  bool wants_write() const override { return false; }
  bool announced_by_descriptor() const override { return false; }
  void close() override;
  std::optional<std::string> close_reason() const override { return book_.lock()->reason; }
  LinkStats stats() const override { return book_.lock()->stats; }

  // Called on the simulator's thread when receive() has something to do.
  void on_ready(std::function<void()> callback) { cable_->on_ready(side_, std::move(callback)); }

  // --- faults ---
  // Puts a frame on its way that no node would send.
  void send_garbage();

 private:
  struct Book {
    LinkStats stats;
    std::optional<std::string> reason;
  };
  std::optional<std::string> objection(const wire::InFrame& frame) const;

  const std::shared_ptr<SimCable> cable_;
  const SimCable::Side side_;
  const PeerIdentity peer_;
  const Limits limits_;
  SimNetwork& network_;
  mutable Guarded<Book> book_;
};

struct SimTransportOptions {
  std::string address;  // empty: a new one; a restarted node may want the one it had
  Duration handshake_timeout = std::chrono::seconds(5);
};

// The transport of one node of a simulated world, and the link from that node to itself. The
// network outlives both.
std::unique_ptr<Transport> create_sim(SimNetwork& network, std::shared_ptr<SimProcess> process,
                                      Host& host, const Limits& limits,
                                      SimTransportOptions options = {});
std::shared_ptr<SimLink> make_sim_loopback(SimNetwork& network,
                                           const std::shared_ptr<SimProcess>& process,
                                           PeerIdentity self, const Limits& limits);

}  // namespace hawser::transport::sim
