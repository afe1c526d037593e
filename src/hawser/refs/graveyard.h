#pragma once

#include "hawser/base/graveyard.h"
#include "hawser/refs/ids.h"

namespace hawser::refs {

// Of forks and values that are over. What a forgotten one can do is in PROTOCOL.md.
template <class Id>
using Graveyard = hawser::Graveyard<Id, IdHash>;

}  // namespace hawser::refs
