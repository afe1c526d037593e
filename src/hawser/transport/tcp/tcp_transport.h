#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "hawser/base/buffer_pool.h"
#include "hawser/base/clock.h"
#include "hawser/base/limits.h"
#include "hawser/base/random.h"
#include "hawser/transport/control_loop.h"
#include "hawser/transport/tcp/tls.h"
#include "hawser/transport/transport.h"

namespace hawser::transport::tcp {

struct TcpOptions {
  // Where to listen; the first that is set decides. Nothing set: the variables HAWSER_, TP_, GLOO_
  // and NCCL_SOCKET_IFNAME in this order, else `towards`, else loopback. See address.h.
  std::string address;  // "10.0.0.5", "::1", a host name; "0.0.0.0" or "::" only by asking for it
  std::string interfaces;  // "eth0,ib", "=eth0", "^docker,lo"
  std::string towards;     // a host that the others can reach too, such as the rendezvous
  std::uint16_t port = 0;  // 0: any
  // What to tell others instead of the address listened on; needed behind NAT, and with 0.0.0.0
  // unless `towards` is set.
  std::string advertised_host;
  Duration handshake_timeout = std::chrono::seconds(10);  // of a connection that was accepted
  std::optional<TlsOptions> tls;
};

// The tcp transport; named "tls", with endpoints "tls:host:port", when it has TLS options: the two
// do not talk to each other.
//
// Everything given outlives the transport, and pool and host also its links. Throws Error(Invalid)
// when the TLS files cannot be used.
std::unique_ptr<Transport> create_tcp(ControlLoop& control, Host& host, Random& random,
                                      BufferPool& pool, const Limits& limits, TcpOptions options);

}  // namespace hawser::transport::tcp
