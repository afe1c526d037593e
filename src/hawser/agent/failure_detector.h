#pragma once

#include "hawser/base/clock.h"

namespace hawser::agent {

enum class Liveness { Alive, Suspect, Lost };

struct FailureDetectorOptions {
  Duration heartbeat_interval = std::chrono::seconds(1);
  Duration suspect_after = std::chrono::seconds(2);
  Duration lost_after = std::chrono::seconds(10);
};

// Judges one peer by its silence. Pure: told what happened and when.
class FailureDetector {
 public:
  FailureDetector(FailureDetectorOptions options, TimePoint now)
      : options_(options), last_heard_(now) {}

  void heard(TimePoint now) { last_heard_ = now; }
  TimePoint last_heard() const { return last_heard_; }

  Liveness judge(TimePoint now) const {
    const Duration silence = now - last_heard_;
    if (silence >= options_.lost_after) return Liveness::Lost;
    if (silence >= options_.suspect_after) return Liveness::Suspect;
    return Liveness::Alive;
  }

 private:
  FailureDetectorOptions options_;
  TimePoint last_heard_;
};

}  // namespace hawser::agent
