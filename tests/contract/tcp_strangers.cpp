#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>

#include "contract/contract.h"
#include "contract/real_medium.h"
#include "hawser/base/error.h"
#include "hawser/base/log.h"
#include "hawser/transport/descriptor.h"
#include "hawser/transport/handshake.h"
#include "hawser/transport/tcp/tcp_transport.h"
#include "support/test_certificates.h"

// Connections to and from those who do not keep to the protocol, and what only tcp and TLS have.
namespace hawser::contract {
namespace {

using namespace std::chrono_literals;
using testing::TestAuthority;
using transport::ConnectFailure;
using transport::Descriptor;
using transport::tcp::TcpOptions;
using transport::tcp::TlsOptions;

// Every node gets the options that are set here when it is created.
class Workbench final : public RealMedium {
 public:
  std::unique_ptr<transport::Transport> create(transport::Host& host,
                                               const Limits& limits) override {
    return transport::tcp::create_tcp(control_, host, random_, pool_, limits, options);
  }
  TcpOptions options;
};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

Descriptor dial(const std::string& endpoint) {
  const auto port = static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);
  return socket;
}

// Whether the other end closes within `at_most`; reads what it says until then.
bool is_hung_up(const Descriptor& socket, std::chrono::milliseconds at_most) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd watched{socket.get(), POLLIN, 0};
    if (::poll(&watched, 1, static_cast<int>(std::max(left, 0ms).count())) == 0) return false;
    char bytes[256];
    if (::recv(socket.get(), bytes, sizeof bytes, 0) <= 0) return true;
  }
}

void say(const Descriptor& socket, std::span<const std::byte> bytes) {
  ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

class TcpStrangers : public ::testing::Test {
 protected:
  TcpStrangers() { log::configure("off"); }
  ~TcpStrangers() override { log::configure("warning"); }

  bool connects(End& from, const std::string& endpoint, const std::string& name = "right") {
    return std::holds_alternative<std::shared_ptr<transport::Link>>(
        outcome_of(from, endpoint, name));
  }
  transport::ConnectOutcome outcome_of(End& from, const std::string& endpoint,
                                       const std::string& name = "right", Duration budget = 5s) {
    const auto connecting = start_connect(bench_, from, endpoint, name, budget);
    EXPECT_TRUE(wait_until(bench_, [&] { return connecting->done(); }));
    return connecting->take();
  }
  std::string failure_of(End& from, const std::string& endpoint, Duration budget = 5s) {
    const auto outcome = outcome_of(from, endpoint, "right", budget);
    const auto* failure = std::get_if<ConnectFailure>(&outcome);
    EXPECT_NE(failure, nullptr);
    return failure ? failure->why : "";
  }

  Workbench bench_;
};

TEST_F(TcpStrangers, SilenceIsClosedAtTheHandshakeDeadline) {
  bench_.options.handshake_timeout = 100ms;
  End right(bench_, "right", {});
  const Descriptor silent = dial(right.transport->listen());
  EXPECT_TRUE(is_hung_up(silent, 5s));
  ASSERT_TRUE(wait_until(bench_, [&] { return right.host.turned_away_because().size() == 1; }));
}

TEST_F(TcpStrangers, ADripOfBytesDoesNotExtendTheDeadline) {
  bench_.options.handshake_timeout = 200ms;
  End right(bench_, "right", {});
  const Descriptor slow = dial(right.transport->listen());
  wire::FrameHeader header;
  header.kind = wire::Kind::Hello;
  header.body_bytes = 2000;
  say(slow, std::as_bytes(std::span(&header, 1)));
  const auto start = std::chrono::steady_clock::now();
  while (!is_hung_up(slow, 10ms)) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, 5s);
    say(slow, pattern(1, 1));
  }
}

