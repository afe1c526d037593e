#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "hawser/base/ids.h"
#include "hawser/refs/records.h"

namespace hawser::refs {

// The nodes this node has heard of, and which of their lives are over. Entries never move and never
// go, so that references point to them instead of holding a name each; there are as many as names.
class Roster {
 public:
  struct Entry {
    std::string name;
    Incarnation current{};  // the highest heard of; zero: never heard of any
    Incarnation lost{};     // up to this one they have been given up

    // Zero is an incarnation that is not known yet, and never over.
    bool is_over(Incarnation incarnation) const {
      return incarnation != Incarnation{} && (incarnation <= lost || incarnation < current);
    }
    // The one to turn to; zero when there is none.
    Incarnation alive() const { return current > lost ? current : Incarnation{}; }
    // Who has got a message that was sent to this node: nobody (zero) if it never left or the
    // receiver's life is over; where the sender does not know (zero), whoever is there now.
    Incarnation resolve(std::optional<Incarnation> sent_to) const {
      if (!sent_to || is_over(*sent_to)) return Incarnation{};
      return *sent_to == Incarnation{} ? alive() : *sent_to;
    }
  };

  Entry& of(std::string_view name) {
    if (latest_ && latest_->name == name) return *latest_;
    auto found = entries_.find(name);
    if (found == entries_.end()) {
      found = entries_.emplace(std::string(name), Entry{std::string(name)}).first;
    }
    latest_ = &found->second;
    return *latest_;
  }
  bool is_over(const Party& party) { return of(party.name).is_over(party.incarnation); }

 private:
  std::map<std::string, Entry, std::less<>> entries_;
  Entry* latest_ = nullptr;  // asked for: most often it is asked for again
};

}  // namespace hawser::refs
