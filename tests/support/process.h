#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/transport/descriptor.h"

// Real processes for tests: this very executable, started anew in a role. Plain fork() would hand
// the child a copy of every lock and none of the threads.
namespace hawser::testing {

// How long anything may take that should happen at once. It fails tests that hang, it times
// nothing.
inline constexpr Duration kPatience = std::chrono::seconds(30);

// Whether `condition` becomes true in time; it is asked every millisecond. For what nobody
// announces, such as the state of a process or of a peer in a report.
bool eventually(const std::function<bool()>& condition, Duration patience = kPatience);

// A conversation with another process, in messages of at most 64 KiB. tell() is thread-safe.
class Channel {
 public:
  explicit Channel(transport::Descriptor socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }

  // What is said to somebody who is gone is dropped.
  void tell(std::string_view message);
  // The next message; nothing when the other end is gone. Throws when the time is up.
  std::optional<std::string> hear(Duration patience = kPatience);
  // Throws unless the next message starts with `beginning`; returns the rest.
  std::string expect(std::string_view beginning, Duration patience = kPatience);
  // Without listening; false when the other end is still there.
  bool await_end(Duration patience = kPatience);

 private:
  transport::Descriptor socket_;
};

// How a process ended: by which signal, or with which code.
struct Ending {
  std::optional<int> code;
  std::optional<int> signal;
  bool operator==(const Ending&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Ending& ending);

// A child. It does not outlive this object, nor the test process.
class Process {
 public:
  struct Plan {
    std::string role;
    std::vector<std::string> arguments{};
    std::map<std::string, std::string> environment{};  // besides the own
  };
  explicit Process(const Plan& plan);
  Process(Process&&) noexcept;
  Process& operator=(Process&&) noexcept;
  ~Process();

  pid_t pid() const;
  Channel& channel();

  void kill();  // -9; returns at once
  void stop();  // SIGSTOP; returns when it stands still. Throws when it does not.
  void resume();

  // Waits for its end. Throws when the time is up.
  Ending wait(Duration patience = kPatience);
  // What it wrote to standard output and standard error so far. Shown too when a test failed.
  std::string output() const;

 private:
  struct Child;
  std::unique_ptr<Child> child_;
};

// A process that was started by a child and outlives it comes to us; this one looks after it. Must
// be called before the child dies.
void adopt_orphans();
// Ends an orphan and takes it away. Does nothing if it is not ours (yet).
void bury_orphan(pid_t pid);

// What a child does; it gets the channel to the test and its arguments, and returns its exit code.
using Role = std::function<int(Channel&, const std::vector<std::string>&)>;
using Roles = std::map<std::string, Role, std::less<>>;

// First thing in main(): plays the role this process was started for and returns its exit code.
// Nothing when it was started by hand, to run the tests.
std::optional<int> play_role(int argc, char** argv, const Roles& roles);

}  // namespace hawser::testing
