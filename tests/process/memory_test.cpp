// What a process leaves behind, and what it keeps.
#include <ATen/ops/full.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "process/world.h"

namespace hawser::testing {
namespace {

// ---------------------------------------------------------------------------------- left behind

// Files that a process has open or mapped and that are there for others to see.
std::set<std::string> named_files(pid_t pid) {
  const std::filesystem::path process = "/proc/" + std::to_string(pid);
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(process / "fd")) {
    std::error_code gone;
    files.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    const auto path = line.find('/');
    if (path != std::string::npos) files.insert(line.substr(path));
  }
  std::erase_if(files, [](const std::string& file) {
    return !file.starts_with('/') || file.starts_with("/memfd:");
  });
  return files;
}

bool abstract_socket_exists(const std::string& name) {
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (line.ends_with("@" + name)) return true;
  }
  return false;
}

TEST(LeftBehind, NothingAfterKill9) {
  const auto own_files = named_files(::getpid());  // program and libraries, wherever they are
  const World world;
  NodeOptions options = world.options("caller", "shm");
  options.transports = {"shm", "tcp"};
  Node caller(options);
  options.name = "callee";
  Worker callee(options);
  caller.call<at::Tensor>("callee", "echo", at::full({8 * kMiB}, 1, at::kByte)).get();
  EXPECT_EQ(peer_of(caller, "callee").transport, "shm");

  const std::string store = (world.directory() / "store").string();
  for (const std::string& file : named_files(callee.process().pid())) {
    const bool temporary = file.starts_with("/dev/shm/") ||
                           file.starts_with(std::filesystem::temp_directory_path().string()) ||
                           file.starts_with("/run/");
    const bool own = own_files.contains(file);
    EXPECT_TRUE(!temporary || own || file == store || !std::filesystem::exists(file)) << file;
  }
  const std::string endpoint = callee.endpoints().front();
  const std::string socket = endpoint.substr(endpoint.rfind(':') + 1);
  ASSERT_TRUE(endpoint.starts_with("shm:"));
  EXPECT_TRUE(abstract_socket_exists(socket));
  callee.process().kill();
  callee.process().wait();
  EXPECT_FALSE(abstract_socket_exists(socket));
}

// ---------------------------------------------------------------------------------- kept

struct Keeping {
  const char* name;
  const char* transport;
  std::int64_t arena;  // what the sender may share at most
};

class Kept : public ::testing::TestWithParam<Keeping> {};

INSTANTIATE_TEST_SUITE_P(, Kept,
                         ::testing::Values(Keeping{"Shm", "shm", 4096 * kMiB},
                                           Keeping{"ShmWithASmallArena", "shm", 64 * kMiB},
                                           Keeping{"Tcp", "tcp", 4096 * kMiB}),
                         [](const auto& keeping) { return keeping.param.name; });

TEST_P(Kept, TwoHundredTensorsDoNotExhaustTheArena) {
  const World world;
  NodeOptions options = world.options("sender", GetParam().transport);
  options.limits.max_arena_bytes_per_peer = static_cast<std::size_t>(GetParam().arena);
  Node sender(options);
  Worker keeper(world.options("keeper", GetParam().transport));
  for (int i = 0; i < 200; ++i) {
    const auto kept =
        sender.call<std::size_t>("keeper", "keep", at::full({kMiB}, i, at::kByte)).get();
    EXPECT_EQ(kept, static_cast<std::size_t>(i + 1));
  }
  EXPECT_LE(peer_of(sender, "keeper").traffic.bytes_shared,
            static_cast<std::size_t>(std::min(GetParam().arena, 512 * kMiB) + kMiB));

  const at::Tensor large = at::full({48 * kMiB}, 3, at::kByte);
  EXPECT_TRUE(sender.call<at::Tensor>("keeper", "echo", large).get().equal(large));
  for (int i = 0; i < 200; i += 7) {
    const at::Tensor kept = sender.call<at::Tensor>("keeper", "kept", i).get();
    EXPECT_TRUE(kept.equal(at::full({kMiB}, i, at::kByte))) << "tensor " << i;
  }
}

// ---------------------------------------------------------------------------------- queued

class Queued : public OverTransports {};

INSTANTIATE_TEST_SUITE_P(, Queued, kTransports);

// FLOW-2. Both stand still in turn, so that all calls are there before the first is served, and the
// caller reads nothing while they are.
TEST_P(Queued, ResultsThatNobodyReadsDoNotPileUp) {
  constexpr std::size_t kCalls = 256;
  constexpr std::int64_t kEach = 4 * kMiB;
  constexpr std::uint64_t kSome = 128 * kMiB;  // of the 1 GiB that is asked for
  NodeOptions options = this->options("callee");
  options.failure_detector = quick_detector(kPatience);
  options.limits.max_bytes_queued_per_peer = 8 * kMiB;
  options.limits.max_threads = 4;
  Worker callee(options);
  options.name = "caller";
  Worker caller(options);
  options.name = "observer";
  Node observer(options);
  ASSERT_EQ(caller.call_all({"callee"}), 1u);
  ASSERT_EQ(observer.call<std::int64_t>("callee", "add", 1, 2).get(), 3);
  const auto before = resident_bytes(callee.process().pid());

  callee.process().stop();
  caller.ask_to_make("callee", kCalls, kEach);
  caller.process().stop();
  callee.process().resume();
  EXPECT_TRUE(eventually([&] {
    const auto [incoming, aside] =
        observer.call<std::tuple<std::size_t, std::size_t>>("callee", "incoming", "caller").get();
    return aside > kCalls / 2 && incoming == aside;
  })) << "others are served meanwhile";
  EXPECT_LT(resident_bytes(callee.process().pid()), before + kSome);

  caller.process().resume();
  caller.channel().expect("made " + std::to_string(kCalls));
  EXPECT_EQ(caller.call_all({"callee"}), 1u);
}

// FLOW-2 at both ends at once: neither waits for the other.
TEST_P(Queued, TwoNodesThatMakeMoreThanTheLimitForEachOther) {
  constexpr std::size_t kCalls = 64;
  NodeOptions options = this->options("one");
  options.limits.max_bytes_queued_per_peer = kMiB;
  options.limits.max_threads = 4;
  Worker one(options);
  options.name = "other";
  Worker other(options);
  one.ask_to_make("other", kCalls, 2 * kMiB);
  other.ask_to_make("one", kCalls, 2 * kMiB);
  one.channel().expect("made " + std::to_string(kCalls));
  other.channel().expect("made " + std::to_string(kCalls));
}

}  // namespace
}  // namespace hawser::testing
