#include "hawser/transport/tcp/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include "hawser/base/error.h"
#include "hawser/transport/descriptor.h"

namespace hawser::transport::tcp {
namespace {

using asio::ip::address;

constexpr std::array kInterfaceVariables = {"HAWSER_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
                                            "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"};

std::optional<address> to_address(const sockaddr* from) {
  if (from == nullptr) return std::nullopt;
  if (from->sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, from, sizeof v4);
    return asio::ip::address_v4(ntohl(v4.sin_addr.s_addr));
  }
  if (from->sa_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, from, sizeof v6);
    asio::ip::address_v6::bytes_type bytes;
    std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
    return asio::ip::address_v6(bytes, v6.sin6_scope_id);
  }
  return std::nullopt;
}

// IPv4, then global IPv6, then link-local IPv6.
int preference(const address& which) {
  if (which.is_v4()) return 0;
  return which.to_v6().is_link_local() ? 2 : 1;
}

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    if (comma > 0) words.push_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return words;
}

struct InterfaceRule {
  explicit InterfaceRule(std::string_view text) {
    exclude = text.starts_with('^');
    if (exclude) text.remove_prefix(1);
    exact = text.starts_with('=');
    if (exact) text.remove_prefix(1);
    names = split(text);
  }
  // The position of the name that fits, or none.
  std::optional<std::size_t> match(const Interface& candidate) const {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (exact ? candidate.name == names[i] : candidate.name.starts_with(names[i])) return i;
    }
    return std::nullopt;
  }

  bool exclude;
  bool exact;
  std::vector<std::string_view> names;
};

std::string names_of(const std::vector<Interface>& available) {
  std::set<std::string> names;
  for (const Interface& each : available) names.insert(each.name);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

struct Resolved {
  explicit Resolved(const std::string& host) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    error = ::getaddrinfo(host.c_str(), "9", &hints, &found);
    list.reset(error == 0 ? found : nullptr);
  }
  int error = 0;
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> list{nullptr, ::freeaddrinfo};
};

address parse_listen_address(const std::string& text) {
  asio::error_code failed;
  const address numeric = asio::ip::make_address(text, failed);
  if (!failed) return numeric;
  const Resolved resolved(text);
  for (const addrinfo* each = resolved.list.get(); each; each = each->ai_next) {
    if (const auto found = to_address(each->ai_addr)) return *found;
  }
  throw Error(ErrorKind::Invalid,
              "cannot listen on '" + text + "': " + ::gai_strerror(resolved.error));
}

// The local address from which packets to a host leave.
std::optional<address> source_towards(const std::string& host) {
  const Resolved resolved(host);
  for (const addrinfo* each = resolved.list.get(); each; each = each->ai_next) {
    // Connecting a datagram socket sends nothing; it makes the kernel choose a route.
    const Descriptor probe(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe || ::connect(probe.get(), each->ai_addr, each->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) continue;
    const auto found = to_address(reinterpret_cast<const sockaddr*>(&own));
    if (found && !found->is_unspecified()) return found;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Interface> interfaces() {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, ::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* each = list.get(); each; each = each->ifa_next) {
    if ((each->ifa_flags & IFF_UP) == 0) continue;
    if (const auto own = to_address(each->ifa_addr)) {
      found.push_back({each->ifa_name, *own, (each->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return found;
}

asio::ip::address address_of_interface(std::string_view specification, std::string_view origin,
                                       const std::vector<Interface>& available) {
  const InterfaceRule rule(specification);
  const Interface* best = nullptr;
  std::array<std::size_t, 2> best_rank{};
  for (const Interface& each : available) {
    const auto matched = rule.match(each);
    if (rule.exclude ? matched || each.loopback : !matched) continue;
    const std::array<std::size_t, 2> rank = {rule.exclude ? 0 : *matched,
                                             static_cast<std::size_t>(preference(each.address))};
    if (best && rank >= best_rank) continue;
    best = &each;
    best_rank = rank;
  }
  if (best) return best->address;
  throw Error(ErrorKind::Invalid,
              std::string(origin) + "=" + std::string(specification) +
                  " fits no network interface that is up; there are: " + names_of(available));
}

std::optional<asio::ip::address> address_towards(std::string_view host) {
  const auto routed = source_towards(std::string(host));
  if (!routed || !routed->is_loopback()) return routed;
  // The networks for documentation: nobody has them, so that the default route leads there.
  auto outward = source_towards("192.0.2.1");
  if (!outward) outward = source_towards("2001:db8::1");
  return reachable_by_others(host, *routed, outward);
}

asio::ip::address reachable_by_others(std::string_view host, const asio::ip::address& routed,
                                      const std::optional<asio::ip::address>& outward) {
  asio::error_code is_name;
  asio::ip::make_address(std::string(host), is_name);
  const bool means_loopback =
      !is_name || host.find("localhost") != host.npos || host.find("loopback") != host.npos;
  return routed.is_loopback() && !means_loopback && outward ? *outward : routed;
}

asio::ip::address choose_address(const ListenWishes& wishes) {
  if (!wishes.address.empty()) return parse_listen_address(wishes.address);
  if (!wishes.interfaces.empty()) {
    return address_of_interface(wishes.interfaces, "the option interfaces", interfaces());
  }
  for (const char* variable : kInterfaceVariables) {
    const char* value = std::getenv(variable);
    if (value && *value) return address_of_interface(value, variable, interfaces());
  }
  if (!wishes.towards.empty()) {
    if (const auto found = address_towards(wishes.towards)) return *found;
    throw Error(ErrorKind::Invalid, "there is no route to '" + wishes.towards + "'");
  }
  return asio::ip::address_v4::loopback();
}

std::string write_endpoint(std::string_view scheme, const asio::ip::address& where,
                           std::uint16_t port) {
  std::string host;
  if (where.is_v6()) {
    // Without the scope: it numbers an interface of this host and means nothing on another.
    host = "[" + asio::ip::address_v6(where.to_v6().to_bytes()).to_string() + "]";
  } else {
    host = where.to_string();
  }
  return std::string(scheme) + ":" + host + ":" + std::to_string(port);
}

std::optional<Endpoint> read_endpoint(std::string_view scheme, std::string_view text) {
  if (!text.starts_with(scheme) || !text.substr(scheme.size()).starts_with(':')) {
    return std::nullopt;
  }
  text.remove_prefix(scheme.size() + 1);
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  Endpoint endpoint;
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (error != std::errc() || end != port.data() + port.size() || endpoint.port == 0) {
    return std::nullopt;
  }
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || (!bracketed && host.find(':') != std::string_view::npos)) return std::nullopt;
  endpoint.host = host;
  return endpoint;
}

std::vector<asio::ip::tcp::endpoint> numeric_candidates(const Endpoint& endpoint) {
  asio::error_code failed;
  const address numeric = asio::ip::make_address(endpoint.host, failed);
  if (failed) return {};
  const bool needs_scope =
      numeric.is_v6() && numeric.to_v6().is_link_local() && numeric.to_v6().scope_id() == 0;
  if (!needs_scope) return {{numeric, endpoint.port}};
  std::set<unsigned long> scopes;
  for (const Interface& each : interfaces()) {
    if (each.address.is_v6() && each.address.to_v6().is_link_local()) {
      scopes.insert(each.address.to_v6().scope_id());
    }
  }
  std::vector<asio::ip::tcp::endpoint> candidates;
  for (const unsigned long scope : scopes) {
    candidates.emplace_back(asio::ip::address_v6(numeric.to_v6().to_bytes(), scope), endpoint.port);
  }
  return candidates;
}

}  // namespace hawser::transport::tcp
