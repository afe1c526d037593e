#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/limits.h"
#include "hawser/transport/link.h"
#include "hawser/transport/transport.h"
#include "hawser/wire/frame.h"

// The contract of link.h and transport.h, checked on every transport. A transport takes part with
// one file, tests/contract/<name>_contract.cpp, that implements Medium and ends with
//
//   INSTANTIATE_TEST_SUITE_P(shm, LinkContract, ::testing::Values(MediumFactory(make_shm_medium)));
//   INSTANTIATE_TEST_SUITE_P(shm, TransportContract, ::testing::Values(...the same...));
//
// tcp_contract.cpp is the example; media with a control thread and descriptors derive RealMedium.
namespace hawser::contract {

// What carries the bytes of one test: makes transports that can reach each other, and can be
// damaged. Owns whatever they share (control thread, pools, a simulated network) and outlives them.
class Medium {
 public:
  virtual ~Medium() = default;

  // A transport of its own for `host`, which outlives it.
  virtual std::unique_ptr<transport::Transport> create(transport::Host& host,
                                                       const Limits& limits) = 0;

  // Deadlines given to connect() are measured by this.
  virtual const Clock& clock() const = 0;

  // Lets things move: waits until one of the links may have something to receive or can write on,
  // or for at most a few milliseconds; a simulated medium moves its clock instead.
  virtual void wait_for_progress(std::span<transport::Link* const> links) = 0;

  // What the kernel does when the process that holds this end is killed. The link is not used
  // afterwards.
  virtual void kill(transport::Link& end) = 0;

  // Puts bytes that are no part of the protocol on their way to the other end. False: the medium
  // has no way to do that.
  virtual bool inject(transport::Link& from, std::span<const std::byte> bytes) = 0;

  // Whether a sender notices that nobody reads. A medium that takes everything at once says no.
  virtual bool has_back_pressure() const { return true; }
};

using MediumFactory = std::function<std::unique_ptr<Medium>()>;

// Completes exactly once, or the test fails: dropped without a call, or called twice.
class Trap {
 public:
  explicit Trap(std::string what) : what_(std::move(what)) {}
  Trap(Trap&& other) noexcept
      : what_(std::move(other.what_)), armed_(std::exchange(other.armed_, false)) {}
  ~Trap() {
    if (armed_) ADD_FAILURE() << what_ << ": the completion was dropped";
  }
  void spring() {
    if (!std::exchange(armed_, false)) ADD_FAILURE() << what_ << ": completed a second time";
  }

 private:
  std::string what_;
  bool armed_ = true;
};

// A node as far as a transport knows it. Thread-safe.
class TestHost final : public transport::Host {
 public:
  explicit TestHost(std::string name);

  transport::Identity identity() const override;
  std::optional<wire::Refusal> admit(const wire::Hello& stranger) override;
  void accepted(std::shared_ptr<transport::Link> link) override;
  void turned_away(std::string_view why) override;
  void watch_writable(transport::Link& link) override;
  bool held_back(std::shared_ptr<transport::Link> link) override;

  // Somebody will flush what links hold back: the test.
  void flush_later();
  void set_identity(transport::Identity identity);
  void refuse_with(std::optional<wire::Refusal> refusal);
  // Called, on any thread, whenever a link asks to be watched for writing.
  void when_asked_to_watch(std::function<void()> tell);
  // The oldest accepted link that was not taken yet.
  std::shared_ptr<transport::Link> take_accepted();
  std::vector<std::string> turned_away_because() const;
  std::size_t times_asked_to_watch() const;

 private:
  mutable std::mutex mutex_;
  transport::Identity identity_;
  std::optional<wire::Refusal> refusal_;
  std::deque<std::shared_ptr<transport::Link>> accepted_;
  std::vector<std::string> turned_away_;
  std::size_t times_asked_to_watch_ = 0;
  bool flushes_later_ = false;
  std::function<void()> tell_;
};

// One node of a test: host, transport, at most one link, and what came out of it.
struct End {
  End(Medium& medium, std::string name, const Limits& limits);
  ~End();

  // Receives until there is nothing more, at most `at_most` calls. False once the link is closed.
  bool pump(int at_most = 64);

  TestHost host;
  std::unique_ptr<transport::Transport> transport;
  std::shared_ptr<transport::Link> link;
  std::deque<wire::InFrame> inbox;
  bool closed = false;
};

// What connect() led to. That it leads there exactly once is watched by a Trap.
class Connecting {
 public:
  bool done() const;
  void complete(transport::ConnectOutcome outcome);
  transport::ConnectOutcome take();

 private:
  mutable std::mutex mutex_;
  std::optional<transport::ConnectOutcome> outcome_;
};
std::shared_ptr<Connecting> start_connect(Medium& medium, End& from, const std::string& endpoint,
                                          const std::string& peer_name, Duration budget);

struct PairLimits {
  Limits left;
  Limits right;
};

// "left" connected to "right", which listens.
class Pair {
 public:
  explicit Pair(Medium& medium, const PairLimits& limits = {});

  // Pumps both ends until `reached`; false after `budget` of real time.
  bool run_until(const std::function<bool()>& reached,
                 std::chrono::milliseconds budget = std::chrono::seconds(20));
  // The same, pumping one end only: the other one does not read.
  bool run_end_until(End& end, const std::function<bool()>& reached,
                     std::chrono::milliseconds budget = std::chrono::seconds(20));

  Medium& medium;
  End left;
  End right;
};

// Pumps nothing: for what happens on the control thread.
bool wait_until(Medium& medium, const std::function<bool()>& reached,
                std::chrono::milliseconds budget = std::chrono::seconds(20));

// Bytes that tell where they come from: `seed` and position decide each one.
std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed);
bool has_pattern(std::span<const std::byte> bytes, std::uint64_t seed);
// A buffer with that pattern whose owner counts: expired when everybody has let go.
Buffer pattern_buffer(std::size_t size, std::uint64_t seed, std::weak_ptr<void>* watch = nullptr);

class LinkContract : public ::testing::TestWithParam<MediumFactory> {
 protected:
  std::unique_ptr<Medium> medium_ = GetParam()();
};
class TransportContract : public ::testing::TestWithParam<MediumFactory> {
 protected:
  std::unique_ptr<Medium> medium_ = GetParam()();
};

}  // namespace hawser::contract
