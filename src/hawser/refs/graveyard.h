#pragma once

#include "hawser/base/graveyard.h"
#include "hawser/refs/ids.h"

namespace hawser::refs {

// Of forks and values that are over. What a forgotten one can do is in PROTOCOL.md.
using hawser::Graveyard;

template <class Tag>
Plot plot_of(const UniqueId<Tag>& id) {
  return {id.on, id.local};
}

}  // namespace hawser::refs
