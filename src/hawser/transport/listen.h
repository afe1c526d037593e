#pragma once

#include <cstdint>
#include <string>

#include "hawser/transport/descriptor.h"

namespace hawser::transport {

// A listening TCP socket on the addresses of `host` alone. Throws Error(Invalid) with the reason.
Descriptor listen_on(const std::string& host, std::uint16_t port);

}  // namespace hawser::transport
