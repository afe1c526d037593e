#include "contract/contract.h"
#include "contract/real_medium.h"
#include "hawser/transport/tcp/tcp_transport.h"
#include "support/test_certificates.h"

namespace hawser::contract {
namespace {

class TcpMedium : public RealMedium {
 public:
  explicit TcpMedium(std::string address) : address_(std::move(address)) {}

  std::unique_ptr<transport::Transport> create(transport::Host& host,
                                               const Limits& limits) override {
    return transport::tcp::create_tcp(control_, host, random_, pool_, limits, options_for(host));
  }

 protected:
  virtual transport::tcp::TcpOptions options_for(const transport::Host&) {
    transport::tcp::TcpOptions options;
    options.address = address_;
    return options;
  }

 private:
  std::string address_;
};

class TlsMedium final : public TcpMedium {
 public:
  TlsMedium() : TcpMedium("127.0.0.1") {}

 protected:
  transport::tcp::TcpOptions options_for(const transport::Host& host) override {
    transport::tcp::TcpOptions options = TcpMedium::options_for(host);
    options.tls = authority_.issue(host.identity().name);
    return options;
  }

 private:
  testing::TestAuthority authority_;
};

// LINK-8 allows a link to hold nothing back; this one does.
TEST(TcpHolding, CallsAreWrittenTogetherWhenFlushed) {
  TcpMedium medium("127.0.0.1");
  Pair pair(medium);
  pair.left.host.flush_later();
  transport::Link& link = *pair.left.link;
  const std::uint64_t sent_before = link.stats().bytes_sent;
  const auto body = pattern(100, 1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(link.send_with_more({wire::Kind::Call, body, {}}));
  EXPECT_EQ(link.stats().bytes_sent, sent_before);
  EXPECT_GE(link.stats().bytes_queued, 3 * body.size());
  EXPECT_GT(link.flush(), Duration{});
  EXPECT_EQ(link.stats().bytes_queued, 0u);
  EXPECT_TRUE(pair.run_end_until(pair.right, [&] { return pair.right.inbox.size() == 3; }));
}

const auto kTcp =
    ::testing::Values(MediumFactory([] { return std::make_unique<TcpMedium>("127.0.0.1"); }));
const auto kTcp6 =
    ::testing::Values(MediumFactory([] { return std::make_unique<TcpMedium>("::1"); }));
const auto kTls = ::testing::Values(MediumFactory([] { return std::make_unique<TlsMedium>(); }));

}  // namespace

INSTANTIATE_TEST_SUITE_P(tcp, LinkContract, kTcp);
INSTANTIATE_TEST_SUITE_P(tcp, TransportContract, kTcp);
INSTANTIATE_TEST_SUITE_P(tcp6, TransportContract, kTcp6);
INSTANTIATE_TEST_SUITE_P(tls, LinkContract, kTls);
INSTANTIATE_TEST_SUITE_P(tls, TransportContract, kTls);

}  // namespace hawser::contract
