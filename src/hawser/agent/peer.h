#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hawser/agent/session.h"
#include "hawser/base/fault.h"
#include "hawser/base/guarded.h"

namespace hawser::agent {

class Peer;

// A name as messages show it.
inline std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

// Where a call that had to wait for a connection has got to; shared with whoever may cancel it.
struct CallPlace {
  std::weak_ptr<Peer> peer;
  std::weak_ptr<Session> session;  // once it was sent
  CallId id{};
  std::optional<Error> cancelled;  // meanwhile
};

// A call that waits for a connection to its callee.
struct WaitingCall {
  std::shared_ptr<Guarded<CallPlace>> place;
  OutstandingCall call;
  wire::Call message;  // `function` is set from call.function when it is sent
};

// A node of the world by its name, whether or not it is there. At most one session at a time.
//
//   PEER-1  Two nodes that connect to each other at the same time end with one connection. The
//           node whose name sorts first refuses the other while it is connecting itself, and does
//           not begin to while it has welcomed the other's connection and that is on its way.
//   PEER-2  A connection that is dead at the other end only does not keep a new one out for long.
//           Who connects although there is a connection is refused, since its attempt may be older;
//           and is asked for a sign of life on the one there is. Without any for `suspect_after`
//           that one is closed, and the next attempt is let in, as the same incarnation.
class Peer {
 public:
  // What is being done to get a connection. There is one seeker at a time; it ends by connecting,
  // by giving up, or because nobody wants the connection any more.
  enum class Seeking { No, InDirectory, Connecting };

  struct State {
    std::shared_ptr<Session> session;
    Seeking seeking = Seeking::No;
    Deadline arriving{TimePoint::min()};  // until then, a connection made by the peer may arrive
    int attempts = 0;                     // to connect, in a row
    Duration next_pause{};                // before the next look-up or attempt
    std::string waiting_for;              // for the message of a call that times out meanwhile
    std::deque<WaitingCall> waiting;
    std::size_t waiting_bytes = 0;
    std::size_t departing = 0;  // taken from `waiting`, not yet sent or failed
    std::map<std::string, std::string, std::less<>> choice;  // transport -> why (not)
    std::optional<Incarnation> last_session;                 // of the sessions before: the highest
    Incarnation barred{};       // up to this one it has been given up, and is not let in again
    std::optional<Error> loss;  // how the last session ended
  };

  explicit Peer(std::string name) : name(std::move(name)) {}

  // Whether that incarnation has been given up, or a later one has been here.
  static bool is_stale(const State& state, Incarnation incarnation) {
    if (HAWSER_FAULT(kIgnoreIncarnation)) return false;
    return incarnation <= state.barred ||
           (state.last_session && incarnation < *state.last_session) ||
           (state.session && incarnation < state.session->peer().incarnation);
  }

  const std::string name;
  Guarded<State> state;
};

}  // namespace hawser::agent
