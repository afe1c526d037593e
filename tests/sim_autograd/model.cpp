#include "sim_autograd/model.h"

#include <algorithm>

namespace hawser::autograd::simulation {
namespace {

using namespace std::chrono_literals;

constexpr Duration kSlack = 150ms;  // for a few flights of a message
constexpr Duration kReleased = 2s;  // at the latest, where all live who can pass the word on

}  // namespace

void Model::complain(const std::string& what) {
  world_.note("COMPLAINT", what);
  complaints_.push_back(what);
}

// ------------------------------------------------------------------------------- lives

void Model::ended(const Party& party) {
  alive_.erase(party.name);
  for (auto& [id, pass] : passes_) {
    pass.at_work.erase(party);
    pass.computing.erase(party);
  }
}

bool Model::is_alive(const Party& party) const {
  const auto at = alive_.find(party.name);
  return at != alive_.end() && at->second == party.incarnation;
}

// ------------------------------------------------------------------------------- contexts

void Model::created(ContextId context, const Party& by) {
  ++counts_.contexts;
  if (!contexts_.emplace(context, TrueContext{by, world_.now()}).second) {
    complain("context " + to_string(context) + " was made twice");
  }
}

void Model::joined(ContextId context, const Party& party) {
  ++counts_.joined;
  TrueContext& truth = contexts_[context];
  truth.members.insert(party);
  if (truth.left.contains(party)) {
    complain("GRAD-6: " + party.name + " is in context " + to_string(context) +
             " again, which it had left");
  }
}

void Model::dropped(ContextId context, const Party& party) {
  TrueContext& truth = contexts_[context];
  const bool over = truth.released || !is_alive(truth.creator) || last_trouble_;
  if (!over)
    complain("context " + to_string(context) + " was dropped by " + party.name + " too early");
  truth.left.insert(party);
  truth.members.insert(party);
}

// What is still under way is cancelled by it.
void Model::released(ContextId context) {
  contexts_[context].released = true;
  for (const PassId id : contexts_[context].passes) {
    if (!passes_[id].result) passes_[id].cancelled = true;
  }
  world_.after(kReleased, [this, context] {
    const TrueContext& truth = contexts_.at(context);
    if (lives_ended_early_ || truth.members == truth.left) return;
    complain("GRAD-3: context " + to_string(context) + " is known to some long after its release");
  });
}

bool Model::is_quiet(ContextId context) const {
  const auto& passes = contexts_.at(context).passes;
  return std::all_of(passes.begin(), passes.end(), [&](PassId id) {
    const TruePass& pass = passes_.at(id);
    return pass.result || (!is_alive(pass.initiator) && pass.at_work.empty());
  });
}

void Model::check_gradients(ContextId context, const Party& on,
                            const std::map<FunctionNumber, Gradient>& gradients) {
  std::map<FunctionNumber, Gradient> expected;
  for (const PassId id : contexts_.at(context).passes) {
    const TruePass& pass = passes_.at(id);
    const bool succeeded = pass.result && pass.result->ok();
    // GRAD-5: only the loss of a node or connection in the midst of committing may tear a pass.
    if (!succeeded && !pass.committed.empty()) {
      ++counts_.torn;
      if (is_calm(pass)) complain("GRAD-5: pass " + to_string(id) + " was half committed");
      return;
    }
    if (!succeeded) continue;
    for (const auto& [leaf, gradient] : pass.truth.leaves) {
      if (graph_.at(leaf).on == on) expected[leaf] += gradient;
    }
  }
  ++counts_.compared;
  const auto drop_zeros = [](std::map<FunctionNumber, Gradient> sums) {
    std::erase_if(sums, [](const auto& each) { return each.second == 0; });
    return sums;
  };
  if (drop_zeros(expected) != drop_zeros(gradients)) {
    complain("GRAD-4: the gradients of context " + to_string(context) + " on " + on.name +
             " are not those of one node");
  }
}

// ------------------------------------------------------------------------------- passes

void Model::begun(PassId id, const Party& by, PassPlan plan) {
  ++counts_.passes;
  if (plan.mode == Mode::Fast) ++counts_.fast;
  if (passes_.contains(id)) return complain("pass " + to_string(id) + " was begun twice");
  TruePass& pass = passes_[id];
  pass.truth = graph_.backward(plan.roots);
  pass.initiator = by;
  pass.begun = world_.now();
  contexts_[plan.context].passes.push_back(id);
  pass.plan = std::move(plan);
  if (parties_of(pass).size() > 2) ++counts_.spread;
  if (!pass.plan.budget) return;
  world_.after(*pass.plan.budget + abort_grace_ + kSlack, [this, id] {
    const TruePass& late = passes_.at(id);
    if (late.result || !is_alive(late.initiator)) return;
    complain("GRAD-2: pass " + to_string(id) + " has not ended long after its deadline");
  });
}

std::set<Party> Model::parties_of(const TruePass& pass) const {
  std::set<Party> parties;
  for (const FunctionNumber function : pass.truth.reached) parties.insert(graph_.at(function).on);
  return parties;
}

bool Model::raises(PassId id, FunctionNumber function) const {
  return passes_.at(id).plan.fails_at == function;
}

void Model::local_started(PassId id, const Party& on, const std::set<FunctionNumber>& awaited) {
  TruePass& pass = passes_[id];
  if (!pass.started.insert(on).second) {
    complain("pass " + to_string(id) + " was started twice on " + on.name);
  }
  pass.at_work.insert(on);
  if (pass.plan.mode == Mode::Fast) return;
  std::set<FunctionNumber> exact;
  for (const FunctionNumber function : pass.truth.reached) {
    const Function& each = graph_.at(function);
    // The roots themselves may be what was received, but a send function is only reached from afar.
    if (each.kind == Function::Kind::Send && each.on == on) exact.insert(function);
  }
  if (awaited != exact) {
    complain("GRAD-1: in pass " + to_string(id) + " " + on.name + " waits for " +
             std::to_string(awaited.size()) + " gradients, but " + std::to_string(exact.size()) +
             " will come");
  }
}

void Model::local_computes(PassId id, const Party& on) {
  TruePass& pass = passes_[id];
  pass.computing.insert(on);
  if (pass.result && is_calm(pass)) {
    complain("GRAD-2: " + on.name + " computes after pass " + to_string(id) + " ended");
  }
}

void Model::local_stopped(PassId id, const Party& on) {
  passes_[id].at_work.erase(on);
  passes_[id].computing.erase(on);
}

bool Model::is_calm(const TruePass& pass) const {
  return !last_trouble_ || *last_trouble_ < contexts_.at(pass.plan.context).made;
}

void Model::committed(PassId id, const Party& on) {
  TruePass& pass = passes_[id];
  if (!pass.committed.insert(on).second) {
    complain("GRAD-5: pass " + to_string(id) + " was committed twice on " + on.name);
  }
  if (pass.at_work.contains(on)) {
    complain("GRAD-5: pass " + to_string(id) + " was committed on " + on.name + ", still at work");
  }
}

void Model::finished(PassId id, const Party& on, const Result<void>& result) {
  TruePass& pass = passes_[id];
  if (pass.initiator != on) return complain("GRAD-2: pass " + to_string(id) + " ends elsewhere");
  if (pass.result) return complain("GRAD-2: pass " + to_string(id) + " ends twice");
  pass.result = result;
  if (result.ok()) {
    ++counts_.succeeded;
    check_success(id, pass);
  } else {
    ++counts_.failed;
    ++counts_.errors[result.error().kind()];
    check_failure(id, pass, result.error());
  }
}

void Model::check_success(PassId id, const TruePass& pass) {
  if (!pass.at_work.empty()) {
    complain("GRAD-2: pass " + to_string(id) + " ended while " + pass.at_work.begin()->name +
             " was at work");
  }
  for (const Party& party : parties_of(pass)) {
    if (pass.committed.contains(party)) continue;
    complain("GRAD-5: pass " + to_string(id) + " ended before " + party.name + " had committed");
  }
  if (pass.plan.fails_at) complain("pass " + to_string(id) + " ended well, though it had an error");
}

// An error must be true. In peace an error of one kind has one reason.
void Model::check_failure(PassId id, const TruePass& pass, const Error& why) {
  const std::string text = "pass " + to_string(id) + " failed: " + why.what();
  if (is_calm(pass) && !pass.computing.empty()) {
    complain("GRAD-2: " + text + ", while " + pass.computing.begin()->name + " was computing");
  }
  const auto age = world_.now() - pass.begun;
  switch (why.kind()) {
    case ErrorKind::Remote: {
      const bool freed = why.message() == "freed" && may_find_freed(pass, id);
      const auto& fails_at = pass.plan.fails_at;
      const bool told = fails_at && why.message() == "function " + std::to_string(*fails_at);
      if (!told && !freed) return complain(text + ", but nothing raised that");
      if (told && why.details().node != graph_.at(*fails_at).on.name) {
        complain(text + ", but it was not on " + why.details().node);
      }
      return;
    }
    case ErrorKind::Timeout: {
      if (!pass.plan.budget || age < *pass.plan.budget) return complain(text + ", too early");
      const bool may_wait = pass.plan.mode == Mode::Fast && !pass.plan.all_used;
      const bool was_short = *pass.plan.budget < 300ms;
      if (is_calm(pass) && !may_wait && !was_short) complain(text + ", for no reason");
      return;
    }
    case ErrorKind::Cancelled:
      if (!pass.cancelled && !contexts_.at(pass.plan.context).released && is_calm(pass))
        complain(text + ", but nobody cancelled it");
      return;
    default:
      if (is_calm(pass)) complain(text + ", in peace");
  }
}

bool Model::may_find_freed(const TruePass& pass, PassId id) const {
  for (const PassId other : contexts_.at(pass.plan.context).passes) {
    if (other == id || passes_.at(other).plan.retain_graph) continue;
    const auto& theirs = passes_.at(other).truth.reached;
    if (std::any_of(pass.truth.reached.begin(), pass.truth.reached.end(),
                    [&](FunctionNumber each) { return theirs.contains(each); })) {
      return true;
    }
    if (pass.plan.mode == Mode::Fast || passes_.at(other).plan.mode == Mode::Fast) return true;
  }
  return false;
}

void Model::check_rest() {
  for (const auto& [id, pass] : passes_) {
    if (!pass.result && is_alive(pass.initiator)) {
      complain("GRAD-2: pass " + to_string(id) + " has never ended");
    }
    for (const Party& party : pass.at_work) {
      complain("GRAD-3: " + party.name + " is still at work for pass " + to_string(id));
    }
  }
}

}  // namespace hawser::autograd::simulation
