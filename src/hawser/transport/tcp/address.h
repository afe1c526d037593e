#pragma once

#include <sys/socket.h>

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Where to listen, and how an endpoint is written. Pure except for asking the kernel about its
// interfaces and routes.
namespace hawser::transport::tcp {

struct Interface {
  std::string name;
  asio::ip::address address;
  bool loopback = false;
};
// Those that are up, in the kernel's order; one entry per address.
std::vector<Interface> interfaces();

// One address by a specification as NCCL_SOCKET_IFNAME has it: names separated by commas, each a
// prefix ("eth"); "=eth0" means exactly that name; "^docker,lo" means any but those. The earliest
// name that matches wins, and of its addresses IPv4 before global IPv6 before link-local IPv6.
// Throws Error(Invalid) that names `origin` and the interfaces there are.
asio::ip::address address_of_interface(std::string_view specification, std::string_view origin,
                                       const std::vector<Interface>& available);

// The local address from which packets to `host` would leave; none when there is no route. See
// reachable_by_others() for a name that is loopback here.
std::optional<asio::ip::address> address_towards(std::string_view host);
// A host that is asked about its own name often answers with loopback (127.0.1.1 in Debian's
// /etc/hosts), and the same name means another address to all others. Then, the one from which
// packets leave the host: `outward`, if there is one. Names of loopback itself mean loopback.
asio::ip::address reachable_by_others(std::string_view host, const asio::ip::address& routed,
                                      const std::optional<asio::ip::address>& outward);

// What a node listens on:
struct ListenWishes {
  std::string address;     // exactly this one; the only way to get 0.0.0.0 or ::
  std::string interfaces;  // else, one of this interface
  // else, HAWSER_SOCKET_IFNAME, TP_SOCKET_IFNAME, GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME
  std::string towards;  // else, the one that packets to this host leave from
  // else, loopback
};
// Throws Error(Invalid) with the reason when a wish cannot be met.
asio::ip::address choose_address(const ListenWishes& wishes);

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
};
// "<scheme>:10.0.0.5:41233", "<scheme>:[fe80::1]:41233", "<scheme>:name:41233"
std::string write_endpoint(std::string_view scheme, const asio::ip::address& address,
                           std::uint16_t port);
std::optional<Endpoint> read_endpoint(std::string_view scheme, std::string_view text);

// What to connect to for a numeric host; empty when it is a name. A link-local address without a
// scope is meaningful on every interface that has such addresses: one candidate for each.
std::vector<asio::ip::tcp::endpoint> numeric_candidates(const Endpoint& endpoint);

}  // namespace hawser::transport::tcp
