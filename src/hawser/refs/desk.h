#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/refs/actions.h"
#include "hawser/refs/courier.h"
#include "hawser/refs/roster.h"

namespace hawser::refs {

struct LedgerOptions {
  CourierOptions courier{};
  // How long after a ticket has left the owner waits for its claim before it asks. Longer than a
  // message can be on its way, or a ticket may be refused that would still have come.
  Duration ask_after = std::chrono::seconds(10);
  // How long the owner waits for the creation of a value that others speak of already.
  Duration await_creation = std::chrono::seconds(60);
  // How long an id that is over is remembered, and how many pages of them. Longer than a message
  // can be on its way.
  Duration remember = std::chrono::seconds(60);
  std::size_t max_remembered = 65'536;
  // Between attempts to reach a node that matters and is not connected; doubles.
  Duration first_reach = std::chrono::milliseconds(250);
  Duration last_reach = std::chrono::seconds(5);
};

// Who this node is. `origin` must be nobody else's (ids.h).
struct Self {
  std::string name;
  Incarnation incarnation{};
  std::uint64_t origin = 0;
};

// What the two halves of a ledger share.
struct Desk {
  Desk(Self the_self, LedgerOptions the_options)
      : self(std::move(the_self)), options(the_options), courier(options.courier, roster) {}
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;

  Self self;
  const LedgerOptions options;
  std::vector<std::uint64_t> earlier_origins;  // of this node, before it rejoined
  std::uint64_t next_local = 0;                // one counter for references and forks
  Roster roster;
  Courier courier;
  Actions actions;

  template <class Id>
  Id new_id() {
    return Id{self.origin, next_local++};
  }
};

}  // namespace hawser::refs
