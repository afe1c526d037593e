#include "hawser/transport/shm/shm_link.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "hawser/base/step.h"
#include "support/shm_nodes.h"

namespace hawser::transport::shm {
namespace {

TEST(ShmLink, SmallAndLargeSegmentsArrive) {
  LinkedNodes nodes;
  ASSERT_TRUE(nodes.left_link && nodes.right_link);
  ASSERT_TRUE(nodes.left_link->send(call(kBody, {filled(10, 1), filled(3 * kMiB, 2), Buffer()})));
  wire::InFrame frame;
  ASSERT_EQ(wait_receive(*nodes.right_link, frame), Link::Received::Frame);
  ASSERT_EQ(frame.segments.size(), 3u);
  EXPECT_TRUE(holds(frame.segments[0], 1));
  EXPECT_TRUE(holds(frame.segments[1], 2));
  EXPECT_NE(std::get_deleter<AdoptedBlock>(frame.segments[1].owner()), nullptr);
  EXPECT_EQ(frame.segments[2].size(), 0u);
}

TEST(ShmLink, AnUnsharedSegmentIsHandedBackAndASharedOneCopied) {
  LinkedNodes nodes;
  ASSERT_TRUE(nodes.left_link && nodes.right_link);
  const std::size_t rings = nodes.right_link->stats().bytes_shared;
  for (const bool kept : {false, true}) {
    ASSERT_TRUE(nodes.left_link->send(call(kBody, {filled(kMiB, 1)})));
    wire::InFrame frame;
    ASSERT_EQ(wait_receive(*nodes.right_link, frame), Link::Received::Frame);
    const std::size_t with_left_arena = nodes.right_link->stats().bytes_shared;
    EXPECT_GT(with_left_arena, rings);
    const Buffer keeper = kept ? frame.segments[0] : Buffer();
    std::memset(frame.segments[0].data(), 2, kMiB);
    ASSERT_TRUE(nodes.right_link->send(call(kBody, std::move(frame.segments))));
    // Only a copy needs an arena of the right one's own.
    EXPECT_EQ(nodes.right_link->stats().bytes_shared > with_left_arena, kept);
    ASSERT_EQ(wait_receive(*nodes.left_link, frame), Link::Received::Frame);
    EXPECT_TRUE(holds(frame.segments.at(0), 2));
  }
}

TEST(ShmLink, AFullArenaIsNoObstacle) {
  Limits limits;
  limits.max_arena_bytes_per_peer = kMiB;
  LinkedNodes nodes({}, limits);
  ASSERT_TRUE(nodes.left_link && nodes.right_link);
  std::vector<Buffer> kept;
  for (int i = 0; i < 10; ++i) {
    const std::size_t size = i % 2 ? 300'000 : 5 * kMiB;
    ASSERT_TRUE(nodes.left_link->send(call(kBody, {filled(size, i)})));
    wire::InFrame frame;
    ASSERT_EQ(wait_receive(*nodes.right_link, frame, nodes.left_link.get()), Link::Received::Frame);
    kept.push_back(frame.segments.at(0));
  }
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(holds(kept[i], i));
  EXPECT_LE(nodes.right_link->stats().bytes_shared, 2 * kMiB);
}

TEST(ShmLink, ReceivedMemoryOutlivesEverything) {
  wire::InFrame frame;
  {
    LinkedNodes nodes;
    ASSERT_TRUE(nodes.left_link && nodes.right_link);
    ASSERT_TRUE(nodes.left_link->send(call(kBody, {filled(kMiB, 4)})));
    ASSERT_EQ(wait_receive(*nodes.right_link, frame), Link::Received::Frame);
  }
  EXPECT_TRUE(holds(frame.segments.at(0), 4));
}

TEST(ShmLink, TheSocketsOfManyLinksAndTheirMemoryAreGivenBack) {
  { LinkedNodes warm_up; }
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    LinkedNodes nodes;
    ASSERT_TRUE(nodes.left_link && nodes.right_link);
    ASSERT_TRUE(nodes.left_link->send(call(kBody, {filled(kMiB, 4)})));
    wire::InFrame frame;
    ASSERT_EQ(wait_receive(*nodes.right_link, frame), Link::Received::Frame);
  }
  EXPECT_EQ(open_descriptors(), before);
}

// What rings and arenas cost in real memory, in KiB; pages that are mapped several times count
// once.
std::size_t shared_kib() {
  std::ifstream maps("/proc/self/smaps");
  std::size_t sum = 0;
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:hawser-ring") != line.npos ||
        line.find("memfd:hawser-arena") != line.npos) {
      ours = true;
    } else if (ours && line.starts_with("Pss:")) {
      sum += std::stoul(line.substr(4));
      ours = false;
    }
  }
  return sum;
}

