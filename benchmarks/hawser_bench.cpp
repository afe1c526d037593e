// hawser's side of the benchmark: one job per start. README.md beside this file has the interface.
//
// Every process is forked before any node exists, so that each is as fresh as a program of its own.
// Process 0 is the caller and prints; the others serve until they are told to stop or their parent
// is gone.
#include <ATen/ops/ones.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "hawser/hawser.h"
#include "limits/limits.h"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using hawser::Future;
using hawser::Node;
using hawser::NodeOptions;

constexpr int kInFlight = 64;

struct Arguments {
  std::string job;
  std::string transport = "shm";
  std::string pin = "free";
  double seconds = 1;
  std::optional<int> spin_us;
  std::size_t size = std::size_t{64} << 20;
};

[[noreturn]] void usage(const std::string& why) {
  std::cerr << "hawser_bench: " << why << "; see benchmarks/README.md\n";
  std::exit(2);
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--json") continue;  // the only format
    if (i + 1 >= argc) usage("unknown or incomplete option " + option);
    const std::string value = argv[++i];
    if (option == "--job") {
      arguments.job = value;
    } else if (option == "--transport") {
      arguments.transport = value;
    } else if (option == "--pin") {
      arguments.pin = value;
    } else if (option == "--seconds") {
      arguments.seconds = std::stod(value);
    } else if (option == "--spin-us") {
      arguments.spin_us = std::stoi(value);
    } else if (option == "--size") {
      arguments.size = std::stoull(value);
    } else {
      usage("unknown option " + option);
    }
  }
  if (arguments.pin != "free" && arguments.pin != "two") usage("--pin takes free or two");
  return arguments;
}

// ------------------------------------------------------------------------------- the processes

std::string name_of(int rank) { return "n" + std::to_string(rank); }

class Team {
 public:
  Team(Arguments arguments, int size) : arguments_(std::move(arguments)), size_(size) {
    std::string pattern = (std::filesystem::temp_directory_path() / "hawser-bench-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("cannot create a folder");
    folder_ = pattern;
    const auto cpus =
        hawser::limits::choose_cpus(arguments_.pin == "two" ? hawser::limits::Placement::TwoCores
                                                            : hawser::limits::Placement::Free);
    const pid_t parent = ::getpid();
    for (int rank = 1; rank < size; ++rank) {
      const pid_t child = ::fork();
      if (child < 0) throw std::runtime_error("cannot fork");
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        const hawser::limits::Pinned pinned(cpus.callee);
        serve(rank);
        ::_exit(0);
      }
      children_.push_back(child);
    }
    pinned_.emplace(cpus.caller);
    node_.emplace(options(0));
  }

