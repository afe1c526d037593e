#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "hawser/transport/handshake.h"
#include "hawser/transport/sim/sim_transport.h"

namespace hawser::transport::sim {

// A transport's own state, which its events refer to and which they find gone when it is closed:
// the door that others knock at, and the conversations that are not links yet.
class SimDoor final : public std::enable_shared_from_this<SimDoor> {
 public:
  SimDoor(SimNetwork& network, std::shared_ptr<SimProcess> process, Host& host,
          const Limits& limits, SimTransportOptions options);

  std::string open();
  void connect(const std::string& address, std::string_view peer_name, Deadline deadline,
               UniqueFunction<void(ConnectOutcome)> done);
  void close();

 private:
  using Number = std::uint64_t;
  // An attempt to connect, from knocking to the link.
  struct Attempt {
    std::string address;
    InitiatorHandshake handshake;
    UniqueFunction<void(ConnectOutcome)> done;
    Timers::Id timer = Timers::Id::None;
    std::shared_ptr<SimCable> cable{};  // once the door has opened
  };
  struct Visitor {
    AcceptorHandshake handshake;
    std::shared_ptr<SimCable> cable;
    Timers::Id timer = Timers::Id::None;
  };

  // Runs a member function as an event of this process, if this is still there then.
  template <class F>
  UniqueFunction<void()> if_alive(F task) {
    return [weak = weak_from_this(), task = std::move(task)]() mutable {
      if (const auto self = weak.lock()) task(*self);
    };
  }
  void knock(Number number);
  void let_in(const std::shared_ptr<SimCable>& cable);
  void continue_attempt(Number number);
  void continue_visit(Number number);
  void send(SimCable& cable, SimCable::Side from, std::vector<std::byte> whole_frame);
  void succeed(Number number, PeerIdentity peer);
  void fail(Number number, ConnectFailure failure);
  void turn_away(Number number, const std::string& why);
  void watch(const std::shared_ptr<SimCable>& cable, SimCable::Side side,
             void (SimDoor::*next)(Number), Number number);

  SimNetwork& network_;
  const std::shared_ptr<SimProcess> process_;
  Host& host_;
  const Limits limits_;
  const SimTransportOptions options_;
  SeededRandom random_;
  bool open_ = false;
  bool closed_ = false;
  Number next_number_ = 1;
  std::unordered_map<Number, Attempt> attempts_;
  std::unordered_map<Number, Visitor> visitors_;
};

}  // namespace hawser::transport::sim
