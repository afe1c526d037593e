// References for those who look.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hawser/node/references.h"

namespace hawser {

std::vector<RefReport> References::report() {
  std::vector<RefReport> reports;
  std::vector<std::pair<std::size_t, std::shared_ptr<Kept>>> values;  // are asked without the lock
  tell([&](State& state, TimePoint now) {
    for (const refs::OwnedReport& owned : state.ledger.owned(now)) {
      RefReport& report = reports.emplace_back();
      report.id = refs::to_string(owned.ref);
      report.owner = self_;
      report.mine = true;
      report.state = owned.stage;
      report.handles = owned.local;
      report.age = owned.age;
      for (const auto& holder : owned.holders) report.holders.push_back(holder.node);
      const auto known = state.values.find(owned.ref);
      if (known == state.values.end()) continue;
      report.made_by = known->second.made_by;
      report.origin = known->second.origin;
      if (known->second.value) values.emplace_back(reports.size() - 1, known->second.value);
    }
    for (const refs::HeldReport& held : state.ledger.held(now)) {
      RefReport& report = reports.emplace_back();
      report.id = refs::to_string(held.ref);
      report.owner = held.owner;
      report.state = held.state;
      report.handles = held.handles;
      report.age = held.age;
      const auto known = state.handles.find(held.fork);
      if (known == state.handles.end()) continue;
      if (const auto handle = known->second.handle.lock()) {
        report.type = handle->type();
        report.origin = handle->origin();
      }
    }
  });
  for (const auto& [index, value] : values) {
    reports[index].type = value->type_name();
    reports[index].bytes = value->bytes();
  }
  return reports;
}

RefCounts References::count() {
  RefCounts counts;
  tell([&](State& state, TimePoint now) {
    for (const refs::OwnedReport& owned : state.ledger.owned(now)) {
      ++counts.values;
      if (!owned.holders.empty()) ++counts.shared;
      counts.forks += owned.holders.size();
    }
    for (const refs::HeldReport& held : state.ledger.held(now)) {
      ++counts.held;
      if (held.state == "creating" || held.state == "adopted") ++counts.creating;
    }
    counts.creating += creating_own_.load(std::memory_order_acquire);
    counts.unsettled = state.ledger.unacknowledged();
  });
  return counts;
}

std::vector<std::string> References::describe_held() {
  std::vector<std::string> lines;
  for (const RefReport& held : report()) {
    if (held.mine || held.handles == 0) continue;
    lines.push_back("value " + held.id + " on " + held.owner + " (" +
                    (held.type.empty() ? "" : held.type + ", ") + held.state + ")" +
                    (held.origin.empty() ? "" : ", created at " + held.origin));
  }
  return lines;
}

std::vector<std::string> References::describe_leaks() {
  std::vector<std::string> lines;
  tell([&](State& state, TimePoint now) { lines = refs::describe_leaks(state.ledger, now); });
  return lines;
}

}  // namespace hawser
