// fork() while connected.
#include <ATen/ops/full.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <sstream>

#include "process/roles.h"
#include "process/world.h"

namespace hawser::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Inheritance {
  std::optional<Node> node;
  Future<void> held;    // a call that is under way
  at::Tensor received;  // may lie in memory that is shared with the peer
};

// What a forked child finds when it uses what it inherited.
std::string use_in_child(Inheritance& inherited) {
  std::string found = inherited.node->closed() ? "closed" : "open";
  try {
    inherited.node->call<void>("peer", "greet");
    found += " called";
  } catch (const Error& error) {
    found += " " + std::string(to_string(error.kind()));
  }
  found += inherited.held.done() ? " done" : " pending";
  try {
    inherited.held.cancel();
    inherited.held.get();
    found += " got";
  } catch (const Error& error) {
    found += " " + std::string(to_string(error.kind()));
  }
  found += Node::find_current() ? " current" : " nobody";
  inherited.received.reset();
  inherited.node->close();
  inherited.node.reset();
  return found;
}

// Whether a node of its own works in the child.
std::string join_in_child(NodeOptions options) {
  options.name = "child";
  Node node(std::move(options));
  const bool is_current = &Node::current() == &node;
  return is_current && node.call<void>("peer", "greet").wait().ok() ? "works" : "fails";
}

[[noreturn]] void live_as_child(Inheritance& inherited, const NodeOptions& options, int voice) {
  Channel test{transport::Descriptor(voice)};
  std::string report = "child " + std::to_string(::getpid()) + " " + use_in_child(inherited);
  report += " " + join_in_child(options);
  test.tell(report);
  test.await_end();  // it is the parent who listens; the test kills this one, or ends itself
  ::_exit(0);
}

// The memory that the child let go of is still the parent's: nothing new may land in it.
bool received_is_unharmed(Inheritance& inherited) {
  const at::Tensor expected = inherited.received.clone();
  for (int i = 0; i < 32; ++i) {
    inherited.node->call<at::Tensor>("peer", "fresh", kMiB).get();
  }
  return inherited.received.equal(expected);
}

}  // namespace

int fork_while_connected(Channel& test, const std::vector<std::string>& arguments) {
  const NodeOptions options = from_arguments(arguments);
  Inheritance inherited;
  inherited.node.emplace(options);
  inherited.received = inherited.node->call<at::Tensor>("peer", "fresh", kMiB).get();
  inherited.held = inherited.node->call<void>("peer", "hold");
  // The child closes what it inherits of hawser's descriptors, and the channel is one of them.
  const int voice = ::dup(test.descriptor());
  if (::fork() == 0) live_as_child(inherited, options, voice);
  ::close(voice);
  test.expect("go on");
  test.tell(received_is_unharmed(inherited) ? "unharmed" : "overwritten");
  test.hear();
  return 0;
}

namespace {

class Forked : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(Transports, Forked, kTransports);

TEST_P(Forked, TheChildCanDoNothingAndKeepsNothingOpen) {
  adopt_orphans();
  Node peer(options("peer"));
  Event cancelled;
  std::atomic<int> made{0};
  peer.serve("greet", [] {});
  peer.serve("fresh", [&](std::int64_t bytes) { return at::full({bytes}, ++made, at::kByte); });
  peer.serve("hold", [&](const CallContext& context) {
    context.on_cancel([&] { cancelled.set(); });
    cancelled.sleep_until(Deadline::after(SteadyClock(), kPatience));
  });
  Process parent({.role = "forker", .arguments = to_arguments(options("parent"))});
  std::istringstream report(parent.channel().expect("child "));
  pid_t child = 0;
  std::string state, called, future, waited, current, own_node;
  report >> child >> state >> called >> future >> waited >> current >> own_node;
  EXPECT_EQ(state, "closed");
  EXPECT_EQ(called, "Invalid");
  EXPECT_EQ(future, "pending");
  EXPECT_EQ(waited, "Invalid");
  EXPECT_EQ(current, "nobody");
  EXPECT_EQ(own_node, "works");
  EXPECT_EQ(parent.output(), "");

  parent.channel().tell("go on");
  parent.channel().expect("unharmed");
  EXPECT_FALSE(cancelled.happened()) << "the call is the parent's";
  EXPECT_EQ(peer_of(peer, "parent").state, "connected");

  const auto killed = Clock::now();
  parent.kill();
  EXPECT_TRUE(cancelled.sleep_until(Deadline::after(SteadyClock(), kPatience)));
  EXPECT_LT(Clock::now() - killed, kAtOnce);
  EXPECT_TRUE(eventually([&] { return peer_of(peer, "parent").state == "lost"; }));
  EXPECT_EQ(::kill(child, 0), 0) << "the child should live";
  EXPECT_EQ(parent.wait(), (Ending{.code = {}, .signal = SIGKILL}));
  bury_orphan(child);
}

}  // namespace
}  // namespace hawser::testing
