#include "hawser/agent/departure_driver.h"

#include <algorithm>
#include <utility>

namespace hawser::agent {
namespace {

// The messages that belong to leaving together, out of all that a connection carries.
std::optional<Departure::Message> departure_message(const wire::Message& message) {
  return std::visit(
      []<class T>(const T& received) -> std::optional<Departure::Message> {
        if constexpr (std::is_constructible_v<Departure::Message, const T&>) {
          return Departure::Message(received);
        } else {
          return std::nullopt;
        }
      },
      message);
}

}  // namespace

DepartureDriver::DepartureDriver(std::string self, Agent& agent, const Clock& clock, Timers& timers,
                                 Duration tick)
    : self_(std::move(self)),
      agent_(agent),
      clock_(clock),
      timers_(timers),
      tick_(tick),
      state_(State(self_)) {}

void DepartureDriver::begin(Departure::Members members, Done done) {
  const bool included = std::any_of(members.begin(), members.end(),
                                    [&](const auto& member) { return member.second == self_; });
  if (!included) throw Error(ErrorKind::Invalid, "'" + self_ + "' is not a member of that world");
  Agent::Names names;
  for (const auto& [rank, name] : members) names.insert(name);
  const Activity activity = agent_.activity(names);
  Departure::Actions actions;
  {
    auto state = state_.lock();
    if (state->cancelled) return;  // and `done` is dropped
    if (state->departure.asked()) throw Error(ErrorKind::Invalid, "leaving already");
    state->done = std::move(done);
    state->members = std::move(names);
    actions = state->departure.begin(std::move(members), activity);
  }
  perform(std::move(actions));
  schedule_tick();
}

void DepartureDriver::cancel() {
  Done dropped;  // dies after the lock is released
  auto state = state_.lock();
  state->cancelled = true;
  dropped = std::move(state->done);
  state.unlock();
}

std::vector<std::string> DepartureDriver::waiting_for() const {
  return state_.lock()->departure.waiting_for();
}

// ------------------------------------------------------------------------------- events

template <class Event>
void DepartureDriver::handle(Event event) {
  const Agent::Names members = state_.lock()->members;
  const Activity activity = agent_.activity(members);
  Departure::Actions actions;
  {
    auto state = state_.lock();
    if (state->cancelled) return;
    actions = event(state->departure, activity);
  }
  perform(std::move(actions));
}

void DepartureDriver::control_message(const std::string& peer, const wire::Message& message) {
  if (const auto received = departure_message(message)) {
    handle([&](Departure& departure, const Activity& activity) {
      return departure.receive(peer, *received, activity);
    });
  }
}

void DepartureDriver::connection_lost(const std::string& peer) {
  handle([&](Departure& departure, const Activity& activity) {
    return departure.disconnected(peer, activity);
  });
}

void DepartureDriver::given_up(const std::string& peer) {
  handle([&](Departure& departure, const Activity& activity) {
    return departure.given_up(peer, activity);
  });
}

void DepartureDriver::schedule_tick() {
  timers_.schedule(clock_.now() + tick_, [this] {
    handle([](Departure& departure, const Activity& activity) { return departure.tick(activity); });
    const auto over = [&] {
      auto state = state_.lock();
      return state->cancelled || state->departure.finished();
    };
    if (!over()) schedule_tick();
  });
}

// ------------------------------------------------------------------------------- actions

void DepartureDriver::perform(Departure::Actions actions) {
  for (auto& action : actions) {
    std::visit([&](auto& each) { perform(each); }, action);
  }
}

void DepartureDriver::perform(Departure::Send& send) {
  std::visit([&](const auto& message) { agent_.send_to(send.to, wire::encode(message)); },
             send.message);
}

void DepartureDriver::perform(Departure::Reach& reach) {
  if (!agent_.reach(reach.peer)) return;
  handle([&](Departure& departure, const Activity& activity) {
    return departure.reached(reach.peer, activity);
  });
}

void DepartureDriver::perform(Departure::Finish& finish) {
  Done done = std::move(state_.lock()->done);
  if (done) done(std::move(finish.lost));
}

}  // namespace hawser::agent
