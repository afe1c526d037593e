// Programs that a connected process starts: they inherit nothing of its node.
#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "process/roles.h"
#include "process/world.h"

namespace hawser::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::set<int> open_descriptors() {
  std::set<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    numbers.insert(std::stoi(entry.path().filename()));
  }
  // Not that of the iterator itself, which is gone.
  std::erase_if(numbers, [](int number) { return ::fcntl(number, F_GETFD) < 0; });
  return numbers;
}

}  // namespace

int spawn_while_connected(Channel& test, const std::vector<std::string>& arguments) {
  Node node(from_arguments(arguments));
  const auto held = node.call<void>("peer", "hold");
  test.expect("go on");
  char program[] = "sleep", seconds[] = "60";
  char* const words[] = {program, seconds, nullptr};
  pid_t sleeper = 0;
  if (::posix_spawnp(&sleeper, program, nullptr, nullptr, words, environ) != 0) return 1;
  test.tell("spawned " + std::to_string(sleeper));
  test.await_end();
  return 0;
}

namespace {

class Spawned : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(Transports, Spawned, kTransports);

// posix_spawn() and system() run no fork handlers.
TEST_P(Spawned, AProgramDoesNotKeepItsParentsConnections) {
  adopt_orphans();
  Node peer(options("peer"));
  Event held, cancelled;
  peer.serve("hold", [&](const CallContext& context) {
    context.on_cancel([&] { cancelled.set(); });
    held.set();
    cancelled.sleep_until(Deadline::after(SteadyClock(), kPatience));
  });
  Process parent({.role = "spawner", .arguments = to_arguments(options("parent"))});
  ASSERT_TRUE(held.sleep_until(Deadline::after(SteadyClock(), kPatience)));
  parent.channel().tell("go on");
  const pid_t sleeper = std::stoi(parent.channel().expect("spawned "));

  const auto killed = Clock::now();
  parent.kill();
  EXPECT_TRUE(cancelled.sleep_until(Deadline::after(SteadyClock(), kPatience)));
  EXPECT_LT(Clock::now() - killed, kAtOnce);
  EXPECT_TRUE(eventually([&] { return peer_of(peer, "parent").state == "lost"; }));
  EXPECT_EQ(::kill(sleeper, 0), 0) << "the program should run";
  parent.wait();
  bury_orphan(sleeper);
}

// Of a node that hosts the rendezvous, has connected to somebody and has been connected to.
TEST_P(Spawned, EveryDescriptorIsClosedOnExec) {
  const auto member = [&, port = free_port()](const std::string& name, std::uint32_t rank) {
    NodeOptions own = options(name);
    own.rendezvous = "tcp://127.0.0.1:" + std::to_string(port);
    own.rank = rank;
    own.world_size = 3;
    return own;
  };
  Worker callee = Worker::begin(member("callee", 1)), caller = Worker::begin(member("caller", 2));
  const std::set<int> before = open_descriptors();
  Node node(member("node", 0));
  node.serve("add", [](std::int64_t a, std::int64_t b) { return a + b; });
  callee.joined();
  caller.joined();
  node.call<at::Tensor>("callee", "echo", at::ones({kMiB}, at::kByte)).get();
  EXPECT_EQ(caller.call_all({"node"}), 1u);
  std::size_t seen = 0;
  for (const int number : open_descriptors()) {
    if (before.contains(number)) continue;
    const auto what = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(number));
    // With a pipe to itself TCPStore tells its own thread to end; nobody waits at its other end.
    if (what.string().starts_with("pipe:")) continue;
    ++seen;
    EXPECT_NE(::fcntl(number, F_GETFD) & FD_CLOEXEC, 0) << what;
  }
  EXPECT_GT(seen, 5u);
}

}  // namespace
}  // namespace hawser::testing
