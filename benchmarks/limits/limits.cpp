#include "limits.h"

#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>

namespace hawser::limits {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration;

constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kAsleep{2};
constexpr std::size_t kMaxSamples = 1'000'000;
constexpr std::size_t kCacheLine = 64;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

[[noreturn]] void fail_silent_peer() { throw std::runtime_error("the peer process stayed silent"); }

int checked(int result, const char* what) {
  if (result == -1) fail(what);
  return result;
}

double microseconds_since(Clock::time_point start) {
  return duration<double, std::micro>(Clock::now() - start).count();
}

// Calls `measure`, which returns microseconds, for `budget`; the first tenth warms up and does not
// count.
template <class Measure>
Summary sample(duration<double> budget, Measure measure) {
  const auto start = Clock::now();
  do {
    measure();
  } while (Clock::now() - start < budget / 10);

  std::vector<double> samples_us;
  do {
    samples_us.push_back(measure());
  } while (Clock::now() - start < budget && samples_us.size() < kMaxSamples);
  return summarize(samples_us);
}

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { close(fd_); }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

class Mapping {
 public:
  Mapping(std::size_t size, int sharing)
      : size_(size),
        data_(mmap(nullptr, size, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) fail("mmap");
  }
  ~Mapping() { munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void* data() const { return data_; }

 private:
  std::size_t size_;
  void* data_;
};

// Runs `body`, which does not return, in a child process until this object goes.
class Child {
 public:
  template <class Body>
  explicit Child(Body body) {
    const pid_t parent = getpid();
    pid_ = checked(fork(), "fork");
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // It died before prctl took effect.
    try {
      body();
    } catch (const std::exception& error) {
      dprintf(STDERR_FILENO, "callee: %s\n", error.what());
    }
    _exit(1);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  pid_t pid_;
};

enum Side : std::size_t { kCaller, kCallee };

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready(). The clock and the scheduler are asked only in every `rounds_per_yield`th
// round: an answer that is on time comes sooner than that.
template <class Ready>
void spin_until(int rounds_per_yield, Ready ready) {
  const auto is_ready_soon = [&] {
    for (int round = 0; round < rounds_per_yield; ++round) {
      if (ready()) return true;
      pause_cpu();
    }
    return false;
  };
  if (is_ready_soon()) return;
  const auto deadline = Clock::now() + kPatience;
  while (!is_ready_soon()) {
    sched_yield();
    if (Clock::now() > deadline) fail_silent_peer();
  }
}

int rounds_per_yield(Placement placement) { return placement == Placement::OneCore ? 1 : 64; }

// A bell is made before the fork and used by both sides: ring(to) signals a side, wait(self) takes
// one signal.

// The signals sent to each side so far, in memory both processes share.
class SharedCounters {
 public:
  SharedCounters() { new (page_.data()) std::array<Line, 2>(); }
  std::atomic<std::uint32_t>& to(Side side) {
    return (*static_cast<std::array<Line, 2>*>(page_.data()))[side].signals;
  }

 private:
  struct alignas(kCacheLine) Line {
    std::atomic<std::uint32_t> signals{0};
    static_assert(decltype(signals)::is_always_lock_free, "used across processes");
  };
  Mapping page_{sizeof(std::array<Line, 2>), MAP_SHARED};
};

class SpinBell {
 public:
  explicit SpinBell(Placement placement) : rounds_per_yield_(rounds_per_yield(placement)) {}

  void ring(Side to) { counters_.to(to).store(++sent_, std::memory_order_release); }

  void wait(Side self) {
    const auto& signals = counters_.to(self);
    spin_until(rounds_per_yield_,
               [&] { return signals.load(std::memory_order_acquire) != taken_; });
    ++taken_;
  }

 private:
  int rounds_per_yield_;
  SharedCounters counters_;
  std::uint32_t sent_ = 0;  // Both counts are of this process: the fork gave each its own.
  std::uint32_t taken_ = 0;
};

class FutexBell {
 public:
  void ring(Side to) {
    auto& signals = counters_.to(to);
    signals.store(++sent_, std::memory_order_release);
    checked(static_cast<int>(syscall(SYS_futex, &signals, FUTEX_WAKE, 1, nullptr, nullptr, 0)),
            "futex wake");
  }

  void wait(Side self) {
    auto& signals = counters_.to(self);
    const timespec patience{kPatience.count(), 0};
    while (signals.load(std::memory_order_acquire) == taken_) {
      const auto result = syscall(SYS_futex, &signals, FUTEX_WAIT, taken_, &patience, nullptr, 0);
      if (result == -1 && errno == ETIMEDOUT) fail_silent_peer();
      if (result == -1 && errno != EAGAIN && errno != EINTR) fail("futex wait");
    }
    ++taken_;
  }

