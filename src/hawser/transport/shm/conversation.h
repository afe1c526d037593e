#pragma once

#include <asio/local/stream_protocol.hpp>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "hawser/base/unique_function.h"
#include "hawser/transport/descriptor.h"
#include "hawser/transport/shm/shm_link.h"
#include "hawser/transport/shm/shm_transport.h"

namespace hawser::transport::shm {

// What all conversations of a transport share; outlives them as long as they are not finished.
struct Surroundings {
  ControlLoop& control;
  Host& host;
  Random& random;
  BufferPool& pool;
  Doorbell& bell;
  const Limits limits;
  const ShmOptions options;
};

// How one link comes about, at one end (see README.md). Control thread only. Finishes exactly once;
// what is still under way in the loop then finds it finished and touches nothing.
class Conversation {
 public:
  using Outcome = std::variant<std::shared_ptr<ShmLink>, ConnectFailure>;
  using Finished = UniqueFunction<void(Conversation&, Outcome)>;

  virtual ~Conversation() = default;
  // Once. May finish before it returns.
  virtual void start() = 0;
  virtual void fail(std::string why, std::optional<wire::RefusalReason> refusal = {}) = 0;
};

std::shared_ptr<Conversation> make_initiator(Surroundings& around,
                                             asio::local::stream_protocol::endpoint to,
                                             std::string peer_name, Deadline deadline,
                                             Conversation::Finished finished);
std::shared_ptr<Conversation> make_acceptor(Surroundings& around, Descriptor socket,
                                            std::size_t ring_bytes,
                                            Conversation::Finished finished);

// Empty when there is none to be had; errno says why.
Descriptor make_socket();

}  // namespace hawser::transport::shm
