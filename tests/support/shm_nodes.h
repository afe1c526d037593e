#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "hawser/base/guarded.h"
#include "hawser/transport/shm/shm_transport.h"

// What the tests of links and of their setting up have in common.
namespace hawser::transport::shm {

using namespace std::chrono_literals;
inline constexpr auto kPatience = 20s;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;

inline bool reaches(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    ::sched_yield();
  }
  return true;
}

class TestHost final : public Host {
 public:
  explicit TestHost(std::string name) { identity_.name = std::move(name); }
  Identity identity() const override { return identity_; }
  std::optional<wire::Refusal> admit(const wire::Hello&) override { return std::nullopt; }
  void accepted(std::shared_ptr<Link> link) override {
    accepted_.lock()->push_back(std::move(link));
  }
  void turned_away(std::string_view why) override {
    reasons_.lock()->push_back(std::string(why));
    ++turned_away_count;
  }
  void watch_writable(Link&) override {}

  // The next one, in order.
  std::shared_ptr<Link> wait_accepted() {
    std::shared_ptr<Link> link;
    reaches([&] {
      auto accepted = accepted_.lock();
      if (accepted->empty()) return false;
      link = std::move(accepted->front());
      accepted->pop_front();
      return true;
    });
    return link;
  }
  std::string last_reason() { return reasons_.lock()->back(); }
  std::atomic<int> turned_away_count{0};

 private:
  Identity identity_;
  Guarded<std::deque<std::shared_ptr<Link>>> accepted_;
  Guarded<std::vector<std::string>> reasons_;
};

struct Node {
  explicit Node(const std::string& name, const ShmOptions& options = {}, const Limits& limits = {})
      : host(name), transport(create_shm(control, host, random, pool, bell, limits, options)) {
    control.start();
  }
  ~Node() {
    transport->close();
    control.stop();
  }
  std::future<ConnectOutcome> connect(const std::string& endpoint, const std::string& name,
                                      Duration budget = kPatience) {
    auto promise = std::make_shared<std::promise<ConnectOutcome>>();
    transport->connect(
        endpoint, name, Deadline::after(SteadyClock(), budget),
        [promise](ConnectOutcome outcome) { promise->set_value(std::move(outcome)); });
    return promise->get_future();
  }

  TestHost host;
  SystemRandom random;
  BufferPool pool{64 * kMiB};
  Doorbell bell;
  ControlLoop control;
  std::unique_ptr<Transport> transport;
};

inline std::shared_ptr<Link> link_of(std::future<ConnectOutcome> outcome) {
  if (outcome.wait_for(kPatience) != std::future_status::ready) return nullptr;
  ConnectOutcome result = outcome.get();
  if (auto* failure = std::get_if<ConnectFailure>(&result)) {
    ADD_FAILURE() << failure->why;
    return nullptr;
  }
  return std::get<std::shared_ptr<Link>>(result);
}

struct LinkedNodes {
  explicit LinkedNodes(const ShmOptions& options = {}, const Limits& limits = {})
      : left("left", options, limits), right("right", options, limits) {
    const std::string endpoint = right.transport->listen();
    left_link = link_of(left.connect(endpoint, "right"));
    right_link = right.host.wait_accepted();
  }
  Node left, right;
  std::shared_ptr<Link> left_link, right_link;
};

inline wire::OutFrame call(std::span<const std::byte> body, std::vector<Buffer> segments = {}) {
  return wire::OutFrame{wire::Kind::Call, body, std::move(segments)};
}

inline Buffer filled(std::size_t size, int value) {
  auto owner = std::make_shared<std::vector<std::byte>>(size, static_cast<std::byte>(value));
  return Buffer(owner->data(), size, owner);
}

inline bool holds(const Buffer& buffer, int value) {
  return std::all_of(buffer.bytes().begin(), buffer.bytes().end(),
                     [value](std::byte b) { return b == static_cast<std::byte>(value); });
}

inline constexpr std::array<std::byte, 8> kBody{std::byte{1}};

// Receives the next frame on `link`; the peer's queue is written on meanwhile.
inline Link::Received wait_receive(Link& link, wire::InFrame& frame, Link* peer = nullptr) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const auto received = link.receive(frame);
    if (received != Link::Received::Nothing) return received;
    if (std::chrono::steady_clock::now() > deadline) return received;
    wire::InFrame ignored;
    if (peer && peer->pending()) peer->receive(ignored);
    ::sched_yield();
  }
}

inline std::size_t open_descriptors() {
  const auto files = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

}  // namespace hawser::transport::shm
