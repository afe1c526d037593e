#pragma once

#include <string>
#include <vector>

#include "hawser/agent/agent.h"
#include "hawser/agent/departure.h"
#include "hawser/base/guarded.h"
#include "hawser/base/timers.h"

namespace hawser::agent {

// Joins a Departure to an agent: whoever builds the node passes on_control_message, on_peer_lost
// and on_given_up of the agent on to it, from the start, since others may ask before this node.
//
// Thread-safe; never blocks. Timers are stopped before it is destroyed.
class DepartureDriver {
 public:
  using Done = UniqueFunction<void(std::vector<std::string> lost)>;

  DepartureDriver(std::string self, Agent& agent, const Clock& clock, Timers& timers,
                  Duration tick = std::chrono::milliseconds(100));

  // Asks to leave. `done` is called once, on whichever thread learns that the world has ended; not
  // at all after cancel(). Throws Error(Invalid) the second time, and for a world without this
  // node.
  void begin(Departure::Members members, Done done);
  // The node closes without waiting for the others any longer.
  void cancel();
  // Members that keep this node from leaving; empty before begin().
  std::vector<std::string> waiting_for() const;

  // What the agent reports.
  void control_message(const std::string& peer, const wire::Message& message);
  void connection_lost(const std::string& peer);
  void given_up(const std::string& peer);

 private:
  struct State {
    explicit State(std::string self) : departure(std::move(self)) {}
    Departure departure;
    Done done;
    Agent::Names members{};  // whose calls are counted: guests come and go as they like
    bool cancelled = false;
  };

  template <class Event>
  void handle(Event event);
  void perform(Departure::Actions actions);
  void perform(Departure::Send& send);
  void perform(Departure::Reach& reach);
  void perform(Departure::Finish& finish);
  void schedule_tick();

  const std::string self_;
  Agent& agent_;
  const Clock& clock_;
  Timers& timers_;
  const Duration tick_;
  mutable Guarded<State> state_;
};

}  // namespace hawser::agent
