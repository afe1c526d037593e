#pragma once

#include <cstdint>
#include <string>

#include "hawser/base/clock.h"
#include "hawser/transport/descriptor.h"

namespace hawser::transport {

// A listening TCP socket on the addresses of `host` alone. Throws Error(Invalid) with the reason.
Descriptor listen_on(const std::string& host, std::uint16_t port);

// Returns when somebody listens there. Throws Error(Timeout) when nobody does by the deadline, and
// Error(Invalid) when the host is still unknown then.
void wait_for_listener(const std::string& host, std::uint16_t port, Deadline deadline);

}  // namespace hawser::transport