 private:
  SharedCounters counters_;
  std::uint32_t sent_ = 0;
  std::uint32_t taken_ = 0;
};

// Edge-triggered, so that nobody has to read the eventfd: the cheapest way to wait for one among
// other descriptors.
class EventfdBell {
 public:
  EventfdBell() {
    for (const Side side : {kCaller, kCallee}) {
      epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
      checked(epoll_ctl(epolls_[side].get(), EPOLL_CTL_ADD, events_[side].get(), &event),
              "epoll_ctl");
    }
  }

  void ring(Side to) {
    if (eventfd_write(events_[to].get(), 1) == -1) fail("eventfd_write");
  }

  void wait(Side self) {
    epoll_event event;
    int ready;
    do {
      ready =
          epoll_wait(epolls_[self].get(), &event, 1, std::chrono::milliseconds(kPatience).count());
    } while (ready == -1 && errno == EINTR);
    if (checked(ready, "epoll_wait") == 0) fail_silent_peer();
  }

 private:
  static Fd event() { return Fd(checked(eventfd(0, EFD_CLOEXEC), "eventfd")); }
  static Fd epoll() { return Fd(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")); }
  std::array<Fd, 2> events_{event(), event()};
  std::array<Fd, 2> epolls_{epoll(), epoll()};
};

// Both ends of a loopback connection: each process uses its own.
class TcpPair {
 public:
  TcpPair() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);

    const Fd listener(tcp_socket());
    checked(bind(listener.get(), generic, length), "bind");
    checked(listen(listener.get(), 1), "listen");
    checked(getsockname(listener.get(), generic, &length), "getsockname");
    ends_[kCaller].emplace(tcp_socket());
    checked(connect(end(kCaller), generic, length), "connect");
    ends_[kCallee].emplace(
        checked(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept4"));

    for (const Side side : {kCaller, kCallee}) {
      const int on = 1;
      const timeval patience{kPatience.count(), 0};
      checked(setsockopt(end(side), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), "TCP_NODELAY");
      checked(setsockopt(end(side), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)),
              "SO_RCVTIMEO");
      checked(setsockopt(end(side), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)),
              "SO_SNDTIMEO");
    }
  }

  // After the fork: the death of one process then ends the stream of the other at once, even in
  // mid-transfer.
  void keep_only(Side self) { ends_[self == kCaller ? kCallee : kCaller].reset(); }

  void send_all(Side self, const char* data, std::size_t size) {
    while (size > 0) {
      const std::size_t moved = progress(send(end(self), data, size, MSG_NOSIGNAL));
      data += moved;
      size -= moved;
    }
  }

  void receive_all(Side self, char* data, std::size_t size) {
    while (size > 0) {
      const std::size_t moved = progress(recv(end(self), data, size, 0));
      data += moved;
      size -= moved;
    }
  }

  // Returns 0 if nothing has come yet.
  std::size_t receive_some(Side self, char* data, std::size_t size) {
    const ssize_t result = recv(end(self), data, size, MSG_DONTWAIT);
    return result == -1 && errno == EAGAIN ? 0 : progress(result);
  }

 private:
  static int tcp_socket() {
    return checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  }
  int end(Side side) const { return ends_[side]->get(); }

  static std::size_t progress(ssize_t result) {
    if (result > 0) return static_cast<std::size_t>(result);
    if (result == 0) throw std::runtime_error("the peer process closed the connection");
    if (errno == EINTR) return 0;
    if (errno == EAGAIN) fail_silent_peer();
    fail("loopback stream");
  }

  std::array<std::optional<Fd>, 2> ends_;
};

class TcpBell {
 public:
  TcpBell(Waiting waiting, Placement placement)
      : waiting_(waiting), rounds_per_yield_(rounds_per_yield(placement)) {}

  void ring(Side to) {
    const Side self = to == kCaller ? kCallee : kCaller;
    pair_.send_all(self, message_.data(), message_.size());
  }

  void wait(Side self) {
    if (waiting_ == Waiting::Blocking)
      return pair_.receive_all(self, message_.data(), message_.size());
    std::size_t received = 0;
    spin_until(rounds_per_yield_, [&] {
      received += pair_.receive_some(self, message_.data() + received, message_.size() - received);
      return received == message_.size();
    });
  }

