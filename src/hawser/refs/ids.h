#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "hawser/base/ids.h"

namespace hawser::refs {

// A name that is given once in the life of a world: `on` says which incarnation of which node made
// it, `local` counts what that incarnation made.
template <class Tag>
struct UniqueId {
  std::uint64_t on = 0;
  std::uint64_t local = 0;
  auto operator<=>(const UniqueId&) const = default;
};

using RefId = UniqueId<struct RefTag>;    // one value, made by whoever asked for it
using ForkId = UniqueId<struct ForkTag>;  // one holder's title to it, made by whoever gave it

// `on` of a node. No two nodes of a world, nor two lives of one, have the same incarnation (see
// StoreDirectory); the rank is there for people.
inline constexpr std::uint32_t kRankBits = 24;
constexpr std::uint64_t origin_of(std::uint32_t rank, Incarnation incarnation) {
  return (number(incarnation) << kRankBits) | (rank & ((1u << kRankBits) - 1));
}
constexpr std::uint32_t rank_of(std::uint64_t origin) {
  return static_cast<std::uint32_t>(origin & ((1u << kRankBits) - 1));
}

struct IdHash {
  template <class Tag>
  std::size_t operator()(const UniqueId<Tag>& id) const {
    // Counters of a few nodes. Not scattered: neighbours are made and die together, and so are
    // neighbours in the table, which then need not be fetched into the cache one by one.
    return static_cast<std::size_t>(id.local ^ (id.on << 40) ^ (id.on >> 24));
  }
};

template <class Tag>
std::string to_string(const UniqueId<Tag>& id) {
  return std::to_string(rank_of(id.on)) + "#" + std::to_string(id.on >> kRankBits) + ":" +
         std::to_string(id.local);
}

}  // namespace hawser::refs
