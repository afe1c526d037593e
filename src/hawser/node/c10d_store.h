#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "hawser/agent/world_store.h"

namespace c10d {
class Store;
}

namespace hawser {

using agent::WorldStore;

// Any c10d store (TCPStore, FileStore, HashStore, PrefixStore, a subclass written in Python) as the
// rendezvous of a world. Keys are prefixed with "hawser/".
std::shared_ptr<WorldStore> use_store(c10::intrusive_ptr<c10d::Store> store);

struct RendezvousOptions {
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> world_size;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

// Opens the store behind a URL:
//   tcp://host:port   rank 0 hosts it, bound to that address only
//   file:///path      created with mode 0600
//   env://            MASTER_ADDR and MASTER_PORT; RANK and WORLD_SIZE fill in what is not given.
//                     Under torchrun the launcher's own store is used, so no second port is needed.
// Throws Error(Invalid) for a URL it cannot use and Error(Timeout) when nobody hosts the store.
std::shared_ptr<WorldStore> open_rendezvous(const std::string& url, RendezvousOptions& options);

}  // namespace hawser
