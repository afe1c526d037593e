#include "hawser/transport/listen.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <future>

#include "hawser/base/error.h"

namespace hawser::transport {
namespace {

using namespace std::chrono_literals;

std::uint16_t port_of(const Descriptor& listener) {
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
  return ntohs(bound.sin_port);
}

Deadline within(Duration time) { return Deadline::after(SteadyClock(), time); }

TEST(Listen, IsFoundWhenItIsThere) {
  const Descriptor listener = listen_on("127.0.0.1", 0);
  EXPECT_NO_THROW(wait_for_listener("127.0.0.1", port_of(listener), within(20s)));
}

TEST(Listen, IsWaitedFor) {
  const std::uint16_t port = port_of(listen_on("127.0.0.1", 0));  // free again
  auto waits =
      std::async(std::launch::async, [&] { wait_for_listener("127.0.0.1", port, within(20s)); });
  EXPECT_EQ(waits.wait_for(20ms), std::future_status::timeout);
  const Descriptor listener = listen_on("127.0.0.1", port);
  EXPECT_NO_THROW(waits.get());
}

TEST(Listen, IsNotWaitedForForEver) {
  const std::uint16_t port = port_of(listen_on("127.0.0.1", 0));
  try {
    wait_for_listener("127.0.0.1", port, within(20ms));
    ADD_FAILURE() << "somebody listens";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Timeout);
    EXPECT_NE(error.message().find("127.0.0.1:" + std::to_string(port)), std::string::npos);
  }
}

TEST(Listen, AnUnknownHostIsNamed) {
  try {
    wait_for_listener("no.such.host.invalid", 1, within(20ms));
    ADD_FAILURE() << "there is such a host";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    EXPECT_NE(error.message().find("no.such.host.invalid"), std::string::npos);
  }
}

}  // namespace
}  // namespace hawser::transport
