#pragma once

#include <map>
#include <memory>
#include <string>

#include "hawser/agent/world_store.h"
#include "hawser/base/guarded.h"

namespace hawser::testing {

// The rendezvous of several nodes in one process.
class MemoryStore final : public agent::WorldStore {
 public:
  std::optional<std::string> get(const std::string& key) override {
    auto values = values_.lock();
    const auto found = values->find(key);
    return found == values->end() ? std::nullopt : std::optional(found->second);
  }
  void set(const std::string& key, const std::string& value) override {
    (*values_.lock())[key] = value;
  }
  std::string get_or_set(const std::string& key, const std::string& value) override {
    return values_.lock()->emplace(key, value).first->second;
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    auto values = values_.lock();
    std::string& value = (*values)[key];
    value = std::to_string((value.empty() ? 0 : std::stoll(value)) + amount);
    return std::stoll(value);
  }

 private:
  Guarded<std::map<std::string, std::string>> values_;
};

}  // namespace hawser::testing
