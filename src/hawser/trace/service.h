#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hawser/base/guarded.h"
#include "hawser/trace/recorder.h"

namespace hawser::trace {

// Profiles of everything that a node does for others: each served call is recorded for all profiles
// that are open when it begins and when it ends. They are nested. Thread-safe.
class ServingProfiles {
 public:
  static constexpr std::size_t kMostCalls = 65'536;
  struct ServedCall {
    Recorded recorded;
    std::int64_t begun_ns = 0;
  };
  struct Served {
    std::vector<ServedCall> calls{};  // the first kMostCalls
    std::uint64_t dropped = 0;        // calls beyond
  };

  void begin(std::uint32_t wants);
  // Of the innermost. Throws Error(Invalid) if there is none.
  Served end();

  // What the open ones want together; 0 when there is none.
  std::uint32_t wants() const { return wants_.load(std::memory_order_relaxed); }
  void add(const ServedCall& call);

 private:
  struct Profile {
    std::uint32_t wants = 0;
    std::int64_t begun_ns = 0;
    Served served{};
  };
  Guarded<std::vector<Profile>> open_;
  std::atomic<std::uint32_t> wants_{0};  // written under the lock
};

// A call that is served and recorded: for its caller, for profiles of serving, or both. Made when
// it begins; its thread and others that answer it record for `recorder()`.
class Service {
 public:
  // `note` is what the caller wants, if it wants anything; `received` is the message of autograd
  // that the request is, or 0. `profiles` must outlive this.
  Service(std::string function, const std::optional<wire::TraceNote>& note, std::uint64_t received,
          ServingProfiles& profiles, wire::TraceProcess self);

  const std::shared_ptr<Recorder>& recorder() const { return recorder_; }
  // The function has returned; its result is going to be written. The first time counts.
  void function_returned();
  // The answer is ready; `sent` is the message of autograd that it is, or 0. What goes with it to
  // the caller, if it has asked; nothing the second time.
  std::optional<wire::TraceReport> finish(const wire::Payload& answer, std::uint64_t sent = 0);

 private:
  const std::string function_;
  const std::optional<wire::TraceNote> note_;
  const std::uint64_t received_;
  ServingProfiles& profiles_;
  const std::shared_ptr<Recorder> recorder_;
  const std::uint32_t thread_;
  std::atomic<std::int64_t> returned_ns_{0};
  std::atomic<bool> finished_{false};
};

}  // namespace hawser::trace
