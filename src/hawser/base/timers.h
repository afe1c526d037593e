#pragma once

#include <cstdint>

#include "hawser/base/clock.h"
#include "hawser/base/unique_function.h"

namespace hawser {

// Runs things later, one at a time, on a thread that never runs user code and never blocks: the
// control thread in production, the simulator's only thread in the simulator. A deadline therefore
// fires whatever handlers do.
class Timers {
 public:
  enum class Id : std::uint64_t { None = 0 };

  virtual ~Timers() = default;
  // Any thread.
  virtual Id schedule(TimePoint at, UniqueFunction<void()> task) = 0;
  // Any thread. The task will not start after this returns on the control thread; on others it may
  // just be running.
  virtual void cancel(Id id) = 0;
  // As soon as possible, in order.
  virtual void post(UniqueFunction<void()> task) = 0;
};

}  // namespace hawser
