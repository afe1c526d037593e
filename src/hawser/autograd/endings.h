#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

#include "hawser/autograd/ids.h"
#include "hawser/base/clock.h"
#include "hawser/base/error.h"

namespace hawser::autograd {

// How passes ended that are over on this node, remembered for a while: a message that is late must
// not begin one again, and who sends it is told the error that ended the pass, not that it is over.
// Bounded: of too many the oldest are forgotten first.
class Endings {
 public:
  Endings(Duration keep, std::size_t limit) : keep_(keep), limit_(limit) {}

  // Nothing: it ended well.
  void remember(PassId pass, std::optional<Error> why, TimePoint now) {
    while (!order_.empty() && order_.front().first + keep_ <= now) forget_oldest();
    if (!endings_.emplace(pass, std::move(why)).second) return;
    order_.emplace_back(now, pass);
    if (order_.size() > limit_) forget_oldest();
  }
  bool contains(PassId pass) const { return endings_.contains(pass); }
  std::optional<Error> error(PassId pass) const {
    const auto at = endings_.find(pass);
    return at == endings_.end() ? std::nullopt : at->second;
  }

 private:
  void forget_oldest() {
    endings_.erase(order_.front().second);
    order_.pop_front();
  }

  const Duration keep_;
  const std::size_t limit_;
  std::unordered_map<PassId, std::optional<Error>> endings_;
  std::deque<std::pair<TimePoint, PassId>> order_;
};

}  // namespace hawser::autograd
