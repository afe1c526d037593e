#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "hawser/agent/crew.h"
#include "hawser/transport/poll_seat.h"

namespace hawser::agent {

// What the calling thread is to the crews of its process. For crews only.
struct CrewThread {
  // In whose task it is, and as which hand; a helper is none.
  struct Serving {
    const Crew* crew = nullptr;
    void* hand = nullptr;
  };

  Serving serving{};
  Crew::Helper* helping = nullptr;
  const Crew* taking_in = nullptr;  // a frame, for this crew
  std::int64_t last_wait_ns = 0;

  // One variable for all of it: finding one takes a call.
  static CrewThread& here() {
    thread_local constinit CrewThread thread;
    return thread;
  }

  // Its name on poll seats.
  transport::PollSeat::Sitter sitter() {
    static std::atomic<transport::PollSeat::Sitter> next{1};
    if (sitter_ == 0) sitter_ = next.fetch_add(1, std::memory_order_relaxed);
    return sitter_;
  }

 private:
  transport::PollSeat::Sitter sitter_ = 0;
};

inline std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace hawser::agent
