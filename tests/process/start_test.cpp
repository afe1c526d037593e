// Starting: in vain, together, late, and several in one process.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "hawser/transport/listen.h"
#include "process/world.h"

namespace hawser::testing {
namespace {

using Clock = std::chrono::steady_clock;

// ---------------------------------------------------------------------------------- failed starts

struct FailedStart {
  const char* name;
  std::function<void(NodeOptions&)> spoil;
  ErrorKind kind;
  const char* says;
};

void PrintTo(const FailedStart& start, std::ostream* out) { *out << start.name; }

class FailedStarts : public ::testing::TestWithParam<FailedStart> {
 protected:
  World world_;
};

// 203.0.113.0/24 is reserved for documentation: no interface has it.
INSTANTIATE_TEST_SUITE_P(
    , FailedStarts,
    ::testing::Values(
        FailedStart{"NoRendezvous", [](NodeOptions& o) { o.rendezvous.clear(); },
                    ErrorKind::Invalid, "neither a rendezvous nor a store"},
        FailedStart{"UnknownScheme", [](NodeOptions& o) { o.rendezvous = "ftp://x"; },
                    ErrorKind::Invalid, "unknown scheme"},
        FailedStart{"NoSuchDirectory",
                    [](NodeOptions& o) { o.rendezvous = "file:///no/such/file"; },
                    ErrorKind::Invalid, "No such file"},
        FailedStart{"NobodyHostsTheRendezvous",
                    [](NodeOptions& o) {
                      o.rendezvous = "tcp://127.0.0.1:" + std::to_string(free_port());
                      o.rendezvous_timeout = 300ms;
                      o.rank = 1;
                      o.world_size = 2;
                    },
                    ErrorKind::Timeout, "cannot be reached"},
        FailedStart{"NoSuchPort",
                    [](NodeOptions& o) {
                      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
                      ::setenv("MASTER_PORT", "65537", 1);
                      o.rendezvous = "env://";
                      o.rank = 0;
                      o.world_size = 1;
                    },
                    ErrorKind::Invalid, "65537"},
        FailedStart{"UnknownTransport", [](NodeOptions& o) { o.transports = {"pigeon"}; },
                    ErrorKind::Invalid, "pigeon"},
        FailedStart{"NoTransport", [](NodeOptions& o) { o.transports = {}; }, ErrorKind::Invalid,
                    "transports"},
        FailedStart{"UnknownInterface", [](NodeOptions& o) { o.interfaces = "=pigeon0"; },
                    ErrorKind::Invalid, "pigeon0"},
        FailedStart{"ForeignAddress", [](NodeOptions& o) { o.address = "203.0.113.77"; },
                    ErrorKind::Invalid, "203.0.113.77"},
        FailedStart{"BadName", [](NodeOptions& o) { o.name = "two words"; }, ErrorKind::Invalid,
                    "two words"},
        FailedStart{"RankOutOfRange",
                    [](NodeOptions& o) {
                      o.rank = 2;
                      o.world_size = 2;
                    },
                    ErrorKind::Invalid, "rank 2"},
        FailedStart{"NoSuchTokenFile", [](NodeOptions& o) { o.token_file = "/no/such/token"; },
                    ErrorKind::Invalid, "/no/such/token"}),
    [](const auto& start) { return start.param.name; });

TEST_P(FailedStarts, SayWhyAndLeaveRoomForAGoodOne) {
  NodeOptions spoilt = world_.options("node", "tcp");
  GetParam().spoil(spoilt);
  const auto started = Clock::now();
  const Error error = error_of([&] { Node node(spoilt); });
  EXPECT_EQ(error.kind(), GetParam().kind) << error.what();
  EXPECT_NE(error.message().find(GetParam().says), std::string::npos) << error.what();
  EXPECT_LT(Clock::now() - started, kAtOnce);

  Node good(world_.options("node", "tcp"));
  good.serve("f", [] {});
  good.call<void>("node", "f").get();
  EXPECT_TRUE(good.close());
  EXPECT_TRUE(good.close());
}

// ---------------------------------------------------------------------------------- token files

class TokenFile : public ::testing::Test {
 protected:
  // In the world's own directory.
  std::string write_token(const std::string& name, const std::string& text, mode_t mode) {
    const std::filesystem::path path = world_.directory() / name;
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path.string();
  }
  void expect_refused(const std::string& path, const std::string& says) {
    NodeOptions options = world_.options("node", "tcp");
    options.token_file = path;
    const Error error = error_of([&] { Node node(options); });
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    EXPECT_NE(error.message().find(path), std::string::npos) << error.what();
    EXPECT_NE(error.message().find(says), std::string::npos) << error.what();
  }
  World world_;
};

TEST_F(TokenFile, ThatOthersMayReadOrWriteIsRefused) {
  for (const mode_t mode : {0640, 0620, 0604, 0602, 0644}) {
    expect_refused(write_token("token", "Xk4PzQ0vTn\n", mode), "accessible to others");
  }
}

TEST_F(TokenFile, OfAnotherUserIsRefused) {
  std::string path = "/etc/passwd";  // whoever else runs this test does not own it
  if (::geteuid() == 0) {
    path = write_token("token", "Xk4PzQ0vTn\n", 0600);
    ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  }
  expect_refused(path, "must belong to the user");
}

TEST_F(TokenFile, ThatIsEmptyIsRefused) { expect_refused(write_token("token", "", 0600), "empty"); }

// The one by its option, the other by the environment; a third has the token itself.
TEST_F(TokenFile, LetsInWhoeverKnowsWhatItSays) {
  const std::string path = write_token("token", "Xk4PzQ0vTn\n", 0600);
  NodeOptions options = world_.options("by_option", "tcp");
  options.token_file = path;
  Node by_option(options);
  Worker by_environment(world_.options("by_environment", "tcp"), {{"HAWSER_TOKEN_FILE", path}});
  EXPECT_EQ(by_option.call<std::int64_t>("by_environment", "add", 1, 2).get(), 3);
  NodeOptions knowing = world_.options("knowing", "tcp");
  knowing.token = "Xk4PzQ0vTn";
  EXPECT_EQ(Node(knowing).call<std::int64_t>("by_environment", "add", 1, 2).get(), 3);
  Node ignorant(world_.options("ignorant", "tcp"));
  const Error error =
      error_of([&] { ignorant.call<std::int64_t>("by_environment", "add", 1, 2).get(); });
  EXPECT_EQ(error.kind(), ErrorKind::Refused) << error.what();
}

TEST(FailedStart, PortInUse) {
  const World world;
  const std::uint16_t port = free_port();
  NodeOptions options = world.options("node", "tcp");
  {
    const auto taken = transport::listen_on("127.0.0.1", port);
    options.port = port;
    const Error error = error_of([&] { Node node(options); });
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    EXPECT_NE(error.message().find("in use"), std::string::npos) << error.what();
    // With another transport left, it is a remark.
    NodeOptions both = options;
    both.transports = {"shm", "tcp"};
    const Node node(both);
    ASSERT_EQ(node.inspect().unavailable.size(), 1u);
    EXPECT_NE(node.inspect().unavailable.front().find("in use"), std::string::npos);
  }
  const Node node(options);
  EXPECT_EQ(node.inspect().endpoints.front(), "tcp:127.0.0.1:" + std::to_string(port));
}

TEST(FailedStart, RendezvousPortInUse) {
  const World world;
  const std::uint16_t port = free_port();
  NodeOptions options = world.options("node", "tcp");
  options.rendezvous = "tcp://127.0.0.1:" + std::to_string(port);
  options.rank = 0;
  options.world_size = 1;
  {
    const auto taken = transport::listen_on("127.0.0.1", port);
    const Error error = error_of([&] { Node node(options); });
    EXPECT_EQ(error.kind(), ErrorKind::Invalid) << error.what();
    EXPECT_NE(error.message().find("in use"), std::string::npos) << error.what();
  }
  Node node(options);
  node.serve("f", [] {});
  node.call<void>("node", "f").get();
}

// ---------------------------------------------------------------------------------- good starts

enum class Rendezvous {
  Tcp,
  TcpV6,
  File,
  Env,
  Launcher,  // as under torchrun: env://, and the store is there already
};

class StaticWorld : public ::testing::TestWithParam<Rendezvous> {
 protected:
  static constexpr std::uint32_t kSize = 3;

