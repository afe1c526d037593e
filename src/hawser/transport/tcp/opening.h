#pragma once

#include <asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/limits.h"
#include "hawser/base/unique_function.h"
#include "hawser/transport/descriptor.h"
#include "hawser/transport/handshake.h"
#include "hawser/transport/tcp/byte_stream.h"
#include "hawser/transport/watched_socket.h"

namespace hawser::transport::tcp {

// A connected socket on its way to become a link: TLS if any, then the handshake. Control thread
// only. Holds at most Limits::max_handshake_bytes of what a stranger sends (plus what TLS holds).
class Opening : public std::enable_shared_from_this<Opening> {
 public:
  struct Opened {
    Descriptor socket;
    std::unique_ptr<ByteStream> stream;
    PeerIdentity peer;
  };
  using Outcome = std::variant<Opened, ConnectFailure>;
  using Done = UniqueFunction<void(Outcome)>;

  // `peer_name`: whom an initiator wants to reach.
  static std::shared_ptr<Opening> initiate(asio::io_context& context, Descriptor socket,
                                           std::unique_ptr<ByteStream> stream, const Limits& limits,
                                           InitiatorHandshake handshake, std::string peer_name);
  static std::shared_ptr<Opening> accept(asio::io_context& context, Descriptor socket,
                                         std::unique_ptr<ByteStream> stream, const Limits& limits,
                                         AcceptorHandshake handshake);

  // `done` is called exactly once, never from within start().
  void start(TimePoint deadline, Done done);
  // Fails it at once, if it is still under way.
  void abandon(std::string why);

 private:
  using Role = std::variant<InitiatorHandshake, AcceptorHandshake>;
  enum class Next { GoOn, AwaitReadable, AwaitWritable, Over };

  Opening(asio::io_context& context, Descriptor socket, std::unique_ptr<ByteStream> stream,
          const Limits& limits, Role role, std::string peer_name);

  void go_on();
  Next step();
  Next open_stream();
  Next write_answer();
  Next read_question();
  Next act_on(HandshakeStep step);
  Next fail(std::string why);
  Next finish();
  // Goes on when the socket is ready.
  auto resume();
  void conclude(Outcome outcome);

  WatchedSocket socket_;
  asio::steady_timer timer_;
  std::unique_ptr<ByteStream> stream_;
  HandshakeReader reader_;
  Role role_;
  std::string peer_name_;
  Done done_;

  bool stream_open_ = false;
  std::vector<std::byte> answer_;  // to be written before anything else happens
  std::size_t answered_ = 0;
  // Set once the handshake has come to its end; concluded when the last words are written.
  std::variant<std::monostate, PeerIdentity, ConnectFailure> verdict_;
};

}  // namespace hawser::transport::tcp
