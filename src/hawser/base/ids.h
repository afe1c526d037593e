#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace hawser {

// Which life of a node: counted up by the directory each time any node joins, so that no two lives
// in a world have the same. One that anybody has declared lost never comes back.
enum class Incarnation : std::uint64_t {};

// One outstanding call between two nodes, chosen by the caller. Never reused within a link.
enum class CallId : std::uint64_t {};

// All calls that one call from outside has led to, over any number of nodes.
enum class ChainId : std::uint64_t { None = 0 };

constexpr std::uint64_t number(Incarnation id) { return static_cast<std::uint64_t>(id); }
constexpr std::uint64_t number(CallId id) { return static_cast<std::uint64_t>(id); }
constexpr std::uint64_t number(ChainId id) { return static_cast<std::uint64_t>(id); }

// Keeps jobs apart: random, agreed through the directory, checked in every handshake.
struct WorldId {
  std::array<std::uint8_t, 16> bytes{};
  auto operator<=>(const WorldId&) const = default;
};

}  // namespace hawser
