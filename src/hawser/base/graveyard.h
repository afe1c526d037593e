#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <unordered_set>
#include <utility>

#include "hawser/base/clock.h"

namespace hawser {

// Ids that must not come to life again, remembered for a while: until what could wake them (a
// message that is late, a second copy of one) cannot be on its way any more. Bounded: of too many
// the oldest are forgotten first. What a forgotten one can do is for each protocol to say.
template <class Id, class Hash = std::hash<Id>>
class Graveyard {
 public:
  Graveyard(Duration keep, std::size_t limit) : keep_(keep), limit_(limit) {}

  void bury(const Id& id, TimePoint now) {
    forget_old(now);
    if (!ids_.insert(id).second) return;
    order_.emplace_back(now, id);
    if (order_.size() > limit_) forget_oldest();
  }
  bool contains(const Id& id) const { return ids_.contains(id); }
  std::size_t size() const { return order_.size(); }
  void clear() {
    ids_.clear();
    order_.clear();
  }

 private:
  void forget_old(TimePoint now) {
    while (!order_.empty() && order_.front().first + keep_ <= now) forget_oldest();
  }
  void forget_oldest() {
    ids_.erase(order_.front().second);
    order_.pop_front();
  }

  const Duration keep_;
  const std::size_t limit_;
  std::unordered_set<Id, Hash> ids_;
  std::deque<std::pair<TimePoint, Id>> order_;
};

}  // namespace hawser
