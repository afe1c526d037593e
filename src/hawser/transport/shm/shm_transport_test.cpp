#include "hawser/transport/shm/shm_transport.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "hawser/transport/handshake.h"
#include "hawser/transport/shm/descriptor_passing.h"
#include "hawser/transport/shm/fitting.h"
#include "support/shm_nodes.h"

namespace hawser::transport::shm {
namespace {

// A peer that goes as far as a test lets it, over a plain blocking socket.
class Stranger {
 public:
  explicit Stranger(const std::string& endpoint)
      : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        handshake_(TestHost("stranger").identity(), "right", random_) {
    const std::string name = endpoint.substr(endpoint.rfind(':') + 1);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    connected_ = ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0;
  }
  bool connected() const { return connected_; }
  int socket() const { return socket_.get(); }
  void send(std::span<const std::byte> bytes) {
    EXPECT_EQ(::send(socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  HandshakeStep next_step() {
    HandshakeReader reader(4096);
    std::array<std::byte, 4096> bytes;
    for (;;) {
      const ssize_t got = ::read(socket(), bytes.data(), reader.wanted());
      if (got <= 0) return Failed{};
      if (auto frame = reader.feed(std::span(bytes).first(static_cast<std::size_t>(got)))) {
        return handshake_.receive(*frame);
      }
    }
  }
  void hello() { send(handshake_.start()); }
  void prove() { send(std::get<SendThis>(next_step()).bytes); }
  // Hello to Welcome.
  void shake_hands() {
    hello();
    prove();
    ASSERT_TRUE(std::holds_alternative<Succeeded>(next_step()));
  }
  std::size_t ring_bytes() const { return handshake_.welcome().ring_bytes; }

 private:
  SystemRandom random_;
  Descriptor socket_;
  InitiatorHandshake handshake_;
  bool connected_ = false;
};

TEST(ShmSetup, AStrangerThatLeavesAtAnyStepCostsNothing) {
  Node right("right");
  const std::string endpoint = right.transport->listen();
  Doorbell bell;
  const std::size_t before = open_descriptors();
  int expected = 0;
  for (int step = 0; step < 5; ++step) {
    {
      Stranger stranger(endpoint);
      ASSERT_TRUE(stranger.connected());
      if (step == 1) stranger.hello();
      if (step == 2) stranger.send(std::vector<std::byte>(100, std::byte{7}));
      if (step >= 3) stranger.shake_hands();
      if (step == 4) {
        Fitting fitting(stranger.ring_bytes(), kMiB, bell);
        ASSERT_TRUE(reaches([&] { return fitting.receive_outfit(stranger.socket()); }));
      }
    }
    ++expected;
    ASSERT_TRUE(reaches([&] { return right.host.turned_away_count == expected; })) << step;
    EXPECT_TRUE(reaches([&] { return open_descriptors() == before; })) << step;
  }
}

TEST(ShmSetup, GarbageInsteadOfDescriptorsIsRefused) {
  Node right("right");
  const std::string endpoint = right.transport->listen();
  Doorbell bell;
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Descriptor unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  constexpr std::size_t kRing = std::size_t{256} << 10;
  ASSERT_EQ(::ftruncate(unsealed.get(), kPageBytes + kRing), 0);
  Descriptor sealed;
  const auto ring = RingMemory::create(kRing, sealed);
  const std::size_t before = open_descriptors();
  const int page = bell.page_fd(), event = bell.event_fd();
  const std::vector<std::vector<int>> outfits = {
      {},
      {sealed.get()},
      {null.get(), page, event},
      {unsealed.get(), page, event},
      {page, page, event},
      {sealed.get(), null.get(), event},
      {sealed.get(), sealed.get(), event},
      {sealed.get(), page, null.get()},
      {sealed.get(), page, page},
      {sealed.get(), page, event, event},
      {sealed.get(), page, event},  // in order, but the probe is not in the ring
  };
  int expected = 0;
  for (const auto& descriptors : outfits) {
    Stranger stranger(endpoint);
    ASSERT_NO_FATAL_FAILURE(stranger.shake_hands());
    Outfit outfit;
    outfit.ring_bytes = static_cast<std::uint32_t>(stranger.ring_bytes());
    ASSERT_EQ(outfit.ring_bytes, kRing);
    outfit.probe.fill(std::byte{9});
    ASSERT_TRUE(send_note(stranger.socket(), std::as_bytes(std::span(&outfit, 1)), descriptors));
    ++expected;
    ASSERT_TRUE(reaches([&] { return right.host.turned_away_count == expected; })) << expected;
  }
  EXPECT_TRUE(reaches([&] { return open_descriptors() == before; }));
}

// A listener that accepts and then closes fails the connect, and one that says nothing lets it run
// into its deadline.
TEST(ShmSetup, AnAcceptorThatGivesUpFailsTheConnect) {
  Node left("left");
  Node right("right");
  const std::string real = right.transport->listen();
  const std::string host = real.substr(0, real.rfind(':') + 1);
  const Descriptor door(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "hawser-test-" + std::to_string(::getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  ASSERT_EQ(::bind(door.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(door.get(), 4), 0);

  auto closed_on = left.connect(host + name, "right");
  Descriptor(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
  ASSERT_EQ(closed_on.wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(std::holds_alternative<ConnectFailure>(closed_on.get()));

  auto ignored = left.connect(host + name, "right", 50ms);
  ASSERT_EQ(ignored.wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(std::holds_alternative<ConnectFailure>(ignored.get()));
}

// Lowers the limit on descriptors for a while.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = limit;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(ShmSetup, WithoutDescriptorsItFailsWithAReasonAndRecovers) {
  Node left("left");
  Node right("right");
  const std::string endpoint = right.transport->listen();
  const std::size_t before = open_descriptors() - 1;  // without the one that counts
  int failures = 0;
  // A few more may be opened each time, so that every step is the one that fails.
  for (std::size_t spare = 0; spare < 20; ++spare) {
    const FewDescriptors few(before + spare);
    auto outcome = left.connect(endpoint, "right", 300ms);
    ASSERT_EQ(outcome.wait_for(kPatience), std::future_status::ready);
    ConnectOutcome result = outcome.get();
    const auto* failure = std::get_if<ConnectFailure>(&result);
    if (!failure) break;
    EXPECT_FALSE(failure->why.empty());
    ++failures;
  }
  EXPECT_GT(failures, 5);
  const auto link = link_of(left.connect(endpoint, "right"));
  EXPECT_TRUE(link);
}

TEST(ShmSetup, AnotherUserIsTurnedAway) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  Node right("right");
  const std::string endpoint = right.transport->listen();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    Stranger stranger(endpoint);
    if (!stranger.connected()) ::_exit(3);
    stranger.hello();
    const HandshakeStep step = stranger.next_step();
    const auto* failed = std::get_if<Failed>(&step);
    ::_exit(failed && failed->refusal == wire::RefusalReason::Transport ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ASSERT_TRUE(reaches([&] { return right.host.turned_away_count == 1; }));
  EXPECT_NE(right.host.last_reason().find("65534"), std::string::npos);
}

TEST(ShmSetup, EndpointsOfOtherHostsAreObjectedTo) {
  Node node("left");
  EXPECT_FALSE(node.transport->objection(node.transport->listen()));
  EXPECT_TRUE(node.transport->objection("shm:someotherhost-4026531840:hawser-1"));
  EXPECT_TRUE(node.transport->objection("tcp:127.0.0.1:80"));
  EXPECT_TRUE(node.transport->objection("shm:"));
}

TEST(ShmSetup, RingsAreSmallerInACrowd) {
  ShmOptions options;
  options.crowded_above_links = 1;
  Node left("left", options);
  Node right("right", options);
  const std::string endpoint = right.transport->listen();
  std::vector<std::shared_ptr<Link>> links;
  for (const std::size_t ring :
       {options.ring_bytes, options.ring_bytes, options.crowded_ring_bytes}) {
    links.push_back(link_of(left.connect(endpoint, "right")));
    links.push_back(right.host.wait_accepted());
    ASSERT_TRUE(links.back());
    EXPECT_EQ(links.back()->stats().bytes_shared, 2 * (kPageBytes + ring));
  }
}

}  // namespace
}  // namespace hawser::transport::shm
