#include "support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

extern char** environ;

namespace hawser::testing {
namespace {

using std::chrono::steady_clock;
using transport::Descriptor;

constexpr std::size_t kLongestMessage = std::size_t{64} << 10;
constexpr std::string_view kRoleFlag = "--role";
constexpr int kChannelInChild = 3;

[[noreturn]] void failed(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

Descriptor checked(int fd, const char* what) {
  if (fd < 0) failed(what);
  return Descriptor(fd);
}

// False when the time is up before one of `events` (or the end of the conversation) is there.
bool await_event(int fd, short events, steady_clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    pollfd waiting{fd, events, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) failed("poll");
    if (left <= 0) return false;
  }
}

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view variable(*entry);
    if (!changes.contains(std::string(variable.substr(0, variable.find('='))))) {
      merged.emplace_back(variable);
    }
  }
  for (const auto& [name, value] : changes) merged.push_back(name + "=" + value);
  return merged;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// posix_spawn, because fork() in a process with many threads and much memory is slow, and would run
// the fork handlers that some of the tests are about.
pid_t spawn(std::vector<std::string> arguments, std::vector<std::string> environment, int channel,
            int output) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, channel, kChannelInChild);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, kChannelInChild + 1);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr,
                                  pointers_to(arguments).data(), pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error) throw std::system_error(error, std::generic_category(), "posix_spawn");
  return pid;
}

Ending ending_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return {.code = info.si_status, .signal = std::nullopt};
  return {.code = std::nullopt, .signal = info.si_status};
}

}  // namespace

bool eventually(const std::function<bool()>& condition, Duration patience) {
  const auto deadline = steady_clock::now() + patience;
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// ---------------------------------------------------------------------------------- channel

void Channel::tell(std::string_view message) {
  if (message.size() > kLongestMessage) throw std::length_error("a message of more than 64 KiB");
  if (::send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL) < 0 && errno != EPIPE &&
      errno != ECONNRESET) {
    failed("cannot tell '" + std::string(message.substr(0, 80)) + "'");
  }
}

std::optional<std::string> Channel::hear(Duration patience) {
  const auto deadline = steady_clock::now() + patience;
  std::string message(kLongestMessage, '\0');
  while (await_event(socket_.get(), POLLIN, deadline)) {
    const ssize_t size = ::recv(socket_.get(), message.data(), message.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (size < 0 && errno != ECONNRESET) failed("cannot hear");
    if (size <= 0) return std::nullopt;
    message.resize(static_cast<std::size_t>(size));
    return message;
  }
  throw std::runtime_error("the other process said nothing in time");
}

bool Channel::await_end(Duration patience) {
  return await_event(socket_.get(), 0, steady_clock::now() + patience);
}

std::string Channel::expect(std::string_view beginning, Duration patience) {
  const auto message = hear(patience);
  if (!message) {
    throw std::runtime_error("expected '" + std::string(beginning) +
                             "', but the other process is gone");
  }
  if (!message->starts_with(beginning)) {
    throw std::runtime_error("expected '" + std::string(beginning) + "', heard '" + *message + "'");
  }
  return message->substr(beginning.size());
}

// ---------------------------------------------------------------------------------- process

std::ostream& operator<<(std::ostream& out, const Ending& ending) {
  if (ending.code) return out << "exit code " << *ending.code;
  return out << "signal " << ::strsignal(*ending.signal);
}

struct Process::Child {
  std::string role;
  pid_t pid = -1;
  Descriptor handle;  // readable when it has ended
  Descriptor output;
  Channel channel;
  std::optional<Ending> ending;

  // Zombies included: false when it is still running.
  bool reap(Duration patience) {
    if (ending) return true;
    if (!await_event(handle.get(), POLLIN, steady_clock::now() + patience)) return false;
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED) != 0) failed("waitid");
    ending = ending_of(info);
    return true;
  }
};

Process::Process(const Plan& plan) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    failed("socketpair");
  }
  Channel ours{Descriptor(ends[0])};
  const Descriptor theirs(ends[1]);
  Descriptor output = checked(::memfd_create("output", MFD_CLOEXEC), "memfd_create");

  std::vector<std::string> arguments{"process_tests", std::string(kRoleFlag), plan.role,
                                     std::to_string(::getpid())};
  arguments.insert(arguments.end(), plan.arguments.begin(), plan.arguments.end());
  const pid_t pid =
      spawn(std::move(arguments), merged_environment(plan.environment), theirs.get(), output.get());
  Descriptor handle = checked(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)), "pidfd_open");
  child_ = std::make_unique<Child>(
      Child{plan.role, pid, std::move(handle), std::move(output), std::move(ours), {}});
}

Process::Process(Process&&) noexcept = default;

Process& Process::operator=(Process&& other) noexcept {
  std::swap(child_, other.child_);
  return *this;
}

Process::~Process() {
  if (!child_) return;
  kill();
  if (!child_->reap(kPatience)) {
    ADD_FAILURE() << "process " << child_->pid << " (" << child_->role << ") survived kill -9";
  }
  if (!::testing::Test::HasFailure()) return;
  if (const std::string said = output(); !said.empty()) {
    std::cerr << "---- output of " << child_->role << ", process " << child_->pid << "\n"
              << said << "----\n";
  }
}

pid_t Process::pid() const { return child_->pid; }
Channel& Process::channel() { return child_->channel; }

void Process::kill() {
  if (!child_->ending) ::kill(child_->pid, SIGKILL);
}

void Process::stop() {
  if (child_->ending || ::kill(child_->pid, SIGSTOP) != 0) failed("cannot stop a process");
  const bool stands = eventually([&] {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(child_->pid), &info, WSTOPPED | WNOHANG) == 0 &&
           info.si_pid == child_->pid;
  });
  if (!stands) throw std::runtime_error("a process that was stopped goes on");
}

void Process::resume() {
  if (!child_->ending) ::kill(child_->pid, SIGCONT);
}

Ending Process::wait(Duration patience) {
  if (!child_->reap(patience)) {
    throw std::runtime_error("the process (" + child_->role + ") does not end");
  }
  return *child_->ending;
}

std::string Process::output() const {
  std::string said;
  std::array<char, 4096> part{};
  for (ssize_t size = 0; (size = ::pread(child_->output.get(), part.data(), part.size(),
                                         static_cast<off_t>(said.size()))) > 0;) {
    said.append(part.data(), static_cast<std::size_t>(size));
  }
  return said;
}

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

void bury_orphan(pid_t pid) {
  ::kill(pid, SIGKILL);
  eventually([&] { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
}

// ---------------------------------------------------------------------------------- roles

std::optional<int> play_role(int argc, char** argv, const Roles& roles) {
  const std::vector<std::string> arguments(argv, argv + argc);
  if (arguments.size() < 4 || arguments[1] != kRoleFlag) return std::nullopt;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::to_string(::getppid()) != arguments[3]) return 1;  // it was gone before that
  const auto role = roles.find(arguments[2]);
  if (role == roles.end()) {
    std::cerr << "there is no role '" << arguments[2] << "'\n";
    return 1;
  }
  ::fcntl(kChannelInChild, F_SETFD, FD_CLOEXEC);
  Channel channel{Descriptor(kChannelInChild)};
  try {
    return role->second(channel, {arguments.begin() + 4, arguments.end()});
  } catch (const std::exception& error) {
    std::cerr << arguments[2] << ": " << error.what() << '\n';
    return 1;
  }
}

}  // namespace hawser::testing
