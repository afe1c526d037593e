#include "hawser/transport/sim/sim_transport.h"

#include <cstring>
#include <utility>

#include "hawser/base/error.h"
#include "hawser/transport/sim/sim_door.h"

namespace hawser::transport::sim {
namespace {

constexpr std::string_view kPrefix = "sim:";
constexpr SimCable::Side kInitiator = 0;
constexpr SimCable::Side kAcceptor = 1;
// How often the kernel knocks again while the network is silent.
constexpr Duration kKnockAgain = std::chrono::milliseconds(50);

wire::InFrame parcel(const std::vector<std::byte>& whole_frame) {
  wire::FrameHeader header;
  std::memcpy(&header, whole_frame.data(), sizeof header);
  wire::InFrame frame{header.kind, wire::BodyBytes(whole_frame.size()), {}};
  std::memcpy(frame.body.data(), whole_frame.data(), whole_frame.size());
  return frame;
}

class SimTransport final : public Transport {
 public:
  explicit SimTransport(std::shared_ptr<SimDoor> door) : door_(std::move(door)) {}
  ~SimTransport() override { close(); }

  std::string_view name() const override { return "sim"; }
  std::string listen() override { return std::string(kPrefix) + door_->open(); }
  std::optional<std::string> objection(std::string_view endpoint) const override {
    if (endpoint.starts_with(kPrefix)) return std::nullopt;
    return "not a simulated endpoint";
  }
  void connect(std::string_view endpoint, std::string_view peer_name, Deadline deadline,
               UniqueFunction<void(ConnectOutcome)> done) override {
    const bool ours = endpoint.starts_with(kPrefix);
    door_->connect(ours ? std::string(endpoint.substr(kPrefix.size())) : "nowhere", peer_name,
                   deadline, std::move(done));
  }
  void close() override { door_->close(); }

