#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "hawser/base/guarded.h"
#include "hawser/wire/message.h"

namespace hawser::trace {

// Nanoseconds of the wall clock, as libtorch's profilers count them.
std::int64_t wall_ns();

// What was recorded, with the processes in which it happened. The first is the recording one.
struct Recorded {
  std::vector<wire::TraceProcess> processes{};
  std::vector<wire::TraceEvent> events{};
  std::uint64_t dropped = 0;  // for lack of room
};

// How much is kept; the rest is counted.
struct Room {
  std::size_t events = 0;
  std::size_t bytes = 0;  // roughly, as they are sent
};
// What travels with an answer, and must leave room for the answer itself.
inline constexpr Room kRoomInAnswer{wire::kMaxTraceEvents, std::size_t{8} << 20};
// A profile that stays here.
inline constexpr Room kRoomInProfile{std::size_t{4} << 20, std::size_t{1} << 30};

// What separates the name of a call from that of something that happened during it elsewhere.
inline constexpr std::string_view kRemoteOp = "#remote_op: ";

// A process on its node.
wire::TraceProcess this_process(std::string node, std::optional<std::uint32_t> rank);

// Collects what is done for one purpose: a call that is served, or a profile that the program has
// asked for. It is fed by threads that are Recording for it. Thread-safe.
class Recorder final : public c10::DebugInfoBase, public std::enable_shared_from_this<Recorder> {
 public:
  // `wants` is a set of wire::TraceWants.
  Recorder(std::uint32_t wants, wire::TraceProcess self, Room room = kRoomInAnswer);

  // The one that this thread feeds, null if none. libtorch carries it to the threads that work for
  // this one, as it does with its own profilers.
  static Recorder* current();

  bool wants(wire::TraceWants what) const { return (wants_ & what) != 0; }
  // Together with those outside of it, which get everything as well.
  std::uint32_t wanted() const { return wanted_; }
  std::int64_t begun_ns() const { return begun_ns_; }

  // Something that happened in this process.
  void add(wire::TraceEvent&& event);
  // A call of this process, and what others have recorded for it; `clock_offset_ns` is by how much
  // the callee's clock was taken to be ahead of ours when the report was translated. In a timeline
  // it is a Call, and each process has a place of its own; elsewhere it is a Range, and names say
  // what was where.
  void add_call(const wire::TraceEvent& call, const wire::TraceReport* report,
                std::int64_t clock_offset_ns);
  Recorded take();

 private:
  friend class Recording;

  // How the events of a process are put into our clock. What a callee tells about itself in a
  // stretch of time is put there by one offset, the best that is known. The stretch ends, and with
  // it what can still be moved, when the clock was set, may have drifted, or when others tell about
  // the process, too: theirs are as far off as they say.
  struct Stretch {
    std::size_t first_event = 0;
    std::int64_t begun_ns = 0;
    std::int64_t offset_ns = 0;
    std::int64_t error_ns = 0;
  };
  struct Clock {
    std::optional<Stretch> stretch{};
    std::int64_t error_before_ns = 0;  // the largest
  };
  struct Content {
    Recorded recorded{};
    std::vector<Clock> clocks{};  // of the processes
    std::size_t bytes = 0;
  };
  Content empty() const;
  static std::int64_t later_by(Content& content, std::uint16_t process, std::int64_t error_ns,
                               std::optional<std::int64_t> offset_ns);
  bool wants(const wire::TraceEvent& event) const;
  bool has_room(Content& content, const wire::TraceEvent& event, std::size_t prefix) const;
  void keep(wire::TraceEvent&& event);
  void keep(const wire::TraceReport& report, std::string_view prefix, std::int64_t clock_offset_ns);

  const std::uint32_t wants_;
  const std::int64_t begun_ns_;
  const wire::TraceProcess self_;
  const Room room_;
  std::shared_ptr<Recorder> outer_;  // gets everything, too; set by the first Recording
  std::uint32_t wanted_;             // as well
  Guarded<Content> content_;
};

// Has this thread feed a recorder while it exists. Inside of another Recording each gets what it
// wants. Nothing is done if the thread feeds that very recorder already.
//
// Memory is only seen while no profiler of libtorch is on in this thread, and while it is watched
// none can be started: libtorch tells one observer about memory.
class Recording {
 public:
  explicit Recording(const std::shared_ptr<Recorder>& recorder);
  ~Recording();
  Recording(const Recording&) = delete;

 private:
  std::optional<c10::DebugInfoGuard> here_;
  std::optional<c10::DebugInfoGuard> memory_;
  at::CallbackHandle callback_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace hawser::trace
