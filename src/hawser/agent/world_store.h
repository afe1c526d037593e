#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hawser::agent {

// The few keys through which the nodes of a world find each other. Thread-safe; calls may block for
// as long as the store's own time-out. Every method throws Error(PeerLost) when the store cannot be
// reached.
class WorldStore {
 public:
  virtual ~WorldStore() = default;
  // Nothing if the key is not set; does not wait for it.
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // Whether all are set.
  virtual bool has_all(const std::vector<std::string>& keys) {
    return std::all_of(keys.begin(), keys.end(),
                       [this](const std::string& key) { return get(key).has_value(); });
  }
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Sets the key unless it is set; what it is now.
  virtual std::string get_or_set(const std::string& key, const std::string& value) = 0;
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  // The host that has it, as the members call it; empty if that is unknown, or it is none.
  virtual std::string host() const { return {}; }
};

}  // namespace hawser::agent
