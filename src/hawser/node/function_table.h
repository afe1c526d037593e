#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "hawser/base/guarded.h"
#include "hawser/base/name_map.h"
#include "hawser/node/function.h"

namespace hawser {

// Functions that are known by their names alone and run by one that understands all of them:
// operators, scripts, Python. Each gets an entry when it is first called, for what is learnt about
// its duration. Thread-safe.
class FunctionTable {
 public:
  explicit FunctionTable(Function::Invoke run) : run_(std::move(run)) {}

  std::shared_ptr<Function> find(std::string_view name) {
    auto known = known_.lock();
    const auto found = known->find(name);
    if (found != known->end()) return found->second;
    auto made = std::make_shared<Function>(std::string(name), "(...)", run_);
    if (known->size() < kMostKnown) known->emplace(name, made);
    return made;
  }

 private:
  static constexpr std::size_t kMostKnown = 10'000;  // callers choose the names

  const Function::Invoke run_;
  Guarded<NameMap<std::shared_ptr<Function>>> known_;
};

}  // namespace hawser
