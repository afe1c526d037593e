#include "hawser/node/c10d_store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "hawser/base/error.h"
#include "hawser/transport/descriptor.h"
#include "hawser/transport/listen.h"

namespace hawser {
namespace {

using transport::Descriptor;

[[noreturn]] void unusable(const std::string& url, const std::string& why) {
  throw Error(ErrorKind::Invalid, "rendezvous '" + url + "': " + why);
}

// c10d reports failures as C++ exceptions of many kinds; here there is one.
template <class F>
auto translated(F ask) {
  try {
    return ask();
  } catch (const std::exception& error) {
    throw Error(ErrorKind::PeerLost, std::string("the rendezvous store failed: ") +
                                         std::string(error.what()).substr(0, 500));
  }
}

class C10dStore final : public agent::WorldStore {
 public:
  // The listener is the store's, who closes it; but only we see to it that children do not keep it.
  C10dStore(c10::intrusive_ptr<c10d::PrefixStore> store, int listener)
      : store_(std::move(store)), listener_(listener) {}
  ~C10dStore() override {
    if (listener_ >= 0) transport::keep_in_children(listener_);
  }

  std::optional<std::string> get(const std::string& key) override {
    return translated([&]() -> std::optional<std::string> {
      if (!store_->check({key})) return std::nullopt;
      const std::vector<std::uint8_t> value = store_->get(key);
      return std::string(value.begin(), value.end());
    });
  }
  bool has_all(const std::vector<std::string>& keys) override {
    return translated([&] { return store_->check(keys); });
  }
  void set(const std::string& key, const std::string& value) override {
    translated([&] { store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }
  std::string get_or_set(const std::string& key, const std::string& value) override {
    return translated([&] {
      const std::vector<std::uint8_t> now =
          store_->compareSet(key, {}, std::vector<std::uint8_t>(value.begin(), value.end()));
      return std::string(now.begin(), now.end());
    });
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return translated([&] { return store_->add(key, amount); });
  }
  std::string host() const override {
    const auto bare = store_->getUnderlyingNonPrefixStore();
    const auto* const tcp = dynamic_cast<const c10d::TCPStore*>(bare.get());
    return tcp ? tcp->getHost() : std::string();
  }

 private:
  const c10::intrusive_ptr<c10d::PrefixStore> store_;
  const int listener_;
};

// Keys of others may be in the same store.
std::shared_ptr<WorldStore> prefixed(c10::intrusive_ptr<c10d::Store> store, int listener = -1) {
  return std::make_shared<C10dStore>(
      c10::make_intrusive<c10d::PrefixStore>("hawser", std::move(store)), listener);
}

std::string required_variable(const std::string& url, const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value)
    unusable(url, std::string("the environment variable ") + name + " is not set");
  return value;
}

std::uint32_t parse_number(const std::string& url, const std::string& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    unusable(url, "'" + text + "' is not a number");
  }
  return value;
}

std::uint16_t parse_port(const std::string& url, const std::string& text) {
  const std::uint32_t port = parse_number(url, text);
  if (port == 0 || port > 65535) unusable(url, "the port must be between 1 and 65535, got " + text);
  return static_cast<std::uint16_t>(port);
}

std::optional<std::uint32_t> number_variable(const std::string& url, const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return parse_number(url, value);
}

std::shared_ptr<WorldStore> open_tcp(const std::string& url, const std::string& host,
                                     std::uint16_t port, bool is_server,
                                     std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout;
  // The libuv backend takes over a listening descriptor only on its own terms; the plain one is
  // enough for a handful of keys.
  options.useLibUV = false;
  Descriptor listener;
  if (is_server) {
    // Left to itself, TCPStore listens on every interface.
    listener = transport::listen_on(host, port);
    options.masterListenFd = listener.get();
  }
  try {
    // Left to itself, a client that comes too early tries again only after half a second or more.
    if (!is_server) {
      transport::wait_for_listener(host, port, Deadline::after(SteadyClock(), timeout));
    }
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    return prefixed(std::move(store), listener.hand_over());
  } catch (const std::exception& error) {
    throw Error(ErrorKind::Timeout, "rendezvous '" + url + "' cannot be reached: " +
                                        std::string(error.what()).substr(0, 500));
  }
}

std::shared_ptr<WorldStore> open_file(const std::string& url, const std::string& path,
                                      const RendezvousOptions& options) {
  if (path.empty() || path[0] != '/') unusable(url, "the path must be absolute");
  // FileStore would create it readable by everybody; it holds the world's secret.
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) unusable(url, std::strerror(errno));
  if (::fchmod(file.get(), 0600) != 0) unusable(url, std::string("chmod: ") + std::strerror(errno));
  return prefixed(c10::make_intrusive<c10d::FileStore>(
      path, options.world_size ? static_cast<int>(*options.world_size) : -1));
}

struct HostPort {
  std::string host;
  std::uint16_t port;
};

HostPort split_host_port(const std::string& url, std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) unusable(url, "expected host:port");
  std::string host(text.substr(0, colon));
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {std::move(host), parse_port(url, std::string(text.substr(colon + 1)))};
}

}  // namespace

std::shared_ptr<WorldStore> use_store(c10::intrusive_ptr<c10d::Store> store) {
  if (!store) throw Error(ErrorKind::Invalid, "the rendezvous store is null");
  return prefixed(std::move(store));
}

std::shared_ptr<WorldStore> open_rendezvous(const std::string& url, RendezvousOptions& options) {
  const auto scheme_end = url.find("://");
  if (scheme_end == std::string::npos) unusable(url, "expected tcp://, file:// or env://");
  const std::string scheme = url.substr(0, scheme_end);
  const std::string rest = url.substr(scheme_end + 3);
  if (scheme == "file") return open_file(url, rest, options);
  if (scheme == "tcp") {
    const auto [host, port] = split_host_port(url, rest);
    return open_tcp(url, host, port, options.rank == 0, options.timeout);
  }
  if (scheme == "env") {
    if (!options.rank) options.rank = number_variable(url, "RANK");
    if (!options.world_size) options.world_size = number_variable(url, "WORLD_SIZE");
    const std::string host = required_variable(url, "MASTER_ADDR");
    const std::uint16_t port = parse_port(url, required_variable(url, "MASTER_PORT"));
    const char* launcher = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
    const bool launcher_hosts = launcher && std::string_view(launcher) == "True";
    return open_tcp(url, host, port, !launcher_hosts && options.rank == 0, options.timeout);
  }
  unusable(url, "unknown scheme '" + scheme + "' (tcp, file or env)");
}

}  // namespace hawser