 private:
  const std::shared_ptr<SimDoor> door_;
};

}  // namespace

std::unique_ptr<Transport> create_sim(SimNetwork& network, std::shared_ptr<SimProcess> process,
                                      Host& host, const Limits& limits,
                                      SimTransportOptions options) {
  return std::make_unique<SimTransport>(
      std::make_shared<SimDoor>(network, std::move(process), host, limits, std::move(options)));
}

SimDoor::SimDoor(SimNetwork& network, std::shared_ptr<SimProcess> process, Host& host,
                 const Limits& limits, SimTransportOptions options)
    : network_(network),
      process_(std::move(process)),
      host_(host),
      limits_(limits),
      options_(std::move(options)),
      random_(network.world().stream("nonces of " + process_->name())) {}

std::string SimDoor::open() {
  if (closed_) throw Error(ErrorKind::Invalid, "the transport is closed");
  open_ = true;
  return network_.open_door(shared_from_this(), options_.address);
}

void SimDoor::watch(const std::shared_ptr<SimCable>& cable, SimCable::Side side,
                    void (SimDoor::*next)(Number), Number number) {
  cable->on_ready(side, [weak = weak_from_this(), next, number] {
    const auto self = weak.lock();
    if (!self) return;
    self->process_->schedule_after(
        Duration::zero(), self->if_alive([next, number](SimDoor& door) { (door.*next)(number); }));
  });
}

void SimDoor::send(SimCable& cable, SimCable::Side from, std::vector<std::byte> whole_frame) {
  if (!whole_frame.empty()) cable.send(from, parcel(whole_frame));
}

// ---------------------------------------------------------------------------------- connecting

void SimDoor::connect(const std::string& address, std::string_view peer_name, Deadline deadline,
                      UniqueFunction<void(ConnectOutcome)> done) {
  const Number number = next_number_++;
  Attempt attempt{address, InitiatorHandshake(host_.identity(), std::string(peer_name), random_),
                  std::move(done)};
  if (closed_) {
    process_->post([done = std::move(attempt.done)]() mutable {
      done(ConnectFailure{std::nullopt, "the transport is closed"});
    });
    return;
  }
  if (!deadline.is_never()) {
    attempt.timer = process_->schedule(deadline.at(), if_alive([number](SimDoor& door) {
                                         door.fail(number, {std::nullopt, "no answer in time"});
                                       }));
  }
  attempts_.emplace(number, std::move(attempt));
  network_.world().after(network_.draw_delay(),
                         if_alive([number](SimDoor& door) { door.knock(number); }));
}

// An event of the network: the knock reaches the other side.
void SimDoor::knock(Number number) {
  const auto found = attempts_.find(number);
  if (found == attempts_.end() || process_->dead()) return;
  if (network_.per_mille(network_.conditions().connect_lost)) return;
  const auto answer_no = [&](std::string why) {
    process_->schedule_after(network_.draw_delay(),
                             if_alive([number, why = std::move(why)](SimDoor& door) {
                               door.fail(number, {std::nullopt, why});
                             }));
  };
  const auto door = network_.find_door(found->second.address);
  if (!door || !door->open_ || door->process_->dead()) return answer_no("nobody is at the door");
  if (network_.parted(process_->name(), door->process_->name())) {
    network_.world().after(kKnockAgain, if_alive([number](SimDoor& self) { self.knock(number); }));
    return;
  }
  if (network_.per_mille(network_.conditions().connect_refused)) {
    return answer_no("the connection was refused");
  }
  auto cable = network_.lay_cable(process_, door->process_);
  found->second.cable = cable;
  door->let_in(cable);
  watch(cable, kInitiator, &SimDoor::continue_attempt, number);
  send(*cable, kInitiator, found->second.handshake.start());
}

void SimDoor::continue_attempt(Number number) {
  const auto found = attempts_.find(number);
  if (found == attempts_.end()) return;
  Attempt& attempt = found->second;
  wire::InFrame frame;
  switch (attempt.cable->receive(kInitiator, frame)) {
    case Link::Received::Nothing:
      return;
    case Link::Received::Closed:
      return fail(number, {std::nullopt, "the connection ended during the handshake"});
    case Link::Received::Frame:
      break;
  }
  HandshakeStep step = attempt.handshake.receive(frame.body.view());
  if (auto* next = std::get_if<SendThis>(&step)) {
    send(*attempt.cable, kInitiator, std::move(next->bytes));
  } else if (auto* success = std::get_if<Succeeded>(&step)) {
    succeed(number, std::move(success->peer));
  } else {
    auto& failed = std::get<Failed>(step);
    fail(number, {failed.refusal, std::move(failed.why)});
  }
}

void SimDoor::succeed(Number number, PeerIdentity peer) {
  auto attempt = attempts_.extract(number);
  process_->cancel(attempt.mapped().timer);
  const auto& cable = attempt.mapped().cable;
  cable->on_ready(kInitiator, nullptr);
  network_.world().note("connected", process_->name(), peer.name, hawser::number(peer.incarnation));
  attempt.mapped().done(
      std::make_shared<SimLink>(cable, kInitiator, std::move(peer), limits_, network_));
}

void SimDoor::fail(Number number, ConnectFailure failure) {
  auto attempt = attempts_.extract(number);
  if (attempt.empty()) return;
  process_->cancel(attempt.mapped().timer);
  if (const auto& cable = attempt.mapped().cable) {
    cable->on_ready(kInitiator, nullptr);
    cable->close(kInitiator);
  }
  network_.world().note("not connected", process_->name(), failure.why);
  attempt.mapped().done(std::move(failure));
}

// ---------------------------------------------------------------------------------- accepting

void SimDoor::let_in(const std::shared_ptr<SimCable>& cable) {
  if (visitors_.size() >= limits_.max_handshakes) return cable->close(kAcceptor);
  const Number number = next_number_++;
  Visitor visitor{AcceptorHandshake(host_, random_, wire::Welcome{}), cable};
  visitor.timer =
      process_->schedule_after(options_.handshake_timeout, if_alive([number](SimDoor& door) {
                                 door.turn_away(number, "the handshake was not finished in time");
                               }));
  visitors_.emplace(number, std::move(visitor));
  watch(cable, kAcceptor, &SimDoor::continue_visit, number);
}

void SimDoor::continue_visit(Number number) {
  const auto found = visitors_.find(number);
  if (found == visitors_.end()) return;
  const auto cable = found->second.cable;
  wire::InFrame frame;
  switch (cable->receive(kAcceptor, frame)) {
    case Link::Received::Nothing:
      return;
    case Link::Received::Closed:
      return turn_away(number, "the connection ended during the handshake");
    case Link::Received::Frame:
      break;
  }
  HandshakeStep step = found->second.handshake.receive(frame.body.view());
  if (auto* next = std::get_if<SendThis>(&step)) {
    send(*cable, kAcceptor, std::move(next->bytes));
  } else if (auto* failed = std::get_if<Failed>(&step)) {
    send(*cable, kAcceptor, std::move(failed->last_words));
    turn_away(number, failed->why);
  } else {
    auto& success = std::get<Succeeded>(step);
    send(*cable, kAcceptor, std::move(success.last_words));
    process_->cancel(found->second.timer);
    visitors_.erase(found);
    cable->on_ready(kAcceptor, nullptr);
    network_.world().note("accepted", process_->name(), success.peer.name,
                          hawser::number(success.peer.incarnation));
    host_.accepted(
        std::make_shared<SimLink>(cable, kAcceptor, std::move(success.peer), limits_, network_));
  }
}

void SimDoor::turn_away(Number number, const std::string& why) {
  auto visitor = visitors_.extract(number);
  if (visitor.empty()) return;
  process_->cancel(visitor.mapped().timer);
  visitor.mapped().cable->on_ready(kAcceptor, nullptr);
  visitor.mapped().cable->close(kAcceptor);
  network_.world().note("turned away", process_->name(), why);
  host_.turned_away(why);
}

void SimDoor::close() {
  if (std::exchange(closed_, true)) return;
  open_ = false;
  if (process_->dead()) attempts_.clear();  // nobody is left to be told
  while (!attempts_.empty()) {
    fail(attempts_.begin()->first, {std::nullopt, "the transport is closed"});
  }
  for (auto& [number, visitor] : visitors_) {
    process_->cancel(visitor.timer);
    visitor.cable->on_ready(kAcceptor, nullptr);
    visitor.cable->close(kAcceptor);
  }
  visitors_.clear();
}

}  // namespace hawser::transport::sim
