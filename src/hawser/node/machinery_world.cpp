// A node among the others: who they are, and leaving together with them.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hawser/base/log.h"
#include "hawser/node/machinery.h"

namespace hawser {

// Waits while links are looked after; false when the deadline passed or the node is closing.
bool Node::Machinery::pause(Duration duration, Deadline deadline) {
  Event never;
  crew_->wait(never, std::min(deadline, Deadline::after(clock_, duration)));
  return !closing_.load() && !deadline.passed(clock_.now());
}

bool Node::Machinery::await_own_calls(Deadline deadline) {
  const auto has_calls = [this] {
    const auto calls = agent_->list_calls();
    return std::any_of(calls.begin(), calls.end(),
                       [](const agent::CallInFlight& call) { return !call.incoming; });
  };
  while (has_calls()) {
    if (!pause(std::chrono::milliseconds(5), deadline)) return false;
  }
  return true;
}

// A member that has not joined yet is waited for like one that has not asked to leave. Throws when
// the rendezvous fails.
std::optional<agent::Departure::Members> Node::Machinery::await_members(Deadline deadline) {
  Duration interval = std::chrono::milliseconds(1);
  for (;;) {
    auto roll = directory_->roll();
    std::vector<std::string> missing;
    for (std::uint32_t rank = 0; rank < *options_.world_size; ++rank) {
      if (roll.members.contains(rank)) continue;
      missing.push_back("rank " + std::to_string(rank) + ", which has not joined");
    }
    const bool complete = missing.empty();
    *not_yet_joined_.lock() = std::move(missing);
    if (complete) return std::move(roll.members);
    if (roll.trouble) throw *roll.trouble;
    if (!pause(interval, deadline)) return std::nullopt;
    interval = std::min<Duration>(2 * interval, std::chrono::milliseconds(50));
  }
}

// Without a rendezvous nobody can join any more: those who are known are all there will be.
std::optional<agent::Departure::Members> Node::Machinery::await_members_to_leave_with(
    Deadline deadline) {
  try {
    return await_members(deadline);
  } catch (const Error& error) {
    log::Line(log::Level::Warning, "node")
        << "'" << options_.name << "' leaves with the members that it knows: " << error.message();
    not_yet_joined_.lock()->clear();
    return directory_->roll().members;
  }
}

Deadline Node::Machinery::leaving_deadline(Duration timeout) const {
  return timeout == Duration::zero() ? Deadline::never() : Deadline::after(clock_, timeout);
}

bool Node::Machinery::depart(Deadline deadline) {
  const bool departed = options_.world_size ? depart_together(deadline) : await_own_calls(deadline);
  if (!departed && closing_.load()) {
    throw Error(ErrorKind::Cancelled, "'" + options_.name + "' was closed while it was leaving");
  }
  return departed;
}

bool Node::Machinery::depart_together(Deadline deadline) {
  Future<void> dismissed = *dismissed_.lock();
  if (!dismissed.valid()) {
    auto members = await_members_to_leave_with(deadline);
    if (!members) return false;
    auto [promise, future] = Promise<void>::pair(crew_);
    dismissed = *dismissed_.lock() = future;
    departure_->begin(std::move(*members),
                      [promise = std::move(promise)](std::vector<std::string> lost) mutable {
                        for (const std::string& name : lost) {
                          log::Line(log::Level::Warning, "node")
                              << "'" << name << "' was lost before the world ended";
                        }
                        promise.succeed();
                      });
  }
  if (!dismissed.wait_until(deadline)) return false;
  if (!dismissed.wait().ok()) return false;  // dropped: the node is being closed
  departed_.store(true);
  return true;
}

std::vector<std::string> Node::Machinery::departure_waits_for() const {
  auto waiting = *not_yet_joined_.lock();
  if (departure_) {
    for (auto& name : departure_->waiting_for()) waiting.push_back("'" + name + "'");
  }
  return waiting;
}

bool Node::Machinery::connect(const std::string& to, Deadline deadline) {
  while (!agent_->reach(to)) {
    if (!pause(std::chrono::milliseconds(1), deadline)) return false;
  }
  return true;
}

std::map<std::uint32_t, std::string> Node::Machinery::members(Deadline deadline) {
  if (!options_.world_size) {
    throw Error(ErrorKind::Invalid, "a world without world_size has no fixed members");
  }
  auto all = await_members(deadline);
  if (all) return *all;
  std::string missing;
  for (const std::string& who : *not_yet_joined_.lock())
    missing += (missing.empty() ? "" : ", ") + who;
  throw Error(closing_.load() ? ErrorKind::Invalid : ErrorKind::Timeout,
              closing_.load() ? "the node is closed" : "still waiting for " + missing + " to join");
}

std::optional<std::uint32_t> Node::Machinery::look_up(std::string_view name, Deadline deadline) {
  auto [promise, future] = Promise<std::optional<std::uint32_t>>::pair(crew_, deadline);
  directory_->look_up(std::string(name), [promise = std::make_shared<decltype(promise)>(std::move(
                                              promise))](Result<std::optional<agent::Card>> card) {
    if (!card.ok()) return promise->fail(card.error());
    const bool there = card.value() && !card.value()->endpoints.empty();
    promise->succeed(there ? std::optional(card.value()->rank) : std::nullopt);
  });
  if (!future.wait_for(deadline.remaining(clock_.now()))) {
    throw Error(ErrorKind::Timeout, "the rendezvous does not answer");
  }
  return future.get();
}

std::uint32_t Node::Machinery::rank_of(const std::string& name) {
  {
    auto ranks = ranks_.lock();
    const auto known = ranks->find(name);
    if (known != ranks->end()) return known->second;
  }
  constexpr Duration kPatience = std::chrono::seconds(10);
  const auto rank = look_up(name, Deadline::after(clock_, kPatience));
  if (!rank) throw Error(ErrorKind::Invalid, "there is no node '" + name + "'", {.node = name});
  ranks_.lock()->emplace(name, *rank);
  return *rank;
}

void Node::Machinery::log_references(log::Level level, std::string_view what,
                                     const std::vector<std::string>& lines) const {
  constexpr std::size_t kMost = 100;
  for (std::size_t i = 0; i < std::min(lines.size(), kMost); ++i) {
    log::Line(level, "node") << "'" << options_.name << "', " << what << ": " << lines[i];
  }
  if (lines.size() > kMost) {
    log::Line(level, "node") << "'" << options_.name << "', " << what << ": "
                             << lines.size() - kMost << " more";
  }
}

// That a program has references to the end is its good right. Those that hold each other across
// nodes are another matter: they would have stayed for ever. Whoever is not in such a ring lets go
// at once, and that may free others; who is still entangled after a moment has found one. It holds
// on for another moment, so that the others find it, too.
void Node::Machinery::report_references() {
  if (log::enabled(log::Level::Info, "node")) {
    log_references(log::Level::Info, "still held at the end", references_->describe_held());
  }
  if (!options_.world_size) return;
  constexpr Duration kMoment = std::chrono::milliseconds(50);
  const auto is_in_a_ring = [&] {
    const Deadline deadline = Deadline::after(clock_, kMoment);
    while (references_->entangled()) {
      if (!pause(std::chrono::milliseconds(5), deadline)) return true;
    }
    return false;
  };
  if (!is_in_a_ring()) return;
  log_references(log::Level::Warning, "perhaps in a ring of references that hold each other",
                 references_->describe_leaks());
  is_in_a_ring();
}

void Node::Machinery::release_references() {
  report_references();
  references_->release_all();
}

// In a world of fixed members all leave together, so nothing need stay behind. Elsewhere others may
// go on using what is here until this node is gone, and then find that out.
bool Node::Machinery::await_release(Deadline deadline) {
  const auto done = [&] {
    if (options_.world_size) return references_->idle();
    const RefCounts counts = references_->count();
    return counts.held == 0 && counts.unsettled == 0;
  };
  while (!done()) {
    if (!pause(std::chrono::milliseconds(1), deadline)) return false;
  }
  return true;
}

}  // namespace hawser
