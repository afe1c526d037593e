// Three processes on one machine: this one calls functions with tensors in two others, over shared
// memory and over tcp; then one of them is killed. Ends by itself.
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <future>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "hawser/hawser.h"

extern char** environ;

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr unsigned kAtMostSeconds = 60;  // whatever happens

double seconds_since(Clock::time_point start) { return Seconds(Clock::now() - start).count(); }

// One world for each transport, so that both can be shown between the same processes.
hawser::NodeOptions options(const std::string& name, const std::string& directory,
                            const std::string& transport) {
  return {.name = name,
          .rendezvous = "file://" + directory + "/" + transport,
          .call_timeout = 10s,
          .transports = {transport}};
}

// ---------------------------------------------------------------------------------- the others

void serve_functions(hawser::Node& node) {
  node.serve("nothing", [] {});
  node.serve("echo", [](at::Tensor x) { return x; });
  node.serve("scale", [](at::Tensor x, double k) { return x * k; });
  // A handler may call others; it answers when they have answered.
  node.serve("scale_twice", [&node](at::Tensor x, double k, std::string helper) {
    return node.call<at::Tensor>(helper, "scale", x * k, k);
  });
  node.serve("think", [] { std::this_thread::sleep_for(5s); });
}

int be_worker(const std::string& name, const std::string& directory) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  hawser::Node shm(options(name, directory, "shm"));
  hawser::Node tcp(options(name, directory, "tcp"));
  serve_functions(shm);
  serve_functions(tcp);
  char byte = 'r';
  if (::write(STDIN_FILENO, &byte, 1) != 1) return 1;
  return ::read(STDIN_FILENO, &byte, 1) == 0 ? 0 : 1;  // until the demo has ended
}

