#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "hawser/transport/link.h"
#include "hawser/transport/sim/sim_network.h"

namespace hawser::transport::sim {

// A connection as the kernel sees it: two ends, and what flies between them in order. The two ends
// of a loopback cable are the same one.
//
// Thread-safe; what it schedules runs on the simulator's thread.
class SimCable final : public std::enable_shared_from_this<SimCable> {
 public:
  using Side = std::size_t;  // 0: the end that connected, 1: the end that accepted

  SimCable(SimNetwork& network, std::shared_ptr<SimProcess> initiator,
           std::shared_ptr<SimProcess> acceptor);

  const std::shared_ptr<SimProcess>& process(Side side) const { return processes_[side]; }
  bool joins(const std::string& one, const std::string& other) const;

  // False when this end is closed, or knows that the other one is.
  bool send(Side from, wire::InFrame frame);
  // Whether more bytes than that fly towards the other end or lie there.
  bool backlogged(Side from, std::size_t limit);
  Link::Received receive(Side side, wire::InFrame& frame);
  bool pending(Side side) const;
  // The other end sees the end of the stream after what still reaches it.
  void close(Side side);

  // Called on the simulator's thread when there is something to receive.
  void on_ready(Side side, std::function<void()> callback);

  // --- faults ---
  void cut(Duration initiator_learns, Duration acceptor_learns);
  void process_killed(const SimProcess& process, bool host_vanishes);
  // Frames that waited for the network to heal go on.
  void healed();

 private:
  struct End {
    std::deque<wire::InFrame> flying;  // towards this end
    std::deque<wire::InFrame> inbox;
    bool ends_after_flying = false;
    bool ended = false;         // no more comes after what is in the inbox
    bool closed = false;        // by its owner
    bool awaits_other = false;  // until the other end takes a frame
    bool other_took = false;    // which receive() has yet to look at
    std::function<void()> ready;
  };
  struct Ends {
    std::array<End, 2> end;
    bool severed = false;  // what is sent from now on vanishes
  };

  Side other(Side side) const { return loopback_ ? side : 1 - side; }
  void schedule_delivery(Side to);
  void deliver(Side to);
  void announce(Side to);
  void send_loosely(Side to, std::deque<wire::InFrame>& flying, wire::InFrame frame);
  void lose_from(std::size_t first, std::deque<wire::InFrame>& frames, Mishap mishap);
  void lose_tail(std::deque<wire::InFrame>& flying, Mishap mishap);
  void end_stream(Side to, Duration delay);

  SimNetwork& network_;
  const std::array<std::shared_ptr<SimProcess>, 2> processes_;
  const bool loopback_;
  mutable Guarded<Ends> ends_;
};

}  // namespace hawser::transport::sim