TEST_F(TcpStrangers, GarbageIsClosedAtOnce) {
  End right(bench_, "right", {});
  const std::string endpoint = right.transport->listen();
  const Descriptor browser = dial(endpoint);
  const std::string_view request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  say(browser, std::as_bytes(std::span(request)));
  EXPECT_TRUE(is_hung_up(browser, 5s));
  const Descriptor giant = dial(endpoint);
  wire::FrameHeader header;
  header.kind = wire::Kind::Hello;
  header.body_bytes = 0x7fffffff;
  say(giant, std::as_bytes(std::span(&header, 1)));
  EXPECT_TRUE(is_hung_up(giant, 5s));
  ASSERT_TRUE(wait_until(bench_, [&] { return right.host.turned_away_because().size() == 2; }));
  End left(bench_, "left", {});
  EXPECT_TRUE(connects(left, endpoint));
}

TEST_F(TcpStrangers, AFloodOfSilentConnectionsIsBoundedAndPasses) {
  Limits limits;
  limits.max_handshakes = 8;
  End right(bench_, "right", limits);
  const std::string endpoint = right.transport->listen();
  std::vector<Descriptor> flood;
  for (int i = 0; i < 60; ++i) flood.push_back(dial(endpoint));
  ASSERT_TRUE(wait_until(bench_, [&] { return right.host.turned_away_because().size() >= 52; }));
  EXPECT_EQ(right.host.turned_away_because().size(), 52u);
  flood.clear();
  ASSERT_TRUE(wait_until(bench_, [&] { return right.host.turned_away_because().size() == 60; }));
  End left(bench_, "left", {});
  EXPECT_TRUE(connects(left, endpoint));
}

TEST_F(TcpStrangers, AnAcceptorThatNeverAnswersIsGivenUpAtTheDeadline) {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 5), 0);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  End left(bench_, "left", {});
  const auto start = std::chrono::steady_clock::now();
  failure_of(left, "tcp:127.0.0.1:" + std::to_string(ntohs(address.sin_port)), 150ms);
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, 150ms);
  EXPECT_LT(took, 3s);
}

TEST_F(TcpStrangers, HostNamesAreResolved) {
  End right(bench_, "right", {});
  End left(bench_, "left", {});
  const std::string endpoint = right.transport->listen();
  EXPECT_TRUE(connects(left, "tcp:localhost" + endpoint.substr(endpoint.rfind(':'))));
  EXPECT_NE(failure_of(left, "tcp:no-such-host.invalid:5").find("no-such-host"), std::string::npos);
}

TEST_F(TcpStrangers, ListeningSaysWhyItCannot) {
  End right(bench_, "right", {});
  const std::string endpoint = right.transport->listen();
  EXPECT_EQ(endpoint.rfind("tcp:127.0.0.1:", 0), 0u) << endpoint;
  bench_.options.port =
      static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  End second(bench_, "second", {});
  EXPECT_THROW(second.transport->listen(), Error);

  bench_.options = {};
  bench_.options.address = "0.0.0.0";
  End everywhere(bench_, "everywhere", {});
  EXPECT_THROW(everywhere.transport->listen(), Error);
  bench_.options.advertised_host = "localhost";
  End advertised(bench_, "right", {});
  End left(bench_, "left", {});
  EXPECT_TRUE(connects(left, advertised.transport->listen()));

  auto identity = second.host.identity();
  identity.secret.clear();
  End open(bench_, "open", {});
  open.host.set_identity(identity);
  EXPECT_THROW(open.transport->listen(), Error);
}

TEST_F(TcpStrangers, DescriptorsAreCloseOnExec) {
  Pair pair(bench_);
  EXPECT_TRUE(::fcntl(pair.left.link->descriptor(), F_GETFD) & FD_CLOEXEC);
  EXPECT_TRUE(::fcntl(pair.right.link->descriptor(), F_GETFD) & FD_CLOEXEC);
}

// ---------------------------------------------------------------------------------- TLS