// A worker in a process of its own.
class Worker {
 public:
  Worker(const std::string& name, const std::string& directory) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail("socketpair");
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    std::array<std::string, 4> words{"demo", "worker", name, directory};
    std::array<char*, 5> arguments{words[0].data(), words[1].data(), words[2].data(),
                                   words[3].data(), nullptr};
    const int error =
        ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    channel_ = ends[0];
    if (error) fail("cannot start a process");
  }
  Worker(const Worker&) = delete;
  ~Worker() {
    ::close(channel_);
    kill();
  }

  pid_t pid() const { return pid_; }
  void wait_until_ready() {
    pollfd ready{channel_, POLLIN, 0};
    char byte = 0;
    if (::poll(&ready, 1, 30'000) != 1 || ::read(channel_, &byte, 1) != 1) {
      fail("a worker did not start");
    }
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  [[noreturn]] static void fail(const char* what) { throw std::runtime_error(what); }
  pid_t pid_ = -1;
  int channel_ = -1;
};

// ---------------------------------------------------------------------------------- measuring

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Of one call at a time.
double round_trip_us(hawser::Node& node) {
  std::vector<double> times;
  const auto begin = Clock::now();
  while (seconds_since(begin) < 0.4) {
    const auto start = Clock::now();
    node.call<void>("alice", "nothing").get();
    times.push_back(seconds_since(start) * 1e6);
  }
  return median(std::move(times));
}

double calls_per_second(hawser::Node& node) {
  constexpr std::size_t kInFlight = 64;
  std::deque<hawser::Future<void>> calls;
  std::size_t done = 0;
  const auto begin = Clock::now();
  while (seconds_since(begin) < 0.4) {
    while (calls.size() < kInFlight) calls.push_back(node.call<void>("alice", "nothing"));
    calls.front().get();
    calls.pop_front();
    ++done;
  }
  const double rate = static_cast<double>(done) / seconds_since(begin);
  for (const auto& call : calls) call.get();
  return rate;
}

// There and back.
double echo_seconds(hawser::Node& node, const at::Tensor& tensor) {
  std::vector<double> times;
  node.call<at::Tensor>("alice", "echo", tensor).get();  // takes the memory it needs
  for (int i = 0; i < 7; ++i) {
    const auto start = Clock::now();
    node.call<at::Tensor>("alice", "echo", tensor).get();
    times.push_back(seconds_since(start));
  }
  return median(std::move(times));
}

// ---------------------------------------------------------------------------------- showing

void headline(const char* text) { std::printf("\n%s\n", text); }

std::string to_text(const at::Tensor& x) {
  std::ostringstream out;
  out << '[';
  for (std::int64_t row = 0; row < x.size(0); ++row) {
    out << (row ? ", [" : "[");
    for (std::int64_t column = 0; column < x.size(1); ++column) {
      out << (column ? " " : "") << x[row][column].item<double>();
    }
    out << ']';
  }
  out << ']';
  return out.str();
}

void show_calls(hawser::Node& node) {
  headline("1. Functions of other processes, with tensors");
  const at::Tensor ones = at::ones({2, 3});
  const auto show = [](const char* what, const hawser::Future<at::Tensor>& result) {
    std::printf("   %-56s %s\n", what, to_text(result.get()).c_str());
  };
  show("alice: scale(ones(2, 3), 2.0)", node.call<at::Tensor>("alice", "scale", ones, 2.0));
  show("bob: scale_twice(ones(2, 3), 2.0), half of it by alice",
       node.call<at::Tensor>("bob", "scale_twice", ones, 2.0, "alice"));
  show("bob: aten::mm, which he never registered",
       node.call<at::Tensor>("bob", "aten::mm", ones, at::ones({3, 2})));
  try {
    node.call<at::Tensor>("alice", "scale", ones, "two").get();
  } catch (const hawser::Error& error) {
    std::printf("   %-56s %s\n", "alice: scale(ones(2, 3), \"two\")", error.what());
  }
}

void show_speed(hawser::Node& shm, hawser::Node& tcp) {
  headline("2. How fast");
  const at::Tensor tensor = at::ones({64 << 20}, at::kByte);
  const double gigabytes = 2 * 64.0 * (1 << 20) / 1e9;
  std::printf("   %-38s %16s %16s\n", "", "shared memory", "tcp (loopback)");
  std::printf("   %-38s %13.1f us %13.1f us\n", "empty call, one after the other",
              round_trip_us(shm), round_trip_us(tcp));
  std::printf("   %-38s %14.0f/s %14.0f/s\n", "empty calls, 64 at a time", calls_per_second(shm),
              calls_per_second(tcp));
  const double shm_echo = echo_seconds(shm, tensor), tcp_echo = echo_seconds(tcp, tensor);
  std::printf("   %-38s %13.1f ms %13.1f ms\n", "64 MiB tensor, there and back", shm_echo * 1e3,
              tcp_echo * 1e3);
  std::printf("   %-38s %11.1f GB/s %11.1f GB/s\n", "", gigabytes / shm_echo, gigabytes / tcp_echo);
}

void show_inspection(const hawser::Node& node) {
  headline("3. What this node knows: node.inspect()");
  std::istringstream lines(node.inspect().to_text());
  for (std::string line; std::getline(lines, line);) std::printf("   %s\n", line.c_str());
}

// When a call is settled.
std::future<Clock::time_point> end_of(const hawser::Future<void>& call) {
  auto moment = std::make_shared<std::promise<Clock::time_point>>();
  call.on_settled([moment](const auto&) { moment->set_value(Clock::now()); });
  return moment->get_future();
}

void show_failure(const char* what, double milliseconds, const hawser::Future<void>& call) {
  const auto& outcome = call.wait();
  std::printf("   %-38s %7.2f ms   %s\n", what, milliseconds,
              outcome.ok() ? "it was answered" : outcome.error().what());
}

void show_death(hawser::Node& shm, hawser::Node& tcp, Worker& bob) {
  headline("4. kill -9 bob, while he works for us");
  const auto by_shm = shm.call<void>("bob", "think"), by_tcp = tcp.call<void>("bob", "think");
  auto shm_end = end_of(by_shm), tcp_end = end_of(by_tcp);
  by_tcp.wait_for(50ms);  // he thinks by now
  const auto killed = Clock::now();
  bob.kill();
  const auto after = [](Clock::time_point from, Clock::time_point to) {
    return Seconds(to - from).count() * 1e3;
  };
  show_failure("the call by shared memory fails after", after(killed, shm_end.get()), by_shm);
  show_failure("the call by tcp fails after", after(killed, tcp_end.get()), by_tcp);
  const auto called = Clock::now();
  const auto next = tcp.call<void>("bob", "nothing");
  show_failure("the next call fails after", after(called, end_of(next).get()), next);
  const auto scaled = tcp.call<at::Tensor>("alice", "scale", at::ones({2, 3}), 3.0).get();
  std::printf("   %-38s %10s   %s\n", "alice goes on", "", to_text(scaled).c_str());
}

struct TemporaryDirectory {
  std::string path = (std::filesystem::temp_directory_path() / "hawser-demo-XXXXXX").string();
  TemporaryDirectory() {
    if (!::mkdtemp(path.data())) throw std::runtime_error("cannot make " + path);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

void run_demo() {
  const TemporaryDirectory directory;
  Worker alice("alice", directory.path), bob("bob", directory.path);
  hawser::Node shm(options("trainer", directory.path, "shm"));
  hawser::Node tcp(options("trainer", directory.path, "tcp"));
  alice.wait_until_ready();
  bob.wait_until_ready();
  std::printf("Three processes: trainer (%d, this one) calls alice (%d) and bob (%d).\n",
              ::getpid(), alice.pid(), bob.pid());
  show_calls(shm);
  show_speed(shm, tcp);
  tcp.call<void>("bob", "nothing").get();
  show_inspection(tcp);
  show_death(shm, tcp, bob);
  std::printf("\nDone.\n");
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(kAtMostSeconds);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> arguments(argv, argv + argc);
  try {
    if (arguments.size() == 4 && arguments[1] == "worker") {
      return be_worker(arguments[2], arguments[3]);
    }
    run_demo();
  } catch (const std::exception& error) {
    std::cerr << "the demo failed: " << error.what() << '\n';
    return 1;
  }
}
