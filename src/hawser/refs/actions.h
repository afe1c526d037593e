#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "hawser/base/error.h"
#include "hawser/refs/ids.h"
#include "hawser/refs/records.h"

namespace hawser::refs {

// Somebody at the owner who waits for a value: a number of the layer above.
enum class Waiter : std::uint64_t {};

// What became of a value somebody asked for.
enum class Finding : std::uint8_t {
  Ready,    // it is there
  Failed,   // what should have made it failed; the layer above keeps the error in its place
  Gone,     // there is no such value, and there will not be
  Pending,  // not yet: Wake will tell
};

// What a ledger wants done. All of it may be done after the ledger's lock is released, in order.

// Over a connection to exactly this incarnation. Without one, drop the message (it is sent again)
// and seek the node.
struct Send {
  Party to;
  Message message;
  bool operator==(const Send&) const = default;
};
// Connect, if there is no connection; tell by met() or lost().
struct Reach {
  std::string peer;
  bool operator==(const Reach&) const = default;
};
// It goes on as if it were alive, but has been given up: tell it so (Goodbye with declared_lost).
struct TellLost {
  Party party;
  bool operator==(const TellLost&) const = default;
};
// The value has no holders any more, or the function that makes it works for nobody. Once for each
// value that was made or whose creation was accepted. Its destructor runs without locks.
struct DropValue {
  RefId ref;
  bool operator==(const DropValue&) const = default;
};
// Once for each wait() that was Pending, unless it was called off.
struct Wake {
  Waiter waiter;
  Finding finding;  // not Pending
  bool operator==(const Wake&) const = default;
};
// The owner has this fork on its list.
struct Confirmed {
  ForkId fork;
  bool operator==(const Confirmed&) const = default;
};
// The reference can be used no more; `why` answers every later use. Once, and nothing after it.
struct Failed {
  ForkId fork;
  Error why;
};

using Action = std::variant<Send, Reach, TellLost, DropValue, Wake, Confirmed, Failed>;
using Actions = std::vector<Action>;

}  // namespace hawser::refs
