#pragma once

#include <memory>

#include "hawser/base/buffer_pool.h"
#include "hawser/transport/doorbell.h"
#include "hawser/transport/link.h"

namespace hawser::transport {

// The link from a node to itself. Copies like any other, so that a handler cannot tell where its
// caller is: what it gets is its own, and the caller may write to its arguments again.
std::shared_ptr<Link> make_loopback(PeerIdentity self, std::shared_ptr<Doorbell> bell,
                                    std::shared_ptr<BufferPool> pool);

}  // namespace hawser::transport
