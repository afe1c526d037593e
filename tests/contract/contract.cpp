#include "contract/contract.h"

#include <array>
#include <cstring>

namespace hawser::contract {
namespace {

transport::Identity identity_of(std::string name) {
  transport::Identity identity;
  identity.incarnation = Incarnation{name.size()};
  identity.name = std::move(name);
  identity.world.bytes.fill(0x5a);
  identity.secret.assign(32, std::byte{0x17});
  return identity;
}

std::byte pattern_byte(std::size_t at, std::uint64_t seed) {
  const std::uint64_t mixed = (at + seed * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::byte>(mixed >> 56);
}

using RealTime = std::chrono::steady_clock;

}  // namespace

// ---------------------------------------------------------------------------------- TestHost

TestHost::TestHost(std::string name) : identity_(identity_of(std::move(name))) {}

transport::Identity TestHost::identity() const {
  const std::lock_guard lock(mutex_);
  return identity_;
}

std::optional<wire::Refusal> TestHost::admit(const wire::Hello&) {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void TestHost::accepted(std::shared_ptr<transport::Link> link) {
  const std::lock_guard lock(mutex_);
  accepted_.push_back(std::move(link));
}

void TestHost::turned_away(std::string_view why) {
  const std::lock_guard lock(mutex_);
  turned_away_.emplace_back(why);
}

void TestHost::watch_writable(transport::Link&) {
  const std::lock_guard lock(mutex_);
  ++times_asked_to_watch_;
  if (tell_) tell_();
}

bool TestHost::held_back(std::shared_ptr<transport::Link>) {
  const std::lock_guard lock(mutex_);
  return flushes_later_;
}

void TestHost::flush_later() {
  const std::lock_guard lock(mutex_);
  flushes_later_ = true;
}

void TestHost::set_identity(transport::Identity identity) {
  const std::lock_guard lock(mutex_);
  identity_ = std::move(identity);
}

void TestHost::refuse_with(std::optional<wire::Refusal> refusal) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(refusal);
}

void TestHost::when_asked_to_watch(std::function<void()> tell) {
  const std::lock_guard lock(mutex_);
  tell_ = std::move(tell);
}

std::shared_ptr<transport::Link> TestHost::take_accepted() {
  const std::lock_guard lock(mutex_);
  if (accepted_.empty()) return nullptr;
  auto link = std::move(accepted_.front());
  accepted_.pop_front();
  return link;
}

std::vector<std::string> TestHost::turned_away_because() const {
  const std::lock_guard lock(mutex_);
  return turned_away_;
}

std::size_t TestHost::times_asked_to_watch() const {
  const std::lock_guard lock(mutex_);
  return times_asked_to_watch_;
}

// ---------------------------------------------------------------------------------- End, Pair

End::End(Medium& medium, std::string name, const Limits& limits)
    : host(std::move(name)), transport(medium.create(host, limits)) {}

// Links first: they know the host, and nothing may come in any more when it dies.
End::~End() {
  transport->close();
  if (link) link->close();
}

bool End::pump(int at_most) {
  for (int i = 0; i < at_most && !closed; ++i) {
    wire::InFrame frame;
    switch (link->receive(frame)) {
      case transport::Link::Received::Frame:
        inbox.push_back(std::move(frame));
        break;
      case transport::Link::Received::Nothing:
        if (!link->pending()) return true;
        break;
      case transport::Link::Received::Closed:
        closed = true;
        break;
    }
  }
  return !closed;
}

bool Connecting::done() const {
  const std::lock_guard lock(mutex_);
  return outcome_.has_value();
}

void Connecting::complete(transport::ConnectOutcome outcome) {
  const std::lock_guard lock(mutex_);
  outcome_.emplace(std::move(outcome));
}

transport::ConnectOutcome Connecting::take() {
  const std::lock_guard lock(mutex_);
  return *std::exchange(outcome_, std::nullopt);
}

std::shared_ptr<Connecting> start_connect(Medium& medium, End& from, const std::string& endpoint,
                                          const std::string& peer_name, Duration budget) {
  auto connecting = std::make_shared<Connecting>();
  from.transport->connect(
      endpoint, peer_name, Deadline::after(medium.clock(), budget),
      [connecting, trap = Trap("connect")](transport::ConnectOutcome outcome) mutable {
        trap.spring();
        connecting->complete(std::move(outcome));
      });
  return connecting;
}

Pair::Pair(Medium& the_medium, const PairLimits& limits)
    : medium(the_medium),
      left(the_medium, "left", limits.left),
      right(the_medium, "right", limits.right) {
  const std::string endpoint = right.transport->listen();
  const auto connecting = start_connect(medium, left, endpoint, "right", std::chrono::seconds(10));
  if (!wait_until(medium, [&] { return connecting->done(); })) {
    throw std::runtime_error("connect() never completed");
  }
  auto outcome = connecting->take();
  if (const auto* failure = std::get_if<transport::ConnectFailure>(&outcome)) {
    throw std::runtime_error("cannot connect: " + failure->why);
  }
  left.link = std::get<std::shared_ptr<transport::Link>>(std::move(outcome));
  if (!wait_until(medium, [&] { return (right.link = right.host.take_accepted()) != nullptr; })) {
    throw std::runtime_error("the acceptor never got its link");
  }
}

bool Pair::run_until(const std::function<bool()>& reached, std::chrono::milliseconds budget) {
  const auto deadline = RealTime::now() + budget;
  const std::array<transport::Link*, 2> links = {left.link.get(), right.link.get()};
  for (;;) {
    left.pump();
    right.pump();
    if (reached()) return true;
    if (RealTime::now() >= deadline) return false;
    medium.wait_for_progress(links);
  }
}

bool Pair::run_end_until(End& end, const std::function<bool()>& reached,
                         std::chrono::milliseconds budget) {
  const auto deadline = RealTime::now() + budget;
  const std::array<transport::Link*, 1> links = {end.link.get()};
  for (;;) {
    end.pump();
    if (reached()) return true;
    if (RealTime::now() >= deadline) return false;
    medium.wait_for_progress(links);
  }
}

bool wait_until(Medium& medium, const std::function<bool()>& reached,
                std::chrono::milliseconds budget) {
  const auto deadline = RealTime::now() + budget;
  while (!reached()) {
    if (RealTime::now() >= deadline) return false;
    medium.wait_for_progress({});
  }
  return true;
}

// ---------------------------------------------------------------------------------- bytes

std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = pattern_byte(i, seed);
  return bytes;
}

bool has_pattern(std::span<const std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern_byte(i, seed)) return false;
  }
  return true;
}

Buffer pattern_buffer(std::size_t size, std::uint64_t seed, std::weak_ptr<void>* watch) {
  auto owner = std::make_shared<std::vector<std::byte>>(pattern(size, seed));
  if (watch) *watch = owner;
  std::byte* data = owner->data();
  return Buffer(data, size, std::move(owner));
}

}  // namespace hawser::contract
