#include <algorithm>

#include "sim/stories.h"

namespace hawser::simulation {
namespace {

using namespace std::chrono_literals;

// How long after peace the last node may leave: a silence is noticed, attempts to connect run out
// one after another for each steward that is gone, and sums that cannot agree are waited for.
constexpr Duration kLastToLeave = 40s;
// How long a steward may take for alive what is not, or has come back as another.
constexpr Duration kBlindness = 5s;

class LeavingStory final : public Story {
 public:
  LeavingStory(std::uint64_t seed, StoryOptions options)
      : Story(seed, options), loose_(dice_.per_mille(300)) {}

  Outcome tell() {
    for (std::size_t rank = 0; rank < stage_.names.size(); ++rank) {
      const std::string name = stage_.names[rank];
      members_.emplace(static_cast<std::uint32_t>(rank), name);
      const Duration latest = dice_.per_mille(100) ? Duration(4s) : Duration(200ms);
      stage_.world.after(dice_.between(0ms, latest), [this, name] { start(name); });
      stage_.world.after(dice_.between(300ms, 3s), [this, name] { ask(name); });
    }
    loosen_messages();
    stage_.world.after(50ms, [this] { next_call(); });
    run_for(300ms);
    start_trouble();
    lie_in_wait({wire::Kind::Arrival, wire::Kind::Census, wire::Kind::CensusReport,
                 wire::Kind::Dismissal, wire::Kind::Dismissal, wire::Kind::Goodbye,
                 wire::Kind::Hello, wire::Kind::Challenge, wire::Kind::Proof, wire::Kind::Welcome});
    run_for(3s + dice_.between(0s, 2s));
    stop_trouble();
    loosen_messages();
    calling_ = false;
    run_for(3s);  // those that were to be started again are there now
    for (const auto& name : stage_.names) ask(name);
    const TimePoint end_by = stage_.world.now() + kLastToLeave;
    while (anybody_running() && stage_.world.now() < end_by && good()) run_for(100ms);
    for (const auto& [name, actor] : actors_) {
      if (!actor.node || !good()) continue;
      std::string waits;
      for (const auto& each : actor.node->departure().waiting_for()) waits += " " + each;
      stage_.model.complain(name + " cannot leave (LEAVE-3); it waits for" + waits);
    }
    return outcome();
  }

 private:
  // Everything but calls, whose counts tell whether the world is at rest.
  void loosen_messages() {
    if (!loose_) return;
    loosen({wire::Kind::Arrival, wire::Kind::Census, wire::Kind::CensusReport,
            wire::Kind::Dismissal, wire::Kind::Goodbye});
  }

  bool good() const { return stage_.model.complaints().empty(); }
  bool anybody_running() const {
    return std::any_of(actors_.begin(), actors_.end(),
                       [](const auto& actor) { return actor.second.node != nullptr; });
  }

  // A node that is over leaves for good; whoever comes back after trouble has to ask again.
  void ask(const std::string& name) {
    if (!running(name) || !node(name).joined() || asked(name) || !stage_.model.is_up(name)) return;
    if (node(name).process().state() != SimProcess::State::Running) {
      stage_.world.after(100ms, [this, name] { ask(name); });
      return;
    }
    stage_.world.note("asks", name);
    const int life = actors_.at(name).lives;
    asked_[name] = life;
    node(name).departure().begin(members_, [this, name, life](std::vector<std::string> lost) {
      finished(name, life, lost);
    });
  }

  bool asked(const std::string& name) const {
    const auto found = asked_.find(name);
    return found != asked_.end() && found->second == actors_.at(name).lives;
  }

  void restarted(const std::string& name) override {
    stage_.world.after(dice_.between(100ms, 2s), [this, name] { ask(name); });
  }

  void finished(const std::string& name, int life, const std::vector<std::string>& lost) {
    stage_.world.note("finished", name, lost.size());
    if (finished_[name] == life) stage_.model.complain(name + " finished twice");
    finished_[name] = life;
    check_all_asked(name, lost);
    check_no_calls(name, lost);
    stage_.world.after(dice_.between(0ms, 10ms), [this, name, life] {
      if (running(name) && actors_.at(name).lives == life) leave(name);
    });
  }

