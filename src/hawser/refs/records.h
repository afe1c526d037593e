#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "hawser/base/ids.h"
#include "hawser/refs/ids.h"

// What ledgers tell each other; PROTOCOL.md says why. Plain values.
namespace hawser::refs {

// One life of a node.
struct Party {
  std::string name{};
  Incarnation incarnation{};
  auto operator<=>(const Party&) const = default;
};

// --- holder to owner ---
// I have received this ticket, and hold on to the value.
struct Claim {
  RefId ref;
  ForkId fork;
  bool operator==(const Claim&) const = default;
};
// I gave this ticket to `child`, and the message that carried it is out of my hands.
struct Share {
  RefId ref;
  ForkId fork;
  Party child;
  bool operator==(const Share&) const = default;
};
// I hold on to the value no longer.
struct Drop {
  RefId ref;
  ForkId fork;
  bool operator==(const Drop&) const = default;
};
// I have no such ticket, and shall not accept it should it still come.
struct Refuse {
  RefId ref;
  ForkId fork;
  bool operator==(const Refuse&) const = default;
};

// --- owner to holder ---
// You are on the list. Not said of forks that the owner itself gave.
struct Confirm {
  RefId ref;
  ForkId fork;
  bool operator==(const Confirm&) const = default;
};
// There is no such value: it is gone, or it never came into being.
struct Deny {
  RefId ref;
  ForkId fork;
  bool operator==(const Deny&) const = default;
};
// You were given this ticket a while ago. Answered by Refuse, unless a Claim is on its way.
struct Inquire {
  RefId ref;
  ForkId fork;
  bool operator==(const Inquire&) const = default;
};

using Record = std::variant<Claim, Share, Drop, Refuse, Confirm, Deny, Inquire>;

// Records between two incarnations, each acted on once and in the order of their numbers.
struct Message {
  std::uint64_t expected = 1;  // the number of the next record that the sender waits for
  std::uint64_t first = 1;     // of records[0]
  std::vector<Record> records{};
  bool operator==(const Message&) const = default;
};

}  // namespace hawser::refs