 private:
  Waiting waiting_;
  int rounds_per_yield_;
  TcpPair pair_;
  std::array<char, 64> message_{};  // About what a call without arguments takes.
};

template <class Bell>
Summary ping_pong(Bell& bell, Pace pace, const Options& options) {
  const Cpus cpus = choose_cpus(options.placement);
  const Child callee([&] {
    const Pinned pinned(cpus.callee);
    for (;;) {
      bell.wait(kCallee);
      bell.ring(kCaller);
    }
  });
  const Pinned pinned(cpus.caller);
  return sample(options.budget, [&] {
    if (pace == Pace::Asleep) std::this_thread::sleep_for(kAsleep);
    const auto start = Clock::now();
    bell.ring(kCallee);
    bell.wait(kCaller);
    return microseconds_since(start);
  });
}

// The compiler must not see that nobody reads the target.
void copy(void* to, const void* from, std::size_t size) {
  std::memcpy(to, from, size);
  asm volatile("" : : "r"(to) : "memory");
}

}  // namespace

Summary spin_ping_pong(Pace pace, const Options& options) {
  SpinBell bell(options.placement);
  return ping_pong(bell, pace, options);
}

Summary futex_ping_pong(Pace pace, const Options& options) {
  FutexBell bell;
  return ping_pong(bell, pace, options);
}

Summary eventfd_ping_pong(Pace pace, const Options& options) {
  EventfdBell bell;
  return ping_pong(bell, pace, options);
}

Summary tcp_ping_pong(Waiting waiting, Pace pace, const Options& options) {
  TcpBell bell(waiting, options.placement);
  return ping_pong(bell, pace, options);
}

Summary tcp_echo(std::size_t size, const Options& options) {
  TcpPair pair;
  const Cpus cpus = choose_cpus(options.placement);
  const Child callee([&] {
    pair.keep_only(kCallee);
    const Pinned pinned(cpus.callee);
    std::vector<char> buffer(size);
    for (;;) {
      pair.receive_all(kCallee, buffer.data(), size);
      pair.send_all(kCallee, buffer.data(), size);
    }
  });
  pair.keep_only(kCaller);
  const Pinned pinned(cpus.caller);
  const std::vector<char> request(size, 1);
  std::vector<char> reply(size);
  return sample(options.budget, [&] {
    const auto start = Clock::now();
    pair.send_all(kCaller, request.data(), size);
    pair.receive_all(kCaller, reply.data(), size);
    return microseconds_since(start);
  });
}

Summary copy_warm(std::size_t size, const Options& options) {
  const Pinned pinned(choose_cpus(options.placement).caller);
  const std::vector<char> from(size, 1);
  std::vector<char> to(size);
  // Reading the clock takes as long as copying 1 KiB: small copies are timed many at once.
  const std::size_t copies = std::max<std::size_t>(1, 256 * 1024 / size);
  return sample(options.budget, [&] {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < copies; ++i) copy(to.data(), from.data(), size);
    return microseconds_since(start) / static_cast<double>(copies);
  });
}

Summary copy_fresh(std::size_t size, const Options& options) {
  const Pinned pinned(choose_cpus(options.placement).caller);
  const std::vector<char> from(size, 1);
  return sample(options.budget, [&] {
    const Mapping to(size, MAP_PRIVATE);
    const auto start = Clock::now();
    copy(to.data(), from.data(), size);
    return microseconds_since(start);
  });
}

Summary summarize(std::vector<double>& samples_us) {
  std::sort(samples_us.begin(), samples_us.end());
  const auto quantile = [&](double q) {
    return samples_us[static_cast<std::size_t>(
        std::lround(q * static_cast<double>(samples_us.size() - 1)))];
  };
  return {quantile(0.5), quantile(0.99), quantile(0.9) - quantile(0.1), samples_us.size()};
}

Cpus choose_cpus(Placement placement) {
  if (placement == Placement::Free) return {};
  cpu_set_t allowed;
  checked(sched_getaffinity(0, sizeof(allowed), &allowed), "sched_getaffinity");
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  if (placement == Placement::OneCore) return {cpus.at(0), cpus.at(0)};
  if (cpus.size() < 2) throw Unavailable("two cores wanted, one allowed");
  return {cpus[0], cpus[1]};
}

Pinned::Pinned(std::optional<int> cpu) {
  if (!cpu) return;
  cpu_set_t before;
  checked(sched_getaffinity(0, sizeof(before), &before), "sched_getaffinity");
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(*cpu, &only);
  checked(sched_setaffinity(0, sizeof(only), &only), "sched_setaffinity");
  before_ = before;
}

Pinned::~Pinned() {
  if (before_) sched_setaffinity(0, sizeof(*before_), &*before_);
}

}  // namespace hawser::limits