  static bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  void check_all_asked(const std::string& name, const std::vector<std::string>& lost) {
    for (const auto& [rank, member] : members_) {
      if (member == name || !stage_.model.is_up(member)) continue;
      if (contains(lost, member)) {
        if (!touched_by_trouble(name, member)) {
          stage_.model.complain(name + " left " + member + " behind, which was never in trouble");
        }
      } else if (!asked(member) && !new_here(member)) {
        stage_.model.complain(name + " leaves and " + member + " has not asked (LEAVE-1)");
      }
    }
  }

  // Whether somebody could have taken `member` for lost: the steward, whom we do not know.
  bool touched_by_trouble(const std::string& name, const std::string& member) const {
    return std::any_of(stage_.names.begin(), stage_.names.end(),
                       [&](const std::string& other) {
                         return other != member &&
                                stage_.model.recently_disturbed(member, other, stage_.world.now());
                       }) ||
           stage_.model.recently_disturbed(member, name, stage_.world.now());
  }

  // A new incarnation that those who are leaving may not have heard of.
  bool new_here(const std::string& name) const {
    return actors_.at(name).lives > 1 &&
           stage_.world.now() - stage_.model.up_since(name) < kBlindness;
  }

  // Calls whose whole chain is made by members that are still counted.
  bool counts(const Model::Call& call, const std::vector<std::string>& lost) const {
    if (contains(lost, call.from) || contains(lost, call.to) || call.orphaned) return false;
    if (!stage_.model.is_up(call.from) || !stage_.model.is_up(call.to)) return false;
    if (new_here(call.from) || new_here(call.to)) return false;
    return call.parent == 0 || counts(stage_.model.call(call.parent), lost);
  }

  void check_no_calls(const std::string& name, const std::vector<std::string>& lost) {
    for (const auto& [number, call] : stage_.model.calls()) {
      if (!counts(call, lost)) continue;
      const bool flies = call.one_way && call.executions == 0 &&
                         !stage_.model.recently_disturbed(call.from, call.to, call.started);
      if (!call.done || flies) complain_about(name, number);
    }
    for (const auto& [id, execution] : stage_.model.executions()) {
      const auto& call = stage_.model.call(execution.call);
      if (counts(call, lost)) complain_about(name, execution.call);
    }
  }

  void complain_about(const std::string& name, CallNumber number) {
    const auto& call = stage_.model.call(number);
    stage_.model.complain(name + " leaves while call " + std::to_string(number) + " from " +
                          call.from + " to " + call.to + " is running (LEAVE-2)");
  }

  void next_call() {
    if (!calling_) return;
    stage_.world.after(dice_.between(1ms, 60ms), [this] { next_call(); });
    auto names = running_names();
    std::erase_if(names, [this](const std::string& name) {
      return asked(name) || !stage_.model.is_up(name) ||
             node(name).process().state() != SimProcess::State::Running;
    });
    if (names.empty()) return;
    static const std::vector<Function> kFunctions = {
        Function::Echo, Function::Slow, Function::Nested, Function::Relay, Function::Relay};
    const Function function = dice_.one_of(kFunctions);
    const Deadline deadline(stage_.world.now() + dice_.between(1ms, 2s));
    const bool one_way = function == Function::Relay;
    node(dice_.one_of(names))
        .call(dice_.one_of(stage_.names), function, one_way ? Deadline::never() : deadline, one_way,
              0);
  }

  const bool loose_;
  bool calling_ = true;
  agent::Departure::Members members_;
  std::map<std::string, int> asked_;     // in which life
  std::map<std::string, int> finished_;  // in which life
};

}  // namespace

Outcome tell_leaving(std::uint64_t seed, StoryOptions options) {
  return LeavingStory(seed, options).tell();
}

}  // namespace hawser::simulation
