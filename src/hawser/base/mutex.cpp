#include "hawser/base/mutex.h"

#include "hawser/base/futex.h"

namespace hawser {

// Whoever gets the mutex here leaves it marked as wanted: others may sleep that it knows nothing
// of. The worst that comes of it is one wake-up too many.
void Mutex::lock_slowly() {
  while (state_.exchange(kWanted, std::memory_order_acquire) != kFree) {
    futex_wait(state_, kWanted, Deadline::never());
  }
}

void Mutex::wake_one() { futex_wake(&state_, 1); }

}  // namespace hawser
