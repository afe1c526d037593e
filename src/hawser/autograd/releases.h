#pragma once

#include <map>
#include <string>
#include <string_view>

#include "hawser/autograd/desk.h"

namespace hawser::autograd {

// Carries the word that contexts are over to other nodes, until it has arrived or the node is lost.
// One message at a time to each node; what comes meanwhile travels together in the next.
//
// Part of Contexts; sans-IO.
class Releases {
 public:
  explicit Releases(Desk& desk) : desk_(desk) {}

  void post(const Party& to, ContextId context);
  void answered(const std::string& peer, Outgoing call, bool arrived, TimePoint now);
  // Who is gone has nothing left to release.
  void lost(const Party& party);
  void clear() { boxes_.clear(); }

  void tick(TimePoint now);
  Deadline next_due() const;
  bool empty() const { return boxes_.empty(); }
  bool concerns(std::string_view peer) const { return boxes_.contains(peer); }

 private:
  using Words = std::map<ContextId, Incarnation>;  // meant for that life; zero: not known
  struct Box {
    Words waiting{};
    Words on_the_way{};
    Outgoing call{};
    Duration pause{};
    Deadline retry{};  // never: something is on its way
  };
  void send(const std::string& peer, Box& box);

  Desk& desk_;
  std::map<std::string, Box, std::less<>> boxes_;
};

}  // namespace hawser::autograd