TEST_F(TcpStrangers, TlsFilesThatCannotBeUsedAreNamed) {
  TestAuthority authority;
  bench_.options.tls = authority.issue("right");
  bench_.options.tls->key_file = "/no/such/key";
  try {
    End right(bench_, "right", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    EXPECT_NE(error.message().find("/no/such/key"), std::string::npos) << error.message();
  }
  bench_.options.tls = authority.issue("right");
  bench_.options.tls->key_file = authority.issue("left").key_file;
  EXPECT_THROW(End(bench_, "right", {}), Error);
}

TEST_F(TcpStrangers, TlsAndPlainDoNotTalk) {
  TestAuthority authority;
  End plain(bench_, "left", {});
  bench_.options.tls = authority.issue("right");
  End right(bench_, "right", {});
  const std::string endpoint = right.transport->listen();
  EXPECT_EQ(endpoint.rfind("tls:", 0), 0u) << endpoint;
  EXPECT_TRUE(plain.transport->objection(endpoint));
  failure_of(plain, "tcp" + endpoint.substr(3));
  EXPECT_TRUE(wait_until(bench_, [&] { return right.host.turned_away_because().size() == 1; }));
  EXPECT_EQ(right.host.take_accepted(), nullptr);
}

TEST_F(TcpStrangers, ACertificateOfAnotherAuthorityIsRefused) {
  TestAuthority ours, theirs;
  bench_.options.tls = ours.issue("right");
  End right(bench_, "right", {});
  const std::string endpoint = right.transport->listen();
  bench_.options.tls = theirs.issue("left");
  End stranger(bench_, "left", {});
  EXPECT_NE(failure_of(stranger, endpoint).find("certificate"), std::string::npos);
  // Who trusts our authority but shows another's certificate gets no further than that.
  TlsOptions half = theirs.issue("left");
  half.ca_file = ours.issue("x").ca_file;
  bench_.options.tls = half;
  End impostor(bench_, "left", {});
  failure_of(impostor, endpoint);
  EXPECT_TRUE(wait_until(bench_, [&] { return right.host.turned_away_because().size() == 2; }));
  EXPECT_EQ(right.host.take_accepted(), nullptr);
}

TEST_F(TcpStrangers, ACertificateOfAnotherNodeIsRefused) {
  TestAuthority authority;
  bench_.options.tls = authority.issue("right");
  End right(bench_, "right", {});
  const std::string endpoint = right.transport->listen();

  bench_.options.tls = authority.issue("somebody");
  End impostor(bench_, "left", {});
  const auto refused = std::get<ConnectFailure>(outcome_of(impostor, endpoint));
  EXPECT_EQ(refused.refusal, wire::RefusalReason::Secret) << refused.why;
  EXPECT_NE(refused.why.find("somebody"), std::string::npos) << refused.why;

  End impostor_server(bench_, "right", {});
  bench_.options.tls = authority.issue("left");
  End left(bench_, "left", {});
  EXPECT_NE(failure_of(left, impostor_server.transport->listen()).find("somebody"),
            std::string::npos);
}

TEST_F(TcpStrangers, APatternMayNameMoreThanOneNode) {
  TestAuthority authority;
  bench_.options.tls = authority.issue("a.train.example");
  bench_.options.tls->peer_name = "*.train.example";
  End right(bench_, "right", {});
  End left(bench_, "left", {});
  const std::string endpoint = right.transport->listen();
  EXPECT_TRUE(connects(left, endpoint));
  bench_.options.tls->peer_name = "*.serve.example";
  End picky(bench_, "left", {});
  failure_of(picky, endpoint);
}

TEST(TlsPattern, StarsMatchAnyRun) {
  using transport::tcp::matches;
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("*", "anything"));
  EXPECT_TRUE(matches("a*c", "abbc"));
  EXPECT_TRUE(matches("a*b*c", "aXbYbc"));
  EXPECT_FALSE(matches("a*c", "abcd"));
  EXPECT_FALSE(matches("abc", "abcd"));
  EXPECT_FALSE(matches("*.train", "train"));
}

}  // namespace
}  // namespace hawser::contract