  ~Team() {
    for (int rank = 1; rank < size_; ++rank) node_->notify(name_of(rank), "stop");
    for (const pid_t child : children_) {
      for (int attempt = 0; attempt < 500 && ::waitpid(child, nullptr, WNOHANG) == 0; ++attempt) {
        ::usleep(10'000);
        if (attempt == 400) ::kill(child, SIGKILL);
      }
    }
    node_->close(1s);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  Node& node() { return *node_; }
  int size() const { return size_; }
  const std::vector<pid_t>& children() const { return children_; }

 private:
  NodeOptions options(int rank) const {
    NodeOptions options;
    options.name = name_of(rank);
    options.rendezvous = "file://" + folder_ + "/store";
    options.rank = rank;
    options.world_size = size_;
    options.transports = {arguments_.transport};
    if (arguments_.spin_us) options.spin_limit = std::chrono::microseconds(*arguments_.spin_us);
    return options;
  }

  void serve(int rank);

  Arguments arguments_;
  int size_;
  std::string folder_;
  std::vector<pid_t> children_;
  std::optional<hawser::limits::Pinned> pinned_;
  std::optional<Node> node_;
};

// Keeps 64 calls in flight, spread over the others; how many were completed.
std::int64_t keep_calling(Node& node, const std::vector<std::string>& others, double seconds) {
  std::deque<Future<void>> flying;
  std::size_t next = 0;
  const auto launch = [&] {
    flying.push_back(node.call<void>(others[next], "noop"));
    next = (next + 1) % others.size();
  };
  for (int i = 0; i < kInFlight; ++i) launch();
  std::int64_t completed = 0;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    for (int i = 0; i < kInFlight; ++i, ++completed) {
      flying.front().get();
      flying.pop_front();
      launch();
    }
  }
  for (auto& call : flying) call.get();
  return completed;
}

void Team::serve(int rank) {
  Node node(options(rank));
  struct {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;  // for this process's main thread
    bool stop = false;
  } desk;
  at::Tensor kept;
  std::vector<std::string> others;
  for (int other = 0; other < size_; ++other) {
    if (other != rank) others.push_back(name_of(other));
  }
  node.serve("noop", [] {});
  node.serve("echo", [](at::Tensor x) { return x; });
  node.serve("echo_keep", [&](at::Tensor x) { return kept = x; });
  node.serve("greet_all", [&] {
    std::vector<Future<void>> greetings;
    for (const auto& other : others) greetings.push_back(node.call<void>(other, "noop"));
    for (auto& greeting : greetings) greeting.get();
  });
  node.serve("load", [&](double seconds) -> Future<std::int64_t> {
    auto pair = std::make_shared<hawser::Promise<std::int64_t>::Pair>(
        hawser::Promise<std::int64_t>::pair(node.scheduler()));
    const std::lock_guard lock(desk.mutex);
    desk.work.push_back(
        [&, pair, seconds] { pair->promise.succeed(keep_calling(node, others, seconds)); });
    desk.changed.notify_all();
    return pair->future;
  });
  node.serve("stop", [&] {
    const std::lock_guard lock(desk.mutex);
    desk.stop = true;
    desk.changed.notify_all();
  });
  std::unique_lock lock(desk.mutex);
  while (!desk.stop) {
    desk.changed.wait_for(lock, 600s, [&] { return desk.stop || !desk.work.empty(); });
    while (!desk.work.empty()) {
      auto work = std::move(desk.work.front());
      desk.work.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }
  lock.unlock();
  node.close(1s);
}

// ------------------------------------------------------------------------------- measuring

using Fields = std::map<std::string, double>;

Fields latency(double seconds, const std::function<void()>& before,
               const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) call();
  std::vector<double> samples;
  const auto start = Clock::now();
  const auto end = start + std::chrono::duration<double>(seconds);
  while (Clock::now() < end || samples.size() < 5) {
    before();
    const auto begin = Clock::now();
    call();
    samples.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  const double total = std::chrono::duration<double>(Clock::now() - start).count();
  const double count = static_cast<double>(samples.size());
  const auto summary = hawser::limits::summarize(samples);
  return {{"median_us", summary.median_us},
          {"p99_us", summary.p99_us},
          {"calls_per_s", count / total},
          {"samples", count}};
}

void nothing() {}

Fields noop_hot(Team& team, const Arguments& arguments) {
  for (int i = 0; i < 2000; ++i) team.node().call<void>("n1", "noop").get();
  return latency(arguments.seconds, nothing, [&] { team.node().call<void>("n1", "noop").get(); });
}

// What a call pays for profiling while nobody profiles, as its caller does it: the time that a
// profile would want to know, and whether there is one.
Fields profiling_off(const Arguments& arguments) {
  constexpr int kCalls = 10'000;
  std::int64_t watched = 0;
  Fields fields = latency(arguments.seconds, nothing, [&] {
    for (int i = 0; i < kCalls; ++i) {
      watched += hawser::trace::stamp() + (hawser::trace::is_watched() ? 1 : 0);
    }
  });
  if (watched != 0) throw std::runtime_error("somebody profiles this");
  for (const char* const field : {"median_us", "p99_us"}) fields[field] /= kCalls;
  fields["calls_per_s"] *= kCalls;
  return fields;
}

Fields noop_asleep(Team& team, const Arguments& arguments) {
  for (int i = 0; i < 100; ++i) team.node().call<void>("n1", "noop").get();
  return latency(
      arguments.seconds, [] { ::usleep(2000); },
      [&] { team.node().call<void>("n1", "noop").get(); });
}

Fields calls_64(Team& team, const Arguments& arguments) {
  keep_calling(team.node(), {"n1"}, 0.2);
  const auto begin = Clock::now();
  const auto count = keep_calling(team.node(), {"n1"}, arguments.seconds);
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  return {{"calls_per_s", static_cast<double>(count) / took},
          {"samples", static_cast<double>(count)}};
}

Fields echo(Team& team, const Arguments& arguments, const char* function) {
  const at::Tensor x = at::ones({static_cast<std::int64_t>(arguments.size)}, at::kByte);
  return latency(arguments.seconds, nothing, [&] {
    const at::Tensor y = team.node().call<at::Tensor>("n1", function, x).get();
    if (y.numel() != x.numel()) throw std::runtime_error("the echo is not what was sent");
  });
}

Fields all_to_all(Team& team, const Arguments& arguments) {
  std::vector<std::string> others;
  for (int rank = 1; rank < team.size(); ++rank) others.push_back(name_of(rank));
  Node& node = team.node();
  node.serve("noop", [] {});
  for (const auto& other : others) node.call<void>(other, "greet_all").get();
  const auto begin = Clock::now();
  std::vector<Future<std::int64_t>> loads;
  for (const auto& other : others) {
    loads.push_back(node.call<std::int64_t>(other, "load", arguments.seconds));
  }
  std::int64_t count = keep_calling(node, others, arguments.seconds);
  for (auto& load : loads) count += load.get();
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  return {{"calls_per_s", static_cast<double>(count) / took},
          {"samples", static_cast<double>(count)}};
}

// Two processes that only compute, for as long as this lives.
class Burners {
 public:
  Burners() {
    const pid_t parent = ::getpid();
    for (pid_t& burner : burners_) {
      burner = ::fork();
      if (burner != 0) continue;
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      for (volatile std::uint64_t turns = 0;;) turns = turns + 1;
    }
  }
  ~Burners() {
    for (const pid_t burner : burners_) {
      ::kill(burner, SIGKILL);
      ::waitpid(burner, nullptr, 0);
    }
  }

 private:
  pid_t burners_[2];
};

double cpu_seconds(pid_t process) {
  clockid_t clock{};
  timespec used{};
  if (::clock_getcpuclockid(process, &clock) != 0 || ::clock_gettime(clock, &used) != 0) {
    throw std::runtime_error("cannot read the CPU time of process " + std::to_string(process));
  }
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

double cpu_share(const std::vector<pid_t>& processes, double seconds,
                 const std::function<void(Clock::time_point end)>& meanwhile) {
  double before = 0, after = 0;
  for (const pid_t process : processes) before += cpu_seconds(process);
  const auto begin = Clock::now();
  meanwhile(begin +
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  for (const pid_t process : processes) after += cpu_seconds(process);
  return (after - before) / took;
}

void everybody_greets(Team& team) {
  std::vector<Future<void>> greetings;
  team.node().serve("noop", [] {});
  for (int rank = 1; rank < team.size(); ++rank) {
    greetings.push_back(
        team.node().call<void>({.to = name_of(rank), .timeout = 120s}, "greet_all"));
  }
  for (auto& greeting : greetings) greeting.get();
}

Fields idle_64(Team& team, const Arguments& arguments) {
  everybody_greets(team);
  const double seconds = std::max(arguments.seconds, 5.0);
  std::vector<pid_t> all = team.children();
  all.push_back(::getpid());
  std::this_thread::sleep_for(1s);  // what the greetings have left to do is no idling
  const double idle = cpu_share(all, seconds, [](auto end) { std::this_thread::sleep_until(end); });
  const double calling = cpu_share({team.children().front(), ::getpid()}, seconds, [&](auto end) {
    while (Clock::now() < end) {
      team.node().call<void>("n1", "noop").get();
      ::usleep(10'000);
    }
  });
  const double spin_us =
      std::chrono::duration<double, std::micro>(NodeOptions{}.spin_limit).count();
  return {{"idle_cpu_share", idle}, {"calling_cpu_share", calling}, {"spin_limit_us", spin_us}};
}

double resident_bytes(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

Fields memory_1m(Team& team, const Arguments&) {
  const auto call = [&](int count) {
    const at::Tensor x = at::ones({16});
    for (int done = 0; done < count; done += 100) {
      std::vector<Future<at::Tensor>> calls;
      for (int i = 0; i < 100; ++i) calls.push_back(team.node().call<at::Tensor>("n1", "echo", x));
      for (auto& each : calls) each.get();
    }
  };
  const auto resident = [&] {
    return resident_bytes(::getpid()) + resident_bytes(team.children().front());
  };
  call(100'000);
  const double before = resident();
  call(1'000'000);
  return {{"rss_growth_bytes", resident() - before}, {"samples", 1e6}};
}

Fields connect_64(Team& team, const Arguments&, Clock::time_point started) {
  everybody_greets(team);
  return {{"connect_seconds", std::chrono::duration<double>(Clock::now() - started).count()}};
}

Fields run(const Arguments& arguments) {
  const std::string& job = arguments.job;
  const auto started = Clock::now();
  if (job == "profiling_off") return profiling_off(arguments);
  const int processes = job == "all_to_all" ? 4 : job == "idle_64" || job == "connect_64" ? 64 : 2;
  std::optional<Burners> burners;
  if (job.starts_with("beside_compute")) burners.emplace();
  Team team(arguments, processes);
  if (job == "noop_hot" || job == "beside_compute_sync") return noop_hot(team, arguments);
  if (job == "noop_asleep") return noop_asleep(team, arguments);
  if (job == "calls_64" || job == "beside_compute_async") return calls_64(team, arguments);
  if (job == "echo") return echo(team, arguments, "echo_keep");
  if (job == "echo_handback") return echo(team, arguments, "echo");
  if (job == "all_to_all") return all_to_all(team, arguments);
  if (job == "idle_64") return idle_64(team, arguments);
  if (job == "memory_1m") return memory_1m(team, arguments);
  if (job == "connect_64") return connect_64(team, arguments, started);
  usage("unknown job '" + job + "'");
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  try {
    const Fields fields = run(arguments);
    std::printf("{\"job\": \"%s\"", arguments.job.c_str());
    for (const auto& [name, value] : fields) std::printf(", \"%s\": %.9g", name.c_str(), value);
    std::printf("}\n");
    return 0;
  } catch (const hawser::limits::Unavailable& error) {
    std::cerr << error.what() << '\n';
    return 3;
  } catch (const std::exception& error) {
    std::cerr << "hawser_bench: " << error.what() << '\n';
    return 1;
  }
}
