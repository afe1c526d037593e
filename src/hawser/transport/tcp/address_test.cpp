#include "hawser/transport/tcp/address.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "hawser/base/error.h"

namespace hawser::transport::tcp {
namespace {

using asio::ip::make_address;

const std::vector<Interface> kSome = {
    {"lo", make_address("127.0.0.1"), true},     {"docker0", make_address("172.17.0.1"), false},
    {"eth0", make_address("fe80::1"), false},    {"eth0", make_address("10.0.0.5"), false},
    {"eth01", make_address("10.0.1.5"), false},  {"ib0", make_address("fe80::2"), false},
    {"ib0", make_address("2001:db8::2"), false},
};

std::string chosen(std::string_view specification) {
  return address_of_interface(specification, "TEST", kSome).to_string();
}

TEST(Address, InterfacesAreChosenAsNcclDoes) {
  EXPECT_EQ(chosen("eth0"), "10.0.0.5");
  EXPECT_EQ(chosen("=eth01"), "10.0.1.5");
  EXPECT_EQ(chosen("ib,eth"), "2001:db8::2");
  EXPECT_EQ(chosen("nothing,eth01"), "10.0.1.5");
  EXPECT_EQ(chosen("^docker"), "10.0.0.5");
  EXPECT_EQ(chosen("^docker,eth"), "2001:db8::2");
  EXPECT_EQ(chosen("lo"), "127.0.0.1");
}

TEST(Address, AnInterfaceThatDoesNotExistNamesThoseThatDo) {
  try {
    chosen("=eth");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    EXPECT_NE(error.message().find("TEST==eth"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("docker0, eth0, eth01, ib0, lo"), std::string::npos)
        << error.message();
  }
}

// Sets a variable for the life of a test.
struct Variable {
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  const char* name_;
};

TEST(Address, WishesComeBeforeVariablesAndVariablesInOrder) {
  const Variable nccl("NCCL_SOCKET_IFNAME", "no-such-interface");
  EXPECT_THROW(choose_address({}), Error);
  EXPECT_EQ(choose_address({"::1", "", ""}).to_string(), "::1");
  EXPECT_EQ(choose_address({"", "=lo", ""}).to_string(), "127.0.0.1");
  const Variable own("HAWSER_SOCKET_IFNAME", "=lo");
  EXPECT_EQ(choose_address({}).to_string(), "127.0.0.1");
}

TEST(Address, TheRouteDecidesAndElseLoopback) {
  EXPECT_EQ(choose_address({"", "", "127.0.0.1"}).to_string(), "127.0.0.1");
  EXPECT_TRUE(choose_address({"", "", "::1"}).is_loopback());
  EXPECT_TRUE(choose_address({}).is_loopback());
  EXPECT_THROW(choose_address({"", "", "no such host"}), Error);
  EXPECT_EQ(choose_address({"0.0.0.0", "", ""}).to_string(), "0.0.0.0");
}

TEST(Address, TheOwnNameOfAHostDoesNotMeanLoopback) {
  const auto loopback = asio::ip::make_address("127.0.1.1");
  const auto outward = asio::ip::make_address("10.0.0.5");
  EXPECT_EQ(reachable_by_others("trainer-0", loopback, outward), outward);
  EXPECT_EQ(reachable_by_others("trainer-0", loopback, std::nullopt), loopback);
  const auto elsewhere = asio::ip::make_address("10.1.0.9");
  EXPECT_EQ(reachable_by_others("trainer-1", elsewhere, outward), elsewhere);
  for (const char* loopback_itself : {"127.0.0.1", "::1", "localhost", "localhost.localdomain",
                                      "ip6-localhost", "ip6-loopback"}) {
    EXPECT_EQ(reachable_by_others(loopback_itself, loopback, outward), loopback);
  }
}

TEST(Address, EndpointsAreWrittenAndRead) {
  EXPECT_EQ(write_endpoint("tcp", make_address("10.0.0.5"), 41233), "tcp:10.0.0.5:41233");
  EXPECT_EQ(write_endpoint("tls", make_address("fe80::1%1"), 9), "tls:[fe80::1]:9");
  const auto v6 = read_endpoint("tcp", "tcp:[fe80::1]:41233");
  ASSERT_TRUE(v6);
  EXPECT_EQ(v6->host, "fe80::1");
  EXPECT_EQ(v6->port, 41233);
  EXPECT_EQ(read_endpoint("tcp", "tcp:node7:1")->host, "node7");
  for (const char* bad : {"", "tcp", "tcp:", "tcp:host", "tcp:host:", "tcp:host:0", "tcp:h:70000",
                          "tcp:h:1x", "tcp:fe80::1:5", "tcp::5", "tls:host:5", "tcp:[]:5"}) {
    EXPECT_FALSE(read_endpoint("tcp", bad)) << bad;
  }
}

TEST(Address, ALinkLocalAddressIsTriedOnEveryInterfaceThatHasSuch) {
  EXPECT_EQ(numeric_candidates({"10.0.0.5", 1}).size(), 1u);
  EXPECT_EQ(numeric_candidates({"node7", 1}).size(), 0u);
  EXPECT_EQ(numeric_candidates({"fe80::1%1", 1}).size(), 1u);
  for (const auto& candidate : numeric_candidates({"fe80::1", 7})) {
    EXPECT_NE(candidate.address().to_v6().scope_id(), 0u);
    EXPECT_EQ(candidate.port(), 7);
  }
}

}  // namespace
}  // namespace hawser::transport::tcp