  std::string url() const {
    switch (GetParam()) {
      case Rendezvous::Tcp:
        return "tcp://127.0.0.1:" + std::to_string(port_);
      case Rendezvous::File:
        return world_.rendezvous();
      case Rendezvous::TcpV6:
        return "tcp://[::1]:" + std::to_string(port_);
      case Rendezvous::Env:
      case Rendezvous::Launcher:
        return "env://";
    }
    return "";
  }
  Worker start(std::uint32_t rank) const {
    NodeOptions options = world_.options("rank" + std::to_string(rank), "shm");
    options.transports = {"shm", "tcp"};
    options.rendezvous = url();
    std::map<std::string, std::string> environment;
    if (url() == "env://") {
      environment = {{"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", std::to_string(port_)},
                     {"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", std::to_string(kSize)}};
      if (GetParam() == Rendezvous::Launcher) {
        environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
      }
    } else {
      options.rank = rank;
      options.world_size = kSize;
    }
    return Worker::begin(options, environment);
  }

  World world_;
  const std::uint16_t port_ = free_port();
};

c10::intrusive_ptr<c10d::Store> host_store(std::uint16_t port) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

std::string name_of(Rendezvous rendezvous) {
  switch (rendezvous) {
    case Rendezvous::Tcp:
      return "Tcp";
    case Rendezvous::File:
      return "File";
    case Rendezvous::TcpV6:
      return "TcpV6";
    case Rendezvous::Env:
      return "Env";
    case Rendezvous::Launcher:
      return "Launcher";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Rendezvous, StaticWorld,
                         ::testing::Values(Rendezvous::Tcp, Rendezvous::TcpV6, Rendezvous::File,
                                           Rendezvous::Env, Rendezvous::Launcher),
                         [](const auto& each) { return name_of(each.param); });

TEST_P(StaticWorld, EverybodyCallsEverybody) {
  c10::intrusive_ptr<c10d::Store> launcher;
  if (GetParam() == Rendezvous::Launcher) launcher = host_store(port_);
  std::vector<Worker> workers;
  std::vector<std::string> names;
  for (std::uint32_t rank = 0; rank < kSize; ++rank) {
    workers.push_back(start(kSize - 1 - rank));  // whoever hosts the rendezvous is the last
    names.push_back("rank" + std::to_string(rank));
  }
  for (Worker& worker : workers) {
    worker.joined();
    EXPECT_EQ(worker.endpoints().size(), 2u) << worker.process().output();
  }
  for (Worker& worker : workers) EXPECT_EQ(worker.call_all(names), names.size());
  if (GetParam() == Rendezvous::File) {
    struct stat status {};
    ASSERT_EQ(::stat((world_.directory() / "store").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
  }
}

TEST(Rank, IsTakenOnce) {
  const World world;
  NodeOptions options = world.options("first", "shm");
  options.rank = 1;
  options.world_size = 2;
  const Node first(options);
  options.name = "second";
  const Error error = error_of([&] { Node second(options); });
  EXPECT_EQ(error.kind(), ErrorKind::Invalid);
  EXPECT_NE(error.message().find("'first'"), std::string::npos) << error.what();
}

// Nodes that know each other need no rendezvous.
class RendezvousHost : public ::testing::Test {
 protected:
  Worker start(std::uint32_t rank) const {
    NodeOptions options = world_.options("rank" + std::to_string(rank), "shm");
    options.rendezvous = "tcp://127.0.0.1:" + std::to_string(port_);
    options.rank = rank;
    options.world_size = 3;
    return Worker::begin(options);
  }
  void connect_all() {
    for (Worker* each : {&host_, &first_, &second_}) each->joined();
    EXPECT_EQ(first_.call_all({"rank0", "rank2"}), 2u);
  }
  // They call each other, and end within the patience of close().
  void expect_others_go_on() {
    EXPECT_EQ(first_.call_all({"rank2"}), 1u);
    EXPECT_EQ(second_.call_all({"rank1"}), 1u);
    for (Worker* each : {&first_, &second_}) each->channel().tell("close");
    for (Worker* each : {&first_, &second_}) {
      EXPECT_EQ(each->process().wait(10s), (Ending{.code = 0, .signal = {}}));
    }
  }

  World world_;
  const std::uint16_t port_ = free_port();
  Worker host_ = start(0), first_ = start(1), second_ = start(2);
};

TEST_F(RendezvousHost, IsKilledAndTheOthersGoOn) {
  connect_all();
  host_.process().kill();
  host_.process().wait();
  expect_others_go_on();
}

TEST_F(RendezvousHost, IsKilledAndTheOthersLeaveTogether) {
  connect_all();
  host_.process().kill();
  host_.process().wait();
  first_.channel().tell("shutdown");
  EXPECT_EQ(second_.call_all({"rank1"}), 1u);
  second_.channel().tell("shutdown");
  for (Worker* each : {&first_, &second_}) {
    each->channel().expect("left");
    EXPECT_EQ(each->process().wait(), (Ending{.code = 0, .signal = {}}));
  }
}

TEST_F(RendezvousHost, StandsStillAndTheOthersGoOn) {
  connect_all();
  host_.process().stop();
  expect_others_go_on();
}

class Starting : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(Transports, Starting, kTransports);

// The addresses that somebody listens on at that port, as the kernel writes them.
std::set<std::string> listening_addresses(std::uint16_t port) {
  std::ostringstream suffix;
  suffix << ':' << std::uppercase << std::hex << std::setw(4) << std::setfill('0') << port;
  std::set<std::string> addresses;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream sockets(table);
    for (std::string line; std::getline(sockets, line);) {
      std::istringstream words(line);
      std::string slot, local, remote, state;
      words >> slot >> local >> remote >> state;
      const std::string kListening = "0A";
      if (state != kListening || !local.ends_with(suffix.str())) continue;
      addresses.insert(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

TEST(RendezvousStore, IsOfferedOnItsAddressOnly) {
  const World world;
  const std::uint16_t port = free_port();
  NodeOptions options = world.options("host", "tcp");
  options.rendezvous = "tcp://127.0.0.1:" + std::to_string(port);
  options.rank = 0;
  options.world_size = 1;
  const Node host(options);
  EXPECT_EQ(listening_addresses(port), std::set<std::string>{"0100007F"});
}

TEST_P(Starting, ACallToANodeThatJoinsLaterWaitsForIt) {
  Node caller(options("caller"));
  const auto sum = caller.call<std::int64_t>("late", "add", 1, 2);
  ASSERT_TRUE(eventually([&] { return peer_of(caller, "late").waiting == 1; }));
  EXPECT_FALSE(sum.done());
  // It may be called between joining and serving: that is the program's to arrange.
  const Worker late(options("late"));
  ASSERT_TRUE(sum.wait_for(kPatience));
  EXPECT_TRUE(sum.wait().ok() || sum.wait().error().kind() == ErrorKind::Invalid)
      << sum.wait().error().what();
  EXPECT_EQ(caller.call<std::int64_t>("late", "add", 1, 2).get(), 3);
}

TEST_P(Starting, FiveNodesInOneProcess) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 5; ++i) {
    nodes.push_back(std::make_unique<Node>(options("n" + std::to_string(i))));
    nodes.back()->serve("who", [i] { return i; });
    nodes.back()->serve("ask", [](const CallContext& context, std::string whom) {
      return context.node().call<int>(whom, "who");
    });
  }
  for (const auto& from : nodes) {
    for (int to = 0; to < 5; ++to) {
      const std::string name = "n" + std::to_string(to);
      EXPECT_EQ(from->call<int>(name, "who").get(), to);
      for (int beyond = 0; beyond < 5; ++beyond) {
        EXPECT_EQ(from->call<int>(name, "ask", "n" + std::to_string(beyond)).get(), beyond);
      }
    }
  }
  nodes.erase(nodes.begin() + 2);
  EXPECT_EQ(error_of([&] { nodes[0]->call<int>("n2", "who").get(); }).kind(), ErrorKind::PeerLost);
  EXPECT_EQ(nodes[0]->call<int>("n4", "who").get(), 4);
}

}  // namespace
}  // namespace hawser::testing
