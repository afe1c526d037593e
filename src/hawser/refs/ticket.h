#pragma once

#include "hawser/refs/ids.h"
#include "hawser/wire/message.h"

namespace hawser::refs {

// The ids as they travel.
inline RefId ref_of(const wire::Creation& creation) {
  return {creation.ref.on, creation.ref.local};
}
inline ForkId fork_of(const wire::Creation& creation) {
  return {creation.fork.on, creation.fork.local};
}
inline RefId ref_of(const wire::ReferenceTicket& ticket) {
  return {ticket.ref_on, ticket.ref_local};
}
inline ForkId fork_of(const wire::ReferenceTicket& ticket) {
  return {ticket.fork_on, ticket.fork_local};
}

}  // namespace hawser::refs
