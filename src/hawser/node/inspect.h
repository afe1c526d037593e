#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hawser/agent/agent.h"
#include "hawser/agent/crew.h"
#include "hawser/node/backward.h"

namespace hawser {

// Memory that messages take, in bytes.
struct MemoryReport {
  std::size_t lent = 0;     // own memory, in what was received and is alive
  std::size_t kept = 0;     // own memory, waiting to be used again
  std::size_t adopted = 0;  // of peers' arenas, in what was received and is alive
  std::size_t shared = 0;   // mapped for links by shared memory, in use or not
  std::size_t to_send = 0;  // waiting to be sent, or for a connection
};

// What a node is doing right now, as data; to_text() for people.
struct NodeReport {
  std::string name;
  std::uint64_t incarnation = 0;
  std::vector<std::string> endpoints;
  std::vector<std::string> unavailable;  // transports that could not be used at all, and why
  std::vector<agent::PeerReport> peers;
  std::vector<agent::CallInFlight> calls;
  agent::CrewStats crew;
  MemoryReport memory;
  std::uint64_t connections_turned_away = 0;
  std::vector<std::string> shutdown_waits_for;  // members that have not arrived
  std::vector<std::string> functions;           // served, with their signatures
  AutogradCounts autograd;                      // contexts and backward passes it takes part in

  std::string to_text() const;
};

}  // namespace hawser
