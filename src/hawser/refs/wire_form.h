#pragma once

#include "hawser/refs/records.h"
#include "hawser/wire/message.h"

// Records as they travel. wire::decode() has checked what it can; the rest is a plain translation.
namespace hawser::refs {

wire::References to_wire(const Message& message);
Message from_wire(wire::References&& message);

}  // namespace hawser::refs
