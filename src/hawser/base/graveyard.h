#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>

#include "hawser/base/clock.h"

namespace hawser {

// Where the grave of an id is: with those of its maker, in the order in which it made them.
struct Plot {
  std::uint64_t maker = 0;
  std::uint64_t number = 0;
};

// Ids that must not come to life again, remembered for a while: until what could wake them (a
// message that is late, a second copy of one) cannot be on its way any more. What a forgotten one
// can do is for each protocol to say.
//
// There is a `Plot plot_of(const Id&)`. Makers count what they make, so neighbours share a page of
// bits: the graves of those who live briefly and die in order, which are most, cost a bit each and
// lie together in the cache. A page is remembered as long as the last that was buried in it.
// Bounded: of too many pages the oldest are forgotten first.
template <class Id>
class Graveyard {
 public:
  static constexpr std::size_t kIdsInPage = 256;

  Graveyard(Duration keep, std::size_t max_pages) : keep_(keep), max_pages_(max_pages) {}

  void bury(const Id& id, TimePoint now) {
    forget_old(now);
    const auto [place, index] = find(id);
    const auto [at, is_new] = pages_.try_emplace(place);
    at->second.graves.set(index);
    at->second.latest = now;
    if (!is_new) return;
    order_.emplace_back(now, place);
    if (order_.size() > max_pages_) forget_first();
  }
  bool contains(const Id& id) const {
    const auto [place, index] = find(id);
    const auto at = pages_.find(place);
    return at != pages_.end() && at->second.graves.test(index);
  }
  std::size_t pages() const { return pages_.size(); }
  void clear() {
    pages_.clear();
    order_.clear();
  }

 private:
  struct Place {
    std::uint64_t maker;
    std::uint64_t page;
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const {
      return static_cast<std::size_t>((place.page ^ (place.maker << 40) ^ (place.maker >> 24)) *
                                      0x9e3779b97f4a7c15);
    }
  };
  struct Page {
    std::bitset<kIdsInPage> graves;
    TimePoint latest{};
  };

  static std::pair<Place, std::size_t> find(const Id& id) {
    const Plot plot = plot_of(id);
    return {{plot.maker, plot.number / kIdsInPage},
            static_cast<std::size_t>(plot.number % kIdsInPage)};
  }
  void forget_old(TimePoint now) {
    while (!order_.empty() && order_.front().first + keep_ <= now) {
      const Place place = order_.front().second;
      const TimePoint latest = pages_.at(place).latest;
      if (latest + keep_ <= now) {
        forget_first();
      } else {  // used again since it was put there
        order_.pop_front();
        order_.emplace_back(latest, place);
      }
    }
  }
  void forget_first() {
    pages_.erase(order_.front().second);
    order_.pop_front();
  }

  const Duration keep_;
  const std::size_t max_pages_;
  std::unordered_map<Place, Page, PlaceHash> pages_;
  // When each page was begun, or was last looked at. Not quite in order of time where a page was
  // used again: then those behind it are forgotten a little late.
  std::deque<std::pair<TimePoint, Place>> order_;
};

}  // namespace hawser
