#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>

#include "hawser/base/graveyard.h"
#include "hawser/base/ids.h"

namespace hawser::autograd {

// One life of a node.
struct Party {
  std::string name{};
  Incarnation incarnation{};
  auto operator<=>(const Party&) const = default;
};

// What one node made, by a number that is nobody else's:
//
//    63      48 47   36 35                0
//   +----------+-------+-------------------+
//   |   rank   | life  |      serial       |
//   +----------+-------+-------------------+
//
// The rank is on top because programs know it there: `id >> 48` is the worker that made it. It
// leaves the first bit 0, for languages in which numbers have a sign. `life` is the low part of the
// incarnation, which is nobody else's in the world; of a node without a rank, the next part of it
// stands where the rank would. So ids of two nodes are the same only if they have the same rank and
// have joined 4,096 lives apart, or a multiple of 134,217,728 lives.
inline constexpr unsigned kRankBits = 16;
inline constexpr std::uint32_t kMaxRank = (1u << (kRankBits - 1)) - 1;
inline constexpr unsigned kLifeBits = 12;
inline constexpr unsigned kSerialBits = 36;

enum class ContextId : std::uint64_t {};  // made by who enters the context
enum class MessageId : std::uint64_t {
};                                     // a send function and its recv function, made by the sender
enum class PassId : std::uint64_t {};  // one backward, made by who starts it

template <class Id>
concept Numbered =
    std::is_same_v<Id, ContextId> || std::is_same_v<Id, MessageId> || std::is_same_v<Id, PassId>;

template <Numbered Id>
constexpr std::uint64_t number(Id id) {
  return static_cast<std::uint64_t>(id);
}
template <Numbered Id>
constexpr Plot plot_of(Id id) {
  return {0, number(id)};  // the maker is in the number
}
template <Numbered Id>
constexpr std::uint32_t rank_of(Id id) {
  return static_cast<std::uint32_t>(number(id) >> (kLifeBits + kSerialBits));
}
// "2.5:17": the 17th of worker 2 in its life 5.
template <Numbered Id>
std::string to_string(Id id) {
  const std::uint64_t life = (number(id) >> kSerialBits) & ((1u << kLifeBits) - 1);
  const std::uint64_t serial = number(id) & ((std::uint64_t{1} << kSerialBits) - 1);
  return std::to_string(rank_of(id)) + "." + std::to_string(life) + ":" + std::to_string(serial);
}

// Who this node is. The rank, if it has one, must be its own among all nodes of the world.
struct Self {
  std::string name;
  Incarnation incarnation{};
  std::optional<std::uint32_t> rank{};  // at most kMaxRank

  Party party() const { return {name, incarnation}; }
};

// One counter for all three kinds.
class Numbers {
 public:
  explicit Numbers(const Self& self) { start_over(self); }
  void start_over(const Self& self) {
    const std::uint64_t life = hawser::number(self.incarnation);
    const std::uint64_t top = self.rank ? *self.rank : (life >> kLifeBits) & kMaxRank;
    base_ = (top << (kLifeBits + kSerialBits)) | ((life & ((1u << kLifeBits) - 1)) << kSerialBits);
    serial_ = 0;
  }
  template <Numbered Id>
  Id next() {
    return Id{base_ | (++serial_ & ((std::uint64_t{1} << kSerialBits) - 1))};
  }

 private:
  std::uint64_t base_ = 0;
  std::uint64_t serial_ = 0;
};

// The lives of other nodes that are over: given up here, or followed by a later one.
class Lives {
 public:
  bool is_over(const Party& party) const {
    const auto at = names_.find(party.name);
    if (at == names_.end()) return false;
    return party.incarnation <= at->second.lost || party.incarnation < at->second.latest;
  }
  // True when that ends the lives before it.
  bool learn(const Party& party) {
    Incarnation& latest = names_[party.name].latest;
    if (party.incarnation <= latest) return false;
    const bool had = latest != Incarnation{};
    latest = party.incarnation;
    return had;
  }
  void lost(const Party& party) {
    Incarnation& lost = names_[party.name].lost;
    lost = std::max(lost, party.incarnation);
  }

 private:
  struct Life {
    Incarnation latest{};
    Incarnation lost{};  // up to this one they have been given up
  };
  std::map<std::string, Life, std::less<>> names_;
};

}  // namespace hawser::autograd
