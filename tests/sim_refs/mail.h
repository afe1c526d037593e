#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "hawser/refs/actions.h"
#include "hawser/refs/ticket.h"

namespace hawser::refs::simulation {

// Names of the model, which travel beside the ids under test and never depend on them.
using ValueNumber = std::uint64_t;
using TicketNumber = std::uint64_t;  // 0: none
using CallNumber = std::uint64_t;

struct SimTicket {
  wire::ReferenceTicket ticket;
  TicketNumber number = 0;
  ValueNumber value = 0;
};

inline std::vector<ForkId> forks_of(const std::vector<SimTicket>& tickets) {
  std::vector<ForkId> forks;
  for (const SimTicket& each : tickets) forks.push_back(fork_of(each.ticket));
  return forks;
}

enum class Kind { Letter, Create, CreateReply, Carry, CarryReply, Use, UseReply };

// Everything that travels. Fields that a kind does not name are empty.
struct Envelope {
  Kind kind = Kind::Letter;
  Party from, to;
  Message letter{};                  // Letter: from ledger to ledger
  CallNumber call = 0;               // the others
  std::vector<SimTicket> tickets{};  // Carry, CarryReply; Create: the one that is created
  // Use, UseReply: a call on a reference.
  RefId ref{};
  ValueNumber value = 0;  // whose it is meant to be; in the reply: whose was found
  TicketNumber used = 0;
  Finding finding = Finding::Pending;
  bool wants_tickets = false;  // Carry: the callee is to answer with references of its own
};

std::string_view to_string(Kind kind);

}  // namespace hawser::refs::simulation
