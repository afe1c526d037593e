// limits_probe: prints what this machine can do at best. See benchmarks/README.md.
#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include "limits.h"

namespace {

using namespace hawser::limits;

constexpr std::size_t kMiB = 1024 * 1024;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitUnavailable = 3;

struct Probe {
  std::string_view name;
  std::vector<std::size_t>
      sizes;  // What to measure unless --size says otherwise; empty: the probe has no size.
  std::function<Summary(std::size_t, const Options&)> run;
};

std::vector<std::size_t> size_series() {
  std::vector<std::size_t> sizes;
  for (std::size_t size = 1024; size <= 64 * kMiB; size *= 4) sizes.push_back(size);
  return sizes;
}

// Leaves out the size, which a ping-pong does not have.
template <class Run>
auto unsized(Run run) {
  return [run](std::size_t, const Options& options) { return run(options); };
}

std::vector<Probe> all_probes() {
  using enum Pace;
  using enum Waiting;
  return {
      {"spin_hot", {}, unsized([](auto& o) { return spin_ping_pong(Hot, o); })},
      {"spin_asleep", {}, unsized([](auto& o) { return spin_ping_pong(Asleep, o); })},
      {"futex_hot", {}, unsized([](auto& o) { return futex_ping_pong(Hot, o); })},
      {"futex_asleep", {}, unsized([](auto& o) { return futex_ping_pong(Asleep, o); })},
      {"eventfd_hot", {}, unsized([](auto& o) { return eventfd_ping_pong(Hot, o); })},
      {"eventfd_asleep", {}, unsized([](auto& o) { return eventfd_ping_pong(Asleep, o); })},
      {"tcp_polling_hot", {}, unsized([](auto& o) { return tcp_ping_pong(Polling, Hot, o); })},
      {"tcp_blocking_asleep", {}, unsized([](auto& o) {
         return tcp_ping_pong(Blocking, Asleep, o);
       })},
      {"tcp_echo", {64 * kMiB}, tcp_echo},
      {"memcpy_warm", size_series(), copy_warm},
      {"memcpy_fresh", {64 * kMiB}, copy_fresh},
  };
}

struct Arguments {
  Options options;
  std::string_view pin = "free";
  std::vector<std::string_view> probes;  // Empty: all.
  std::size_t size = 0;                  // 0: the sizes of each probe.
  bool json = false;
};

[[noreturn]] void exit_with_usage() {
  std::fprintf(stderr,
               "usage: limits_probe [--pin free|one|two] [--probe NAME]... [--size BYTES] "
               "[--seconds S] [--json]\n"
               "probes:");
  for (const Probe& probe : all_probes()) std::fprintf(stderr, " %s", probe.name.data());
  std::fprintf(stderr, "\n");
  std::exit(kExitUsage);
}

Placement parse_placement(std::string_view name) {
  if (name == "free") return Placement::Free;
  if (name == "one") return Placement::OneCore;
  if (name == "two") return Placement::TwoCores;
  exit_with_usage();
}

double parse_number(const char* text, double at_most) {
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(number > 0 && number <= at_most)) exit_with_usage();
  return number;
}

Arguments parse(int argc, char** argv) {
  const option options[] = {
      {"pin", required_argument, nullptr, 'p'},  {"probe", required_argument, nullptr, 'n'},
      {"size", required_argument, nullptr, 's'}, {"seconds", required_argument, nullptr, 't'},
      {"json", no_argument, nullptr, 'j'},       {}};
  Arguments arguments;
  for (int option; (option = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    switch (option) {
      case 'p':
        arguments.pin = optarg;
        break;
      case 'n':
        arguments.probes.push_back(optarg);
        break;
      case 's':
        arguments.size = static_cast<std::size_t>(parse_number(optarg, 4096.0 * kMiB));
        break;
      case 't':
        arguments.options.budget = std::chrono::duration<double>(parse_number(optarg, 60));
        break;
      case 'j':
        arguments.json = true;
        break;
      default:
        exit_with_usage();
    }
  }
  if (optind != argc) exit_with_usage();
  arguments.options.placement = parse_placement(arguments.pin);
  return arguments;
}

std::vector<Probe> chosen_probes(const Arguments& arguments) {
  std::vector<Probe> probes = all_probes();
  if (arguments.probes.empty()) return probes;
  std::vector<Probe> chosen;
  for (const std::string_view name : arguments.probes) {
    const auto found =
        std::find_if(probes.begin(), probes.end(), [&](const Probe& p) { return p.name == name; });
    if (found == probes.end()) exit_with_usage();
    chosen.push_back(*found);
  }
  return chosen;
}

std::string size_text(std::size_t size) {
  if (size == 0) return "-";
  if (size % kMiB == 0) return std::to_string(size / kMiB) + " MiB";
  if (size % 1024 == 0) return std::to_string(size / 1024) + " KiB";
  return std::to_string(size) + " B";
}

// Prints each result as it comes, so that a long run shows progress and an aborted one what it has.
class Printer {
 public:
  explicit Printer(const Arguments& arguments) : json_(arguments.json) {
    if (json_) {
      std::printf("{\"pin\": \"%s\", \"results\": [", arguments.pin.data());
    } else {
      std::printf("placement: %s; microseconds; spread is p90 - p10\n", arguments.pin.data());
      std::printf("%-20s %9s %12s %12s %12s %9s\n", "probe", "size", "median", "p99", "spread",
                  "samples");
    }
  }

  ~Printer() {
    if (json_) std::printf("]}\n");
  }

  void print(std::string_view probe, std::size_t size, const Summary& s) {
    if (json_) {
      std::printf(
          "%s\n  {\"probe\": \"%s\", \"size\": %s, \"median_us\": %.4f, \"p99_us\": %.4f, "
          "\"spread_us\": %.4f, "
          "\"samples\": %zu}",
          first_ ? "" : ",", probe.data(), size == 0 ? "null" : std::to_string(size).c_str(),
          s.median_us, s.p99_us, s.spread_us, s.samples);
    } else {
      std::printf("%-20s %9s %12.3f %12.3f %12.3f %9zu\n", probe.data(), size_text(size).c_str(),
                  s.median_us, s.p99_us, s.spread_us, s.samples);
    }
    first_ = false;
    std::fflush(stdout);
  }

 private:
  bool json_;
  bool first_ = true;
};

void run(const Arguments& arguments) {
  const std::vector<Probe> probes = chosen_probes(arguments);
  choose_cpus(arguments.options.placement);  // Throws before anything is printed.
  Printer printer(arguments);
  for (const Probe& probe : probes) {
    std::vector<std::size_t> sizes = probe.sizes;
    if (sizes.empty()) {
      sizes = {0};
    } else if (arguments.size != 0) {
      sizes = {arguments.size};
    }
    for (const std::size_t size : sizes) {
      // Every wait has its own deadline; this one also catches what we did not think of. The callee
      // dies with us.
      alarm(static_cast<unsigned>(arguments.options.budget.count()) + 60);
      printer.print(probe.name, size, probe.run(size, arguments.options));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const Unavailable& error) {
    std::fprintf(stderr, "limits_probe: %s\n", error.what());
    return kExitUnavailable;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "limits_probe: %s\n", error.what());
    return kExitFailed;
  }
}