TEST(ShmLink, AnIdlePairCostsLittleAlsoAfterABurst) {
  ShmOptions options;
  options.trim_interval = 20ms;
  LinkedNodes nodes(options);
  ASSERT_TRUE(nodes.left_link && nodes.right_link);
  EXPECT_LE(shared_kib(), 64u) << "before the first frame";
  wire::InFrame frame;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(nodes.left_link->send(call(kBody, {filled(20'000, 1), filled(kMiB, 2)})));
    ASSERT_EQ(wait_receive(*nodes.right_link, frame), Link::Received::Frame);
    ASSERT_TRUE(nodes.right_link->send(call(kBody, {filled(20'000, 1)})));
    ASSERT_EQ(wait_receive(*nodes.left_link, frame), Link::Received::Frame);
  }
  frame = {};
  EXPECT_TRUE(reaches([] { return shared_kib() <= 256; })) << shared_kib() << " KiB";
}

TEST(ShmLink, CorruptIndicesCloseItWithAReason) {
  LinkedNodes nodes;
  ASSERT_TRUE(nodes.left_link && nodes.right_link);
  // The left link's process writes nonsense over everything it shares: found by its name.
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:hawser-ring") == line.npos || line.find(" 00000000 ") == line.npos)
      continue;
    auto* tail = reinterpret_cast<std::atomic<std::uint64_t>*>(std::stoull(line, nullptr, 16));
    tail->store(std::uint64_t{1} << 40);
  }
  wire::InFrame frame;
  EXPECT_EQ(wait_receive(*nodes.right_link, frame), Link::Received::Closed);
  EXPECT_TRUE(nodes.right_link->close_reason());
  EXPECT_FALSE(nodes.right_link->send(call(kBody)));
  EXPECT_EQ(wait_receive(*nodes.right_link, frame), Link::Received::Closed);
}

// ---------------------------------------------------------------------------------- bells

#ifdef HAWSER_DELIBERATE_FAULTS
void dawdle() {
  thread_local std::minstd_rand random(static_cast<unsigned>(::gettid()));
  for (unsigned i = random() % 8 == 0 ? random() % 50 : 0; i > 0; --i) ::sched_yield();
}
#endif

// One end of a conversation that sleeps whenever there is nothing to do; no time-out would hide a
// lost bell, it fails the test.
class Sleeper {
 public:
  Sleeper(Node& node, Link& link) : node_(node), link_(link) {}

  bool receive(wire::InFrame& frame) {
    for (;;) {
      const auto received = link_.receive(frame);
      if (received == Link::Received::Frame) return true;
      if (received == Link::Received::Closed) return false;
      if (!sleep_unless_pending()) return false;
    }
  }
  // Until everything is written, and what lies in the arena is taken (LINK-7).
  bool flush() {
    wire::InFrame frame;
    while (link_.backlogged(0)) {
      if (link_.receive(frame) != Link::Received::Nothing || !sleep_unless_pending()) return false;
    }
    return true;
  }

 private:
  bool sleep_unless_pending() {
    node_.bell.announce_sleep();
    if (!link_.pending()) {
      pollfd bell{node_.bell.event_fd(), POLLIN, 0};
      if (::poll(&bell, 1, 20'000) != 1) return false;
    }
    std::uint64_t rings = 0;
    if (::read(node_.bell.event_fd(), &rings, sizeof rings) < 0 && errno != EAGAIN) return false;
    node_.bell.announce_awake();
    return true;
  }
  Node& node_;
  Link& link_;
};

TEST(ShmLink, NoBellIsLost) {
  ShmOptions options;
  options.ring_bytes = 4096;
  options.inline_limit = 50'000;
  LinkedNodes nodes(options);
  ASSERT_TRUE(nodes.left_link && nodes.right_link);
#ifdef HAWSER_DELIBERATE_FAULTS
  hawser::testing::step_hook = &dawdle;
#endif
  constexpr int kRounds = 3000;
  std::jthread echo([&] {
    Sleeper right(nodes.right, *nodes.right_link);
    wire::InFrame frame;
    for (int i = 0; i < kRounds && right.receive(frame); ++i) {
      nodes.right_link->send(call(kBody, std::move(frame.segments)));
    }
    EXPECT_TRUE(right.flush());
  });
  Sleeper left(nodes.left, *nodes.left_link);
  std::mt19937 random(3);
  for (int i = 0; i < kRounds; ++i) {
    const std::size_t size = random() % 4 ? random() % 100 : random() % 40'000;
    ASSERT_TRUE(nodes.left_link->send(call(kBody, {filled(size, i)})));
    wire::InFrame frame;
    ASSERT_TRUE(left.receive(frame)) << "round " << i;
    ASSERT_EQ(frame.segments.at(0).size(), size);
    ASSERT_TRUE(holds(frame.segments[0], i));
  }
#ifdef HAWSER_DELIBERATE_FAULTS
  hawser::testing::step_hook = nullptr;
#endif
}

TEST(ShmLink, WhatIsSentAtLeisureWakesNobodyUnlessTheRingIsFull) {
  ShmOptions options;
  options.ring_bytes = 4096;
  LinkedNodes nodes(options);
  ASSERT_TRUE(nodes.left_link && nodes.right_link);
  nodes.right.bell.announce_sleep();
  ASSERT_TRUE(nodes.left_link->send_at_leisure(call(kBody, {filled(10, 1)})));
  EXPECT_TRUE(nodes.right.bell.announced_asleep());
  wire::InFrame frame;
  ASSERT_EQ(wait_receive(*nodes.right_link, frame), Link::Received::Frame);
  EXPECT_TRUE(holds(frame.segments.at(0), 1));
  constexpr int kMoreThanFit = 100;
  for (int i = 0; i < kMoreThanFit; ++i) {
    ASSERT_TRUE(nodes.left_link->send_at_leisure(call(kBody, {filled(100, i)})));
  }
  EXPECT_FALSE(nodes.right.bell.announced_asleep());
  for (int i = 0; i < kMoreThanFit; ++i) {
    wire::InFrame left_behind;
    nodes.left_link->receive(left_behind);  // writes on
    ASSERT_EQ(wait_receive(*nodes.right_link, frame), Link::Received::Frame);
    ASSERT_TRUE(holds(frame.segments.at(0), i));
  }
}

// ---------------------------------------------------------------------------------- processes

// A child process that listens, tells where, and echoes frames until it is killed.
class EchoProcess {
 public:
  EchoProcess() {
    int ends[2];
    if (::pipe(ends) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) serve(ends[1]);
    ::close(ends[1]);
    char text[256];
    const ssize_t length = ::read(ends[0], text, sizeof text);
    endpoint_.assign(text, length > 0 ? static_cast<std::size_t>(length) : 0);
    ::close(ends[0]);
  }
  ~EchoProcess() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  const std::string& endpoint() const { return endpoint_; }

 private:
  [[noreturn]] static void serve(int tell) {
    Node node("echo");
    const std::string endpoint = node.transport->listen();
    if (::write(tell, endpoint.data(), endpoint.size()) < 0) ::_exit(1);
    const auto link = node.host.wait_accepted();
    wire::InFrame frame;
    while (link && wait_receive(*link, frame) == Link::Received::Frame) {
      link->send(call(frame.body.view(), std::move(frame.segments)));
    }
    ::_exit(0);
  }
  pid_t pid_ = 0;
  std::string endpoint_;
};

std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm"))
    names.insert(file.path());
  return names;
}

TEST(ShmProcess, KillAtAnyMomentClosesTheLinkAndLeavesNothing) {
  const auto files = shared_memory_files();
  const std::size_t descriptors = open_descriptors();
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    EchoProcess echo;
    ASSERT_FALSE(echo.endpoint().empty());
    Node node("caller");
    const auto link = link_of(node.connect(echo.endpoint(), "echo"));
    ASSERT_TRUE(link);
    std::vector<Buffer> kept;
    const auto kill_at =
        std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 20'000);
    bool killed = false;
    for (int i = 0;; ++i) {
      const std::size_t size = i % 3 == 0 ? 2 * kMiB : random() % 70'000;
      const bool accepted = link->send(call(kBody, {filled(size, i)}));
      if (!killed && std::chrono::steady_clock::now() > kill_at) {
        echo.kill();
        killed = true;
      }
      wire::InFrame frame;
      const auto received = wait_receive(*link, frame);
      ASSERT_NE(received, Link::Received::Nothing);
      if (received == Link::Received::Closed) break;
      ASSERT_TRUE(accepted);
      ASSERT_TRUE(holds(frame.segments.at(0), i));
      if (kept.size() < 4) kept.push_back(frame.segments[0]);
    }
    EXPECT_FALSE(link->send(call(kBody)));
    for (const Buffer& buffer : kept) EXPECT_EQ(buffer.bytes().front(), buffer.bytes().back());
  }
  EXPECT_EQ(shared_memory_files(), files);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(ShmProcess, AForkedChildDoesNotDisturbItsParentsLink) {
  LinkedNodes nodes;
  ASSERT_TRUE(nodes.left_link && nodes.right_link);
  const pid_t child = ::fork();
  if (child == 0) {
    nodes.left_link->close();
    nodes.left_link.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(nodes.left_link->send(call(kBody)));
  wire::InFrame frame;
  EXPECT_EQ(wait_receive(*nodes.right_link, frame), Link::Received::Frame);
}

}  // namespace
}  // namespace hawser::transport::shm
