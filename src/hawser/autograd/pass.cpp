#include "hawser/autograd/pass.h"

#include <algorithm>

#include "hawser/autograd/fault.h"

namespace hawser::autograd {

Pass::Pass(Desk& desk, PassHeader header, const Membership& context, TimePoint now)
    : desk_(desk),
      header_(std::move(header)),
      context_(&context),
      since_(now),
      deadline_(Deadline::from(now, header_.budget)) {}

PassHeader Pass::header(TimePoint now) const {
  PassHeader header = header_;
  header.budget = deadline_.remaining(now);
  return header;
}

void Pass::call(const Party& to, Message message, std::optional<Exploration> discovery) {
  contacts_.insert(to);
  const Outgoing call = desk_.send(to, std::move(message), header_.pass);
  calls_.emplace(call, Call{to, discovery});
}

Error Pass::broken(const std::string& what) const {
  return Error(ErrorKind::Invalid,
               "backward pass " + to_string(header_.pass) + " on " + desk_.self.name + ": " + what,
               {.node = desk_.self.name});
}

Error Pass::unexpected(MessageId send) const {
  return broken("gradients of send function " + to_string(send) +
                " came, which does not wait for any");
}

void Pass::begin(TimePoint now) {
  if (header_.mode == Mode::Fast) return start(now);
  explore({}, {});
}

bool Pass::cancel(TimePoint now) {
  if (is<Committing>() || is<Aborting>()) return false;
  abort(Error(ErrorKind::Cancelled, "the backward pass was cancelled", {.node = desk_.self.name}),
        now);
  return true;
}

// ------------------------------------------------------------------------------- discovery

void Pass::explore(Discovery discovery, std::vector<MessageId> sends) {
  const Exploration exploration{++explorations_};
  const bool from_roots = !discovery.asked_by;
  discoveries_.emplace(exploration, discovery);
  desk_.act(Explore{header_.pass, header_.context, exploration, from_roots, std::move(sends)});
}

void Pass::on(const Party& from, Incoming call, const Discover& discover, TimePoint now) {
  contacts_.insert(from);
  if (const auto* aborting = std::get_if<Aborting>(&stage_)) {
    return desk_.answer(call, aborting->why);
  }
  std::string wrong;
  if (!is<Exploring>() || header_.mode == Mode::Fast || discover.sends.empty()) {
    wrong = "there is nothing to discover any more";
  }
  for (const MessageId send : discover.sends) {
    if (!wrong.empty()) break;
    if (!context_->sends.contains(send)) {
      wrong = "there is no send function " + to_string(send);
    } else if (!awaited_.insert(send).second) {
      wrong = "send function " + to_string(send) + " is discovered twice";
    }
  }
  if (!wrong.empty()) {
    desk_.answer(call, broken(wrong));
    return abort(broken(wrong), now);
  }
  explore({.asked_by = call}, discover.sends);
}

void Pass::explored(Exploration exploration, const Result<std::vector<MessageId>>& recvs,
                    TimePoint now) {
  const auto at = discoveries_.find(exploration);
  if (at == discoveries_.end()) return;  // aborted since
  if (!recvs.ok()) return abort(recvs.error().about(desk_.self.name, ""), now);
  std::map<Party, std::vector<MessageId>> by_peer;
  for (const MessageId recv : recvs.value()) {
    const auto known = context_->recvs.find(recv);
    if (known == context_->recvs.end()) {
      return abort(broken("there is no recv function " + to_string(recv)), now);
    }
    if (reached_.insert(recv).second) by_peer[known->second].push_back(recv);
  }
  if (HAWSER_FAULT(kForgetBranch) && by_peer.size() > 1) by_peer.erase(by_peer.begin());
  at->second.explored = true;
  for (auto& [peer, sends] : by_peer) {
    std::sort(sends.begin(), sends.end());
    ++at->second.unanswered;
    call(peer, Discover{header(now), std::move(sends)}, exploration);
  }
  start_if_told_enough(now);
  end_if_over(exploration, now);
}

void Pass::end_if_over(Exploration exploration, TimePoint now) {
  const auto at = discoveries_.find(exploration);
  if (at == discoveries_.end()) return;  // aborted since
  const Discovery discovery = at->second;
  if (!discovery.explored || discovery.unanswered > 0) return;
  discoveries_.erase(at);
  if (discovery.asked_by) {
    const bool self_waits = is<Exploring>() && !initiated_here();
    desk_.answer(*discovery.asked_by, Reply{.waits = discovery.waits || self_waits});
  } else {
    nothing_more_to_discover(now);
  }
  complete_if_all_have_run();
}

bool Pass::still_explores() const {
  return std::any_of(discoveries_.begin(), discoveries_.end(),
                     [](const auto& each) { return !each.second.explored; });
}

// Each send function is found at most once, so when all have been there is nothing to wait for.
void Pass::start_if_told_enough(TimePoint now) {
  if (!is<Exploring>() || still_explores()) return;
  const bool all = awaited_.size() == context_->sends.size();
  if (all || HAWSER_FAULT(kStartUntold)) start(now);
}

void Pass::nothing_more_to_discover(TimePoint now) {
  if (std::exchange(discovery_over_, true)) return;
  if (is<Exploring>()) start(now);
  if (is<Aborting>() || HAWSER_FAULT(kNeverProceed)) return;
  for (const Party& waiting : waits_below_) call(waiting, Proceed{header_.pass});
}

void Pass::on(const Party& from, Incoming call, const Proceed&, TimePoint now) {
  contacts_.insert(from);
  if (const auto* aborting = std::get_if<Aborting>(&stage_)) {
    return desk_.answer(call, aborting->why);
  }
  desk_.answer(call, Reply{});
  nothing_more_to_discover(now);
}

// ------------------------------------------------------------------------------- the local part

void Pass::start(TimePoint now) {
  std::vector<std::pair<MessageId, GradientHandle>> held;
  if (auto* exploring = std::get_if<Exploring>(&stage_)) held = std::move(exploring->held);
  if (header_.mode == Mode::Fast) {
    for (const auto& [send, function] : context_->sends) {
      if (!function.call_failed) awaited_.insert(send);
    }
  }
  stage_ = Running{};
  local_ = Local::AtWork;
  desk_.act(StartLocal{.pass = header_.pass,
                       .context = header_.context,
                       .from_roots = initiated_here(),
                       .run = header_.run,
                       .awaited = {awaited_.begin(), awaited_.end()}});
  if (HAWSER_FAULT(kDropHeld)) return;
  for (const auto& [send, gradients] : held) {
    if (!awaited_.contains(send)) return abort(unexpected(send), now);
    deliver(send, gradients);
    if (HAWSER_FAULT(kDeliverAgain)) deliver(send, gradients);
  }
}

void Pass::deliver(MessageId send, GradientHandle gradients) {
  desk_.act(Deliver{header_.pass, send, gradients});
}

// GRAD-1: a gradient is taken once, and only by a function that waits for it. In FAST mode that is
// known from the first, in SMART mode once the local part has been started.
void Pass::on(const Party& from, Incoming call, const Gradients& gradients, TimePoint now) {
  contacts_.insert(from);
  if (const auto* aborting = std::get_if<Aborting>(&stage_)) {
    return desk_.answer(call, aborting->why);
  }
  if (is<Exploring>() && header_.mode == Mode::Fast) start(now);
  const MessageId send = gradients.message;
  const bool may_come = is<Exploring>() ? context_->sends.contains(send) : awaited_.contains(send);
  if (!may_come || !arrived_.insert(send).second) {
    desk_.answer(call, unexpected(send));
    return abort(unexpected(send), now);
  }
  if (!initiated_here() && !std::exchange(has_parent_, true)) {
    owed_ = call;
  } else {
    desk_.answer(call, Reply{});
  }
  if (auto* exploring = std::get_if<Exploring>(&stage_)) {
    exploring->held.emplace_back(send, gradients.gradients);
  } else {
    deliver(send, gradients.gradients);
  }
}

bool Pass::send_gradients(MessageId recv, GradientHandle gradients, TimePoint now) {
  if (!is<Running>()) return false;
  const auto peer = context_->recvs.find(recv);
  const bool found = header_.mode == Mode::Fast || reached_.contains(recv);
  if (peer == context_->recvs.end() || !found) {
    abort(broken("recv function " + to_string(recv) + " was not found, and runs"), now);
    return false;
  }
  if (!fired_.insert(recv).second) {
    abort(broken("recv function " + to_string(recv) + " has run twice"), now);
    return false;
  }
  call(peer->second, Gradients{header(now), recv, gradients});
  return true;
}

void Pass::local_ended(const Result<void>& result, TimePoint now) {
  if (local_ != Local::AtWork) return;
  local_ = Local::Ended;
  if (is<Aborting>()) return end_if_stopped(now);
  if (!result.ok()) return abort(result.error().about(desk_.self.name, ""), now);
  if (arrived_ != awaited_) return abort(broken("it has ended before its gradients came"), now);
  if (header_.mode == Mode::Smart && fired_ != reached_) {
    return abort(broken("a recv function that can be reached has not run"), now);
  }
  complete_if_all_have_run();
}

// ------------------------------------------------------------------------------- the end

void Pass::answered(Outgoing answered_call, const Result<Reply>& reply, TimePoint now) {
  const auto at = calls_.find(answered_call);
  if (at == calls_.end()) return;
  const Call call = std::move(at->second);
  calls_.erase(at);
  if (is<Aborting>()) return end_if_stopped(now);
  if (!reply.ok()) return abort(reply.error().about(call.to.name, ""), now);
  if (reply.value().child) children_.insert(call.to);
  if (call.discovery) {
    Discovery& discovery = discoveries_.at(*call.discovery);
    --discovery.unanswered;
    if (reply.value().waits) {
      discovery.waits = true;
      waits_below_.insert(call.to);
    }
    return end_if_over(*call.discovery, now);
  }
  if (is<Running>()) return complete_if_all_have_run();
  if (is<Committing>()) end_if_committed();
}

// A child answers when it and its children are complete, so the initiator is complete when all are.
// Parents were in the pass before their children: nobody waits for himself.
void Pass::complete_if_all_have_run() {
  if (!is<Running>() || local_ != Local::Ended || !discoveries_.empty()) return;
  const bool alone_is_enough =
      initiated_here() ? HAWSER_FAULT(kFinishEarly) : HAWSER_FAULT(kAnswerEarly);
  if (!calls_.empty() && !alone_is_enough) return;
  if (initiated_here()) return commit();
  stage_ = Complete{};
  if (owed_) desk_.answer(*std::exchange(owed_, std::nullopt), Reply{.child = true});
}

void Pass::commit() {
  stage_ = Committing{};
  if (!HAWSER_FAULT(kForgetCommit)) {
    for (const Party& child : children_) call(child, Commit{header_.pass});
  }
  end_if_committed();
}

void Pass::on(const Party& from, Incoming call, const Commit&, TimePoint now) {
  contacts_.insert(from);
  if (const auto* aborting = std::get_if<Aborting>(&stage_)) {
    return desk_.answer(call, aborting->why);
  }
  if (!is<Complete>()) {
    desk_.answer(call, broken("it is to be committed before it is complete"));
    return abort(broken("it is to be committed before it is complete"), now);
  }
  owed_ = call;
  committed_ = true;
  desk_.act(CommitLocal{header_.pass});
  commit();
}

void Pass::end_if_committed() {
  if (!calls_.empty()) return;
  done_ = true;
  if (initiated_here()) {
    desk_.act(CommitLocal{header_.pass});
    desk_.act(Finished{header_.pass, {}});
  } else {
    desk_.answer(*std::exchange(owed_, std::nullopt), Reply{});
  }
}

// ------------------------------------------------------------------------------- failure

void Pass::on(const Party& from, Incoming call, const Abort& said, TimePoint now) {
  desk_.answer(call, Reply{});
  abort(said.why, now, &from);
}

// Answers to discoveries are given at once: they may wait for each other in a ring. The parent's is
// given when this node and its children have stopped, which is how the initiator knows.
void Pass::abort(Error why, TimePoint now, const Party* told_by) {
  if (is<Aborting>() || done_) return;
  if (HAWSER_FAULT(kLoseCause)) why = Error(ErrorKind::Invalid, "it failed", why.details());
  if (HAWSER_FAULT(kBlameMessenger) && told_by) {
    why = Error(why.kind(), why.message(), {.node = told_by->name});
  }
  stage_ = Aborting{why, now + desk_.options.abort_grace};
  context_ = nullptr;
  if (!committed_ && !HAWSER_FAULT(kForgetStop)) {
    if (HAWSER_FAULT(kCommitAborted)) desk_.act(CommitLocal{header_.pass});
    desk_.act(AbortLocal{header_.pass, why});
  }
  for (const auto& [exploration, discovery] : std::exchange(discoveries_, {})) {
    if (discovery.asked_by) desk_.answer(*discovery.asked_by, why);
  }
  for (const Party& contact : std::set<Party>(contacts_)) {
    const bool knows = told_by && contact == *told_by;
    if (contact.name == desk_.self.name || knows || HAWSER_FAULT(kForgetAbort)) continue;
    call(contact, Abort{header_.pass, why});
  }
  end_if_stopped(now);
}

void Pass::end_if_stopped(TimePoint now) {
  const Aborting& aborting = std::get<Aborting>(stage_);
  const bool stopped = local_ != Local::AtWork && calls_.empty();
  if (done_ || (!stopped && now < aborting.until)) return;
  done_ = true;
  if (owed_) desk_.answer(*std::exchange(owed_, std::nullopt), aborting.why);
  if (initiated_here()) desk_.act(Finished{header_.pass, aborting.why});
}

void Pass::forsake(const Error& why) {
  if (!committed_ && !is<Aborting>()) desk_.act(AbortLocal{header_.pass, why});
  if (initiated_here()) desk_.act(Finished{header_.pass, why});
  done_ = true;
}

std::optional<Error> Pass::error() const {
  const auto* aborting = std::get_if<Aborting>(&stage_);
  return aborting ? std::optional(aborting->why) : std::nullopt;
}

bool Pass::has_spoken_with(std::string_view peer) const {
  return std::any_of(contacts_.begin(), contacts_.end(),
                     [&](const Party& contact) { return contact.name == peer; });
}

bool Pass::has_spoken_with(const Party& up_to) const {
  return std::any_of(contacts_.begin(), contacts_.end(), [&](const Party& contact) {
    return contact.name == up_to.name && contact.incarnation <= up_to.incarnation;
  });
}

// ------------------------------------------------------------------------------- time

// Who is complete waits for the verdict without a deadline of its own: the initiator has one, and
// its word, or the loss of who should bring it, reaches everybody.
Deadline Pass::next_due() const {
  if (const auto* aborting = std::get_if<Aborting>(&stage_)) return Deadline(aborting->until);
  return is<Exploring>() || is<Running>() ? deadline_ : Deadline::never();
}

void Pass::tick(TimePoint now) {
  if (!next_due().passed(now)) return;
  if (is<Aborting>()) return end_if_stopped(now);
  const auto budget = std::chrono::duration_cast<std::chrono::microseconds>(header_.budget);
  abort(Error(ErrorKind::Timeout, describe_missing(), {.node = desk_.self.name, .budget = budget}),
        now);
}

std::string Pass::describe_missing() const {
  std::string text =
      "backward pass " + to_string(header_.pass) + " did not end in time: " + desk_.self.name;
  if (is<Exploring>()) {
    text += " was finding out which gradients to wait for";
  } else if (arrived_.size() < awaited_.size()) {
    text += " waited for the gradients of " + std::to_string(awaited_.size() - arrived_.size()) +
            " of " + std::to_string(awaited_.size()) + " send functions";
    if (header_.mode == Mode::Fast) {
      text += "; FAST mode waits for ever for results that were not used, SMART mode does not";
    }
  } else if (local_ == Local::AtWork) {
    text += " was computing";
  } else {
    text += " waited for " + std::to_string(calls_.size()) + " answers of other nodes";
  }
  return text;
}

PassReport Pass::report(TimePoint now) const {
  static constexpr std::string_view kStages[] = {"exploring", "running", "complete", "committing",
                                                 "aborting"};
  return {.id = header_.pass,
          .context = header_.context,
          .initiator = header_.initiator,
          .stage = kStages[stage_.index()],
          .awaited = awaited_.size(),
          .arrived = arrived_.size(),
          .unanswered = calls_.size(),
          .age = now - since_};
}

}  // namespace hawser::autograd
