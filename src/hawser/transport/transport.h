#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/error.h"
#include "hawser/base/ids.h"
#include "hawser/base/unique_function.h"
#include "hawser/transport/link.h"
#include "hawser/wire/message.h"

namespace hawser::transport {

// Who we are in a handshake. May change during a node's life: a node that was declared lost by a
// peer goes on under a new incarnation.
struct Identity {
  std::string name;
  Incarnation incarnation{};
  WorldId world;
  std::vector<std::byte> secret;  // shared by all nodes of the world
  std::optional<std::uint32_t> rank{};
};

// What a transport asks of the node it serves. Called on the control thread.
class Host {
 public:
  virtual ~Host() = default;
  virtual Identity identity() const = 0;
  // May this stranger come in, if it proves itself? Its version, world and the name it asks for are
  // already checked. Must not depend on who is here: anybody may ask.
  virtual std::optional<wire::Refusal> admit(const wire::Hello& stranger) = 0;
  // It has proved itself and is about to be told Welcome: may it? It is then on its way to be
  // accepted. Asks admit() again, since much may have happened.
  virtual std::optional<wire::Refusal> welcome(const wire::Hello& stranger) {
    return admit(stranger);
  }
  // An accepted connection has finished its handshake.
  virtual void accepted(std::shared_ptr<Link> link) = 0;
  // A connection was turned away, and not for an ordinary reason; for counting. The transport has
  // logged it.
  virtual void turned_away(std::string_view why) = 0;
  // A link's wants_write() became true: its descriptor must be watched for writing. Any thread.
  virtual void watch_writable(Link& link) = 0;
  // A link has begun to hold frames back: will somebody flush it soon? Any thread.
  virtual bool held_back(std::shared_ptr<Link> /*link*/) { return false; }
};

struct ConnectFailure {
  std::optional<wire::RefusalReason> refusal;  // the peer answered, and said no
  std::string why;
};
// Whether members of a world refuse each other so in the course of things: two that connect at
// once, a node that starts or ends.
bool is_ordinary(const ConnectFailure& failure);
using ConnectOutcome = std::variant<std::shared_ptr<Link>, ConnectFailure>;

// A way to reach other nodes. One instance per node.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;

  // Opens the door and says where it is: "tcp:10.0.0.5:41233", "tcp:[fe80::1]:41233",
  // "shm:<host>:<socket>". Throws Error(Invalid) with the reason when that cannot be done.
  virtual std::string listen() = 0;

  // Why `endpoint` cannot be reached from here, as far as can be told without trying.
  virtual std::optional<std::string> objection(std::string_view endpoint) const = 0;

  // Connects, shakes hands, and makes a real round trip through whatever will carry the frames.
  // `done` is called exactly once, on the control thread, before `deadline` or soon after it.
  virtual void connect(std::string_view endpoint, std::string_view peer_name, Deadline deadline,
                       UniqueFunction<void(ConnectOutcome)> done) = 0;

  // Closes the door and fails what is still connecting. Links that exist live on. Idempotent; after
  // it returns no callback of this transport runs or will run.
  virtual void close() = 0;
};

}  // namespace hawser::transport
