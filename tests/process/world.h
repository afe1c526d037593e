#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hawser/hawser.h"
#include "support/outcome.h"
#include "support/process.h"

// What the process tests share: a world for one test, and members of it in processes of their own.
namespace hawser::testing {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

using namespace std::chrono_literals;

// What happens "at once" happens within this, also on a machine that is busy with other things.
inline constexpr Duration kAtOnce = 2s;

// A detector that notices silence fast enough for a test. `lost_after` is wide where nothing must
// be lost: the test machine itself may pause.
FailureDetectorOptions quick_detector(Duration lost_after);

// The rendezvous of one test: a file in a directory that goes with it.
class World {
 public:
  World();
  ~World();
  World(const World&) = delete;

  const std::filesystem::path& directory() const { return directory_; }
  std::string rendezvous() const;
  // A node of this world by the one transport.
  NodeOptions options(const std::string& name, const std::string& transport) const;

 private:
  std::filesystem::path directory_;
};

// A node in a process of its own, that does as it is told. It serves:
//   add(int, int), echo(Tensor)
//   hold()              says "holding", and "cancelled" once it is; returns then
//   keep(Tensor)        keeps it, and returns how many it has kept
//   kept(int)           the one of that number
//   make(int)           a byte tensor of that size
//   hold_refs(list of Ref), pass_on(node, Ref)   keeps them; the second gives it on first
//   use_refs(), drop_refs()                      fetches them all; lets them go
//   follow(Ref)         fetches its value, says "following", and returns the value once it is there
//   count_refs(), describe_refs()                references and referenced values it has
//   resident()          bytes of memory in use
//   scale(Tensor)       times its weight, a leaf of four doubles that are 2
//   scale_via(node, function, Tensor)   scales, and returns what that function makes of it
//   stall_backward(Tensor)              the same tensor; says "in backward" and then stays there
//   gradient(context)   of its weight; undefined if there is none
//   count_autograd()    contexts and passes that it takes part in
//   hold_context(node)  calls scale there in a context of its own, says "holding", and stays in it
//   turned_away()       connections
//   incoming(peer)      calls of that peer that it has not answered, and how many of them it has
//   put
//                       aside
class Worker {
 public:
  // Returns when it has joined. Throws when it could not.
  explicit Worker(const NodeOptions& options, std::map<std::string, std::string> environment = {});
  // The same in two steps, for many at once: begin(), then joined().
  static Worker begin(const NodeOptions& options,
                      std::map<std::string, std::string> environment = {});
  void joined(Duration patience = kPatience);

  Process& process() { return process_; }
  Channel& channel() { return process_.channel(); }
  std::uint64_t incarnation() const { return incarnation_; }  // when it joined
  const std::vector<std::string>& endpoints() const { return endpoints_; }

  // Lets it call a function without arguments and result. It says "outcome <function> ok", or
  // "outcome <function> <error kind>".
  void call(const std::string& peer, const std::string& function);
  // Lets it call add on each of these, all at once; then, how many answered rightly.
  void ask_all(const std::vector<std::string>& peers);
  std::size_t answered(Duration patience = kPatience);
  std::size_t call_all(const std::vector<std::string>& peers) {
    ask_all(peers);
    return answered();
  }
  // Lets it call make(bytes) so many times, and returns when all are sent. It says "made <number>"
  // when all are over: those that were as they should be. It keeps none.
  void ask_to_make(const std::string& peer, std::size_t calls, std::int64_t bytes);
  // Lets it be killed at that step from now on, of setting up connections and moving bytes.
  void die_at_step(int step);
  // Its own incarnation by now.
  std::uint64_t ask_incarnation();

 private:
  explicit Worker(Process process) : process_(std::move(process)) {}
  Process process_;
  std::uint64_t incarnation_ = 0;
  std::vector<std::string> endpoints_;
};

// How a worker learns its options; only what the tests need.
std::vector<std::string> to_arguments(const NodeOptions& options);
NodeOptions from_arguments(const std::vector<std::string>& arguments);

// What `node` reports about a peer.
agent::PeerReport peer_of(const Node& node, const std::string& peer);

// The references and referenced values that `node` has, for the message of a test; not all of many.
std::string describe_refs(const Node& node);

// A loopback port that nobody used a moment ago.
std::uint16_t free_port();

// Bytes of a process that are in memory.
std::uint64_t resident_bytes(pid_t pid);

// For suites that run over every transport.
inline const auto kTransports = ::testing::Values("shm", "tcp");

class OverTransports : public ::testing::TestWithParam<const char*> {
 protected:
  NodeOptions options(const std::string& name) const { return world_.options(name, GetParam()); }
  World world_;
};

}  // namespace hawser::testing
