#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "hawser/base/clock.h"

namespace hawser {

// Happens once. A thread that finds it has not happened yet can sleep until it does.
class Event {
 public:
  bool happened() const { return state_.load(std::memory_order_acquire) == kHappened; }

  // What was written before set() is visible to whoever saw it happen. Does not touch the event
  // after waking its sleepers, so a waiter may destroy what contains it.
  void set();

  // False when the deadline passed first.
  bool sleep_until(Deadline deadline);

 private:
  static constexpr std::uint32_t kNotYet = 0;
  static constexpr std::uint32_t kHappened = 1;
  static constexpr std::uint32_t kSomebodySleeps = 2;
  std::atomic<std::uint32_t> state_{kNotYet};
};

// Sleepers to be woken together. Waking one usually means that it gets the core at once; a thread
// that has more news for it delivers them all first. Belongs to one thread at a time, which sees to
// it that wake() is called soon.
class Wakes {
 public:
  // While it lives, events that this thread sets have their sleepers put down here.
  class Collecting {
   public:
    explicit Collecting(Wakes& wakes);
    ~Collecting();
    Collecting(const Collecting&) = delete;

   private:
    Wakes* const before_;
  };

  Wakes() = default;
  ~Wakes() { wake(); }
  Wakes(const Wakes&) = delete;

  void wake() {
    if (count_ != 0) wake_all();
  }

 private:
  friend class Event;
  // Only a name for the kernel: the event may be gone.
  using Word = std::atomic<std::uint32_t>*;
  static constexpr std::size_t kMost = 16;

  void add(Word word);
  void wake_all();

  std::array<Word, kMost> words_{};
  std::size_t count_ = 0;
};

}  // namespace hawser
