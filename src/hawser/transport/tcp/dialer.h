#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <string>

#include "hawser/base/clock.h"
#include "hawser/base/limits.h"
#include "hawser/base/random.h"
#include "hawser/transport/tcp/address.h"
#include "hawser/transport/tcp/opening.h"
#include "hawser/transport/tcp/tls.h"
#include "hawser/transport/transport.h"
#include "hawser/transport/watched_socket.h"

namespace hawser::transport::tcp {

// One attempt to reach a node: resolves its host, tries the addresses one after the other, and
// shakes hands. Control thread only.
class Dialer : public std::enable_shared_from_this<Dialer> {
 public:
  // What is common to all attempts of a transport; outlives them. `tls` may be null.
  struct Means {
    asio::io_context& context;
    Host& host;
    Random& random;
    const Limits& limits;
    const TlsContext* tls;
  };

  Dialer(const Means& means, Endpoint endpoint, std::string peer_name, Deadline deadline,
         Opening::Done done);

  // `done` is called exactly once, never from within start().
  void start();
  // Fails it at once, if it is still under way.
  void abandon(std::string why);

 private:
  void resolve();
  void try_next();
  void connect_to(const asio::ip::tcp::endpoint& candidate);
  void connected();
  void shake_hands();
  void attempt_failed(ConnectFailure failure);
  void conclude(Opening::Outcome outcome);
  // Divides what is left of the time evenly among the addresses that are left.
  TimePoint attempt_deadline() const;

  const Means means_;
  const Endpoint endpoint_;
  const std::string peer_name_;
  const TimePoint deadline_;
  Opening::Done done_;

  asio::ip::tcp::resolver resolver_;
  WatchedSocket socket_;
  asio::steady_timer timer_;
  std::deque<asio::ip::tcp::endpoint> candidates_;
  std::string trying_;  // for messages
  ConnectFailure last_failure_;
  std::shared_ptr<Opening> opening_;
};

// A stream socket as all of ours are: non-blocking, close-on-exec. Empty when there is none to be
// had.
Descriptor make_socket(int family);
void set_no_delay(int fd);

}  // namespace hawser::transport::tcp
