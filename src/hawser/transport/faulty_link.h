#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/guarded.h"
#include "hawser/base/timers.h"
#include "hawser/transport/doorbell.h"
#include "hawser/transport/link.h"

namespace hawser::transport {

// What is to go wrong, by the kind of message, for programs that test how they cope. The names are
// those of the original's message types; kinds_of() says which frame has which.
struct Faults {
  std::set<std::string, std::less<>> fail{};
  std::map<std::string, Duration, std::less<>> delay{};
  int times = 1;  // how often each message fails before it gets through
};

// Empty for frames that are never tampered with. Records of references have one each; a frame
// that carries several has several.
std::vector<std::string_view> kinds_of(const wire::OutFrame& frame);
// All that there are.
const std::set<std::string_view>& all_message_kinds();

// A link on which some of the frames that are sent fail or come late. A call that fails is answered
// at once, as if the peer had refused it; a message that nobody answers is lost.
class FaultyLink final : public Link, public std::enable_shared_from_this<FaultyLink> {
 public:
  FaultyLink(std::shared_ptr<Link> link, std::shared_ptr<Doorbell> bell, const Clock& clock,
             Timers& timers, std::shared_ptr<const Faults> faults);

  std::string_view transport() const override { return link_->transport(); }
  const PeerIdentity& peer() const override { return link_->peer(); }
  bool send(wire::OutFrame frame) override;
  bool backlogged(std::size_t limit) override { return link_->backlogged(limit); }
  Received receive(wire::InFrame& frame) override;
  bool pending() const override;
  int descriptor() const override { return link_->descriptor(); }
  bool wants_write() const override { return link_->wants_write(); }
  bool announced_by_descriptor() const override { return false; }
  void close() override { link_->close(); }
  std::optional<std::string> close_reason() const override { return link_->close_reason(); }
  std::optional<std::uint64_t> pulse() const override { return link_->pulse(); }
  LinkStats stats() const override { return link_->stats(); }
  LinkTraffic traffic() const override { return link_->traffic(); }

 private:
  bool is_to_fail(std::string_view kind, const wire::OutFrame& frame);
  void answer_with_failure(const wire::OutFrame& call, std::string_view kind);
  void send_later(wire::OutFrame&& frame, Duration delay);

  const std::shared_ptr<Link> link_;
  const std::shared_ptr<Doorbell> bell_;
  const Clock& clock_;
  Timers& timers_;
  const std::shared_ptr<const Faults> faults_;
  struct State {
    std::map<std::string, int> failed;         // message -> how often
    std::vector<wire::InFrame> own_answers{};  // to be received
  };
  mutable Guarded<State> state_;
};

}  // namespace hawser::transport
