// Those who do not belong here: other tokens, other worlds, other protocols.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#include "hawser/transport/descriptor.h"
#include "process/world.h"

namespace hawser::testing {
namespace {

using Clock = std::chrono::steady_clock;
using transport::Descriptor;

// "tcp:127.0.0.1:<port>"
Descriptor connect_tcp(const std::string& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error(endpoint + ": " + std::strerror(errno));
  }
  return socket;
}

// "shm:<host>:<abstract name>"
Descriptor connect_shm(const std::string& endpoint) {
  const std::string name = endpoint.substr(endpoint.rfind(':') + 1);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    throw std::runtime_error(endpoint + ": " + std::strerror(errno));
  }
  return socket;
}

Descriptor connect_to(const std::string& endpoint) {
  return endpoint.starts_with("tcp:") ? connect_tcp(endpoint) : connect_shm(endpoint);
}

std::string random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// The other end closes a connection in answer to what was said.
bool is_hung_up_on(const Descriptor& socket) {
  timeval patience{.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  std::array<char, 4096> answer{};
  ssize_t size = 0;
  while ((size = ::recv(socket.get(), answer.data(), answer.size(), 0)) > 0) {
  }
  return size == 0 || errno == ECONNRESET;
}

// Calls all the time, and remembers what went wrong.
class SteadyCaller {
 public:
  SteadyCaller(Node& node, std::string callee)
      : thread_([this, &node, callee = std::move(callee)] {
          while (!ended_) {
            const auto& sum = node.call<std::int64_t>(callee, "add", 1, 2).wait();
            if (!sum.ok()) {
              error_ = sum.error();
              return;
            }
            ++calls_;
          }
        }) {}
  ~SteadyCaller() { end(); }

  std::optional<Error> end() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
    return error_;
  }
  std::uint64_t calls() const { return calls_; }

 private:
  std::atomic<bool> ended_{false};
  std::atomic<std::uint64_t> calls_{0};
  std::optional<Error> error_;  // of the thread, until it is joined
  std::thread thread_;
};

class Strangers : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(Transports, Strangers, kTransports);

TEST_P(Strangers, WithAnotherTokenAreRefused) {
  NodeOptions ours = options("ours");
  ours.token = "Xk4PzQ0vTn";
  NodeOptions theirs = options("theirs");
  theirs.token = "h7LwR2mYcA";
  Node node(ours);
  node.serve("greet", [] {});
  Node stranger(theirs);
  const auto called = Clock::now();
  const Error error = error_of([&] { stranger.call<void>("ours", "greet").get(); });
  EXPECT_EQ(error.kind(), ErrorKind::Refused) << error.what();
  EXPECT_EQ(error.message().find(ours.token), std::string::npos) << error.what();
  EXPECT_EQ(error.message().find(theirs.token), std::string::npos) << error.what();
  EXPECT_LT(Clock::now() - called, kAtOnce);
  EXPECT_TRUE(eventually([&] { return node.inspect().connections_turned_away == 1; }));
  EXPECT_EQ(peer_of(node, "theirs").name, "");
}

// A stale rendezvous, or a copied one: the card leads to a node of another job.
TEST_P(Strangers, OfAnotherWorldAreRefused) {
  NodeOptions ours = options("ours");
  ours.token = "Xk4PzQ0vTn";
  Node node(ours);
  node.serve("greet", [] {});

  const World other_world;
  NodeOptions theirs = other_world.options("theirs", GetParam());
  theirs.token = ours.token;
  Node stranger(theirs);
  RendezvousOptions rendezvous;
  const auto our_store = open_rendezvous(world_.rendezvous(), rendezvous);
  const auto their_store = open_rendezvous(other_world.rendezvous(), rendezvous);
  their_store->set("card/ours", our_store->get("card/ours").value());

  const Error error = error_of([&] { stranger.call<void>("ours", "greet").get(); });
  EXPECT_EQ(error.kind(), ErrorKind::Refused) << error.what();
  EXPECT_NE(error.message().find("world"), std::string::npos) << error.what();
  EXPECT_TRUE(eventually([&] { return node.inspect().connections_turned_away == 1; }));
}

TEST_P(Strangers, WhoTalkGarbageAreHungUpOnAndDoNotDisturb) {
  Node caller(options("caller"));
  Worker callee(options("callee"));
  SteadyCaller calls(caller, "callee");
  std::vector<std::string> garbage{"GET / HTTP/1.1\r\nHost: hawser\r\n\r\n",
                                   std::string(4096, '\0'), std::string(4096, '\xff')};
  for (unsigned seed = 0; seed < 20; ++seed) garbage.push_back(random_bytes(1 + 300 * seed, seed));
  std::vector<Descriptor> sockets;
  for (const std::string& bytes : garbage) {
    sockets.push_back(connect_to(callee.endpoints().front()));
    ::send(sockets.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::shutdown(sockets.back().get(), SHUT_WR);
  }
  for (const Descriptor& socket : sockets) EXPECT_TRUE(is_hung_up_on(socket));
  EXPECT_TRUE(eventually(
      [&] { return caller.call<std::uint64_t>("callee", "turned_away").get() == garbage.size(); }));
  const std::uint64_t before = calls.calls();
  EXPECT_TRUE(eventually([&] { return calls.calls() > before + 10; }));
  const auto error = calls.end();
  EXPECT_FALSE(error.has_value()) << error->what();
}

// More connections than a node takes handshakes at once, none of which ever says more than this.
TEST_P(Strangers, InAFloodAreTurnedAwayAndTakeNoMemory) {
  constexpr std::size_t kFlood = 500;
  const std::size_t places = Limits{}.max_handshakes;
  Node caller(options("caller"));
  Worker callee(options("callee"));
  caller.call<std::int64_t>("callee", "add", 1, 2).get();
  const auto resident = [&] { return caller.call<std::uint64_t>("callee", "resident").get(); };
  const auto turned_away = [&] {
    return caller.call<std::uint64_t>("callee", "turned_away").get();
  };
  SteadyCaller calls(caller, "callee");
  const std::uint64_t resident_before = resident();

  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < kFlood; ++i) {
    silent.push_back(connect_to(callee.endpoints().front()));
    if (i % 2) ::send(silent.back().get(), "HA", 2, MSG_NOSIGNAL);
  }
  EXPECT_TRUE(eventually([&] { return turned_away() >= kFlood - places; }));
  EXPECT_LT(resident(), resident_before + (std::uint64_t{16} << 20));
  const std::uint64_t before = calls.calls();
  EXPECT_TRUE(eventually([&] { return calls.calls() > before + 10; }));

  silent.clear();
  EXPECT_TRUE(eventually([&] { return turned_away() == kFlood; }));
  Node late(options("late"));
  EXPECT_EQ(late.call<std::int64_t>("callee", "add", 2, 3).get(), 5);
  const auto error = calls.end();
  EXPECT_FALSE(error.has_value()) << error->what();
}

}  // namespace
}  // namespace hawser::testing
