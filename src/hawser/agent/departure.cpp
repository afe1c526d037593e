#include "hawser/agent/departure.h"

#include <algorithm>
#include <utility>

#include "hawser/base/fault.h"

namespace hawser::agent {
namespace {

constexpr unsigned kPatience = 20;       // unchanged rounds, when the sums cannot agree
constexpr unsigned kLingerTicks = 5;     // the steward stays for those who have not heard it
constexpr unsigned kLookAgainTicks = 5;  // between attempts to reach members that are lost

}  // namespace

// ------------------------------------------------------------------------------- events

Departure::Actions Departure::begin(Members members, const Activity& activity) {
  if (phase_ != Phase::Serving) return {};
  phase_ = Phase::Asked;
  members_ = std::move(members);
  pursue(activity);
  return take_actions();
}

Departure::Actions Departure::receive(const std::string& from, const Message& message,
                                      const Activity& activity) {
  if (lost_.erase(from) > 0) forget_census();
  std::visit([&](const auto& received) { on(from, received, activity); }, message);
  return take_actions();
}

Departure::Actions Departure::reached(const std::string& peer, const Activity& activity) {
  if (lost_.erase(peer) == 0) return {};
  forget_census();
  pursue(activity);
  return take_actions();
}

// Whoever is at the other end now may be another incarnation, which has not asked.
Departure::Actions Departure::disconnected(const std::string& peer, const Activity& activity) {
  arrived_.erase(peer);
  reported_.erase(peer);
  if (announced_to_ == peer) announced_to_.clear();
  if (phase_ == Phase::Dismissing) {
    gone(peer);
  } else if (phase_ == Phase::Asked && is_member(peer)) {
    if (is_steward()) forget_census();
    if (is_steward() || steward() == peer) actions_.push_back(Reach{peer});
    pursue(activity);
  }
  return take_actions();
}

Departure::Actions Departure::given_up(const std::string& peer, const Activity& activity) {
  arrived_.erase(peer);
  if (phase_ == Phase::Dismissing) {
    gone(peer);
  } else if (phase_ == Phase::Asked && is_member(peer)) {
    if (peer == steward() && HAWSER_FAULT(kStayWithSteward)) return {};
    if (lost_.insert(peer).second) forget_census();
    pursue(activity);
  }
  return take_actions();
}

Departure::Actions Departure::tick(const Activity& activity) {
  ++ticks_;
  waits_for_tick_ = false;
  if (phase_ == Phase::Dismissing) {
    for (const auto& peer : still_here_) send(peer, wire::Dismissal{left_behind_});
    if (++ticks_dismissing_ >= kLingerTicks) finish(left_behind_);
  } else if (phase_ == Phase::Asked) {
    reach_absent();
    if (round_) ask_missing();
    announced_to_.clear();  // once more
    pursue(activity);
  }
  return take_actions();
}

// The steward looks for everybody who has not come to it, the others for whoever is or would be
// their steward.
void Departure::reach_absent() {
  const bool look_again = ticks_ % kLookAgainTicks == 0;
  for (const auto& [rank, name] : members_) {
    if (name == self_) continue;
    const bool lost = lost_.contains(name);
    if (lost ? look_again : !arrived_.contains(name)) actions_.push_back(Reach{name});
    if (!lost && !is_steward()) break;
  }
}

// ------------------------------------------------------------------------------- messages

void Departure::on(const std::string& from, const wire::Arrival&, const Activity& activity) {
  const bool dismissed = phase_ == Phase::Dismissing || phase_ == Phase::Finished;
  if (dismissed) {
    const bool left_behind =
        std::find(left_behind_.begin(), left_behind_.end(), from) != left_behind_.end();
    // Those it left behind may have business with each other: they leave by themselves.
    if (!left_behind && is_member(from)) send(from, wire::Dismissal{left_behind_});
    return;
  }
  if (arrived_.insert(from).second) forget_census();
  if (phase_ == Phase::Asked) pursue(activity);
}

// Asked by a steward that this node may not know as such yet. It counts only those who turned to
// it.
void Departure::on(const std::string& from, const wire::Census& census, const Activity& activity) {
  if (phase_ != Phase::Asked || !is_member(from)) return;
  send(from, report_to(from, census.round, activity));
}

void Departure::on(const std::string& from, const wire::CensusReport& report,
                   const Activity& activity) {
  if (phase_ != Phase::Asked || !round_ || report.round != round_->number) return;
  if (!arrived_.contains(from)) return;
  wire::CensusReport comparable = report;
  comparable.round = 0;
  round_->reports.emplace(from, comparable);
  judge_round(activity);
}

void Departure::on(const std::string& from, const wire::Dismissal& dismissal, const Activity&) {
  // A node that has not asked is a new incarnation of one that had.
  if (phase_ == Phase::Asked && is_member(from)) finish(dismissal.lost);
}

// ------------------------------------------------------------------------------- who is where

bool Departure::is_member(const std::string& name) const {
  return std::any_of(members_.begin(), members_.end(),
                     [&](const auto& member) { return member.second == name; });
}

const std::string& Departure::steward() const {
  for (const auto& [rank, name] : members_) {
    if (!lost_.contains(name)) return name;
  }
  return self_;
}

bool Departure::all_arrived() const {
  return std::all_of(members_.begin(), members_.end(), [&](const auto& member) {
    const std::string& name = member.second;
    return name == self_ || arrived_.contains(name) || lost_.contains(name);
  });
}

std::vector<std::string> Departure::waiting_for() const {
  std::vector<std::string> names;
  if (phase_ == Phase::Dismissing) return {still_here_.begin(), still_here_.end()};
  if (phase_ != Phase::Asked) return names;
  if (!is_steward()) return {steward()};
  for (const auto& [rank, name] : members_) {
    if (name == self_ || lost_.contains(name)) continue;
    const bool busy =
        previous_ && previous_->reports.contains(name) && previous_->reports.at(name).busy > 0;
    if (!arrived_.contains(name) || busy) names.push_back(name);
  }
  return names;
}

// ------------------------------------------------------------------------------- the steward

void Departure::pursue(const Activity& activity) {
  if (phase_ != Phase::Asked) return;
  if (!is_steward()) {
    forget_census();
    if (announced_to_ == steward()) return;
    announced_to_ = steward();
    const auto own = std::find_if(members_.begin(), members_.end(),
                                  [&](const auto& member) { return member.second == self_; });
    send(steward(), wire::Arrival{own == members_.end() ? 0 : own->first});
  } else if (all_arrived() && !round_ && !waits_for_tick_) {
    start_round(activity);
  }
}

void Departure::forget_census() {
  round_.reset();
  previous_.reset();
  unchanged_ = 0;
  hurried_ = false;
  waits_for_tick_ = false;
}

void Departure::start_round(const Activity& activity) {
  round_ = Round{next_round_++, {}};
  wire::CensusReport own = report_to(self_, round_->number, activity);
  own.round = 0;
  round_->reports.emplace(self_, own);
  ask_missing();
  judge_round(activity);
}

void Departure::ask_missing() {
  for (const auto& [rank, name] : members_) {
    if (lost_.contains(name) || round_->reports.contains(name)) continue;
    send(name, wire::Census{round_->number});
  }
}

void Departure::judge_round(const Activity& activity) {
  const std::size_t expected =
      static_cast<std::size_t>(std::count_if(members_.begin(), members_.end(), [&](const auto& m) {
        return m.second == self_ || !lost_.contains(m.second);
      }));
  if (round_->reports.size() < expected) return;
  const Round round = *std::exchange(round_, std::nullopt);
  const bool rest = at_rest(round);
  previous_ = round;
  if (rest) return dismiss();
  // A world that has come to rest is let go at once; one that has not is asked once per tick.
  const bool hurry = unchanged_ == 0 && !hurried_;
  hurried_ = hurry;
  waits_for_tick_ = !hurry;
  if (hurry) start_round(activity);
}

bool Departure::at_rest(const Round& round) {
  if (HAWSER_FAULT(kLeaveEarly)) return true;
  std::uint64_t sent = 0, received = 0;
  bool idle = true;
  for (const auto& [name, report] : round.reports) {
    idle = idle && report.busy == 0;
    sent += report.sent;
    received += report.received;
  }
  const bool unchanged = idle && previous_ && previous_->reports == round.reports;
  unchanged_ = unchanged ? unchanged_ + 1 : 0;
  if (HAWSER_FAULT(kTrustOneCount) && idle) return true;
  if (unchanged_ == 0) return false;
  return sent == received || (!lost_.empty() && unchanged_ >= kPatience);
}

// The same answer to the same question, however often it is asked. A node whose connections have
// changed since it last answered says that it is busy: its counts may have gone down and up again.
wire::CensusReport Departure::report_to(const std::string& asker, std::uint64_t round,
                                        const Activity& activity) {
  const auto known = reported_.find(asker);
  if (known != reported_.end() && known->second.report.round == round) return known->second.report;
  wire::CensusReport report{round, activity.busy, activity.sent, activity.received};
  if (known != reported_.end() && known->second.changes != activity.changes) ++report.busy;
  reported_.insert_or_assign(asker, LastReport{report, activity.changes});
  return report;
}

void Departure::dismiss() {
  phase_ = Phase::Dismissing;
  left_behind_.assign(lost_.begin(), lost_.end());
  for (const auto& [rank, name] : members_) {
    if (name == self_ || lost_.contains(name)) continue;
    still_here_.insert(name);
    send(name, wire::Dismissal{left_behind_});
  }
  if (still_here_.empty()) finish(left_behind_);
}

void Departure::gone(const std::string& peer) {
  still_here_.erase(peer);
  if (still_here_.empty()) finish(left_behind_);
}

// ------------------------------------------------------------------------------- actions

void Departure::finish(std::vector<std::string> lost) {
  phase_ = Phase::Finished;
  left_behind_ = lost;
  still_here_.clear();
  actions_.push_back(Finish{std::move(lost)});
}

void Departure::send(const std::string& to, Message message) {
  actions_.push_back(Send{to, std::move(message)});
}

Departure::Actions Departure::take_actions() { return std::exchange(actions_, {}); }

}  // namespace hawser::agent
