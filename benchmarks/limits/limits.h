// What this machine can do at best, measured without hawser: the yardstick of the benchmark.
//
// Every ping-pong runs between this process and a forked child that answers until the probe ends
// and that dies with its parent. Fork copies only the calling thread: call these functions from a
// process that has no other. No wait is endless: a peer that stays silent for ten seconds ends the
// probe with an exception.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <vector>

namespace hawser::limits {

// Where caller and callee run. Waking a peer costs ten times more on another core than on one's
// own, so figures compare only within one placement.
enum class Placement { Free, OneCore, TwoCores };

// Hot: one call after another. Asleep: 2 ms before each call, enough for the callee, its core and
// the caller's core to have gone to sleep.
enum class Pace { Hot, Asleep };

enum class Waiting { Blocking, Polling };

struct Options {
  Placement placement = Placement::Free;
  std::chrono::duration<double> budget{0.5};
};

struct Summary {
  double median_us;
  double p99_us;
  double spread_us;  // p90 - p10: unlike a deviation, it shows a bimodal wake-up and ignores one
                     // lost time slice.
  std::size_t samples;
};

// This machine cannot run the probe, for example two cores where only one may be used.
struct Unavailable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Round trips of a bare signal. A spinning or polling side yields when the answer is late, so that
// it cannot keep a peer on its own core from running.
Summary spin_ping_pong(Pace pace, const Options& options);
Summary futex_ping_pong(Pace pace, const Options& options);
Summary eventfd_ping_pong(Pace pace, const Options& options);
Summary tcp_ping_pong(Waiting waiting, Pace pace, const Options& options);

// `size` bytes there and, once all have arrived, back: one blocking loopback stream between buffers
// touched before.
Summary tcp_echo(std::size_t size, const Options& options);

// One memcpy: between the same two buffers again and again, or into pages the kernel has yet to
// provide.
Summary copy_warm(std::size_t size, const Options& options);
Summary copy_fresh(std::size_t size, const Options& options);

// Sorts `samples_us`, which must not be empty.
Summary summarize(std::vector<double>& samples_us);

// Whoever is compared with these limits takes the same places.
struct Cpus {
  std::optional<int> caller;  // Empty: the scheduler chooses.
  std::optional<int> callee;
};

// Takes the first CPUs this thread may run on; throws Unavailable if they are too few.
Cpus choose_cpus(Placement placement);

// Keeps the calling thread, and threads it starts meanwhile, on one CPU; no CPU, no effect.
class Pinned {
 public:
  explicit Pinned(std::optional<int> cpu);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  std::optional<cpu_set_t> before_;
};

}  // namespace hawser::limits
