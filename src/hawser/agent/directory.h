#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hawser/base/ids.h"
#include "hawser/base/result.h"
#include "hawser/base/unique_function.h"

namespace hawser::agent {

// How to reach a node: what it publishes when it joins.
struct Card {
  std::string name;
  std::uint32_t rank = 0;
  Incarnation incarnation{};
  std::vector<std::string> endpoints;  // in the order in which they should be tried
  bool is_member = false;              // of a world of fixed members: nobody else has its rank

  bool operator==(const Card&) const = default;
};

// Where nodes of one world find each other. Not trusted with anything but finding: who answers has
// to prove that it knows the world's secret.
//
// Callbacks come exactly once, from any thread, and must not block.
class Directory {
 public:
  virtual ~Directory() = default;
  // Publishes the card under a new incarnation, higher than any that this name ever had, and
  // returns it filled in.
  virtual void join(Card card, UniqueFunction<void(Result<Card>)> done) = 0;
  // The card of that name; without endpoints if it has left; nothing if nobody of that name has
  // ever joined.
  virtual void look_up(std::string name,
                       UniqueFunction<void(Result<std::optional<Card>>)> done) = 0;
  // Takes the card back; best effort.
  virtual void leave(const Card& card) = 0;
};

}  // namespace hawser::agent
