#include "sim_autograd/sim_node.h"

#include <algorithm>
#include <utility>

namespace hawser::autograd::simulation {
namespace {

using namespace std::chrono_literals;

}  // namespace

ConductorOptions conductor_options(Duration ask_after) {
  return {.abort_grace = 400ms,
          .first_retry = 20ms,
          .last_retry = 200ms,
          .errand_timeout = 300ms,
          .ask_after = ask_after,
          .asks_in_vain = 3,
          .remember = 5s,
          .max_remembered = 1000};
}

SimNode::SimNode(Surroundings& out, Party self, std::uint16_t rank)
    : out_(out),
      self_(std::move(self)),
      rank_(rank),
      conductor_({self_.name, self_.incarnation, rank}, conductor_options(out.ask_after())) {}

// ------------------------------------------------------------------------------- the world

void SimNode::receive(const Party& from, CallNumber call, Parcel parcel) {
  if (!parcel.message) return serve(from, call, parcel);
  const Incoming incoming{call};
  if (auto* gradients = std::get_if<Gradients>(&*parcel.message)) {
    const GradientHandle handle{++last_handle_};
    gradients->gradients = handle;
    gradients_[handle] = {gradients->pass.pass, std::move(parcel.gradients)};
    came_with_[incoming] = handle;
  }
  conductor_.receive(from, incoming, *parcel.message, now());
  perform();
}

void SimNode::met(const Party& party) {
  conductor_.met(party, now());
  perform();
}

void SimNode::disconnected(const std::string& peer) {
  conductor_.disconnected(peer, now());
  perform();
}

void SimNode::lost(const Party& party) {
  conductor_.lost(party, now());
  perform();
  for (const ContextReport& each : conductor_.contexts(now())) {
    if (each.creator.name != party.name || each.creator.incarnation > party.incarnation) continue;
    out_.model().complain("GRAD-3: " + self_.name + " keeps a context of " + party.name +
                          ", who is lost");
  }
}

// Its functions live on, but nobody can speak of them any more.
void SimNode::rejoin(Incarnation incarnation) {
  const Party old = self_;
  conductor_.rejoined({self_.name, incarnation, rank_}, now());
  perform();
  out_.model().ended(old);
  self_.incarnation = incarnation;
  out_.model().started(self_);
  timer_ = Deadline::never();
  passes_.clear();
  gradients_.clear();
  came_with_.clear();
  contexts_.clear();
  leaves_.clear();
  arm_timer();
}

// ------------------------------------------------------------------------------- actions

void SimNode::perform() {
  for (Action& action : conductor_.take_actions(now())) to_do_.push_back(std::move(action));
  if (std::exchange(performing_, true)) return;  // in order: whoever began goes on
  while (!to_do_.empty()) {
    Action action = std::move(to_do_.front());
    to_do_.pop_front();
    std::visit([&](auto& wanted) { act(wanted); }, action);
  }
  performing_ = false;
  arm_timer();
}

void SimNode::arm_timer() {
  const Deadline due = conductor_.next_due();
  if (due == timer_ || due.is_never()) {
    timer_ = due;
    return;
  }
  timer_ = due;
  out_.later(self_, due.remaining(now()), [this, due] {
    if (timer_ != due) return;  // another was set since
    timer_ = Deadline::never();
    conductor_.tick(now());
    perform();
  });
}

void SimNode::act(Send& action) {
  Parcel parcel{.message = std::move(action.message)};
  if (const auto* gradients = std::get_if<Gradients>(&*parcel.message)) {
    parcel.gradients = std::move(gradients_.at(gradients->gradients).gradients);
    gradients_.erase(gradients->gradients);
  }
  out_.call(self_, action.to, std::move(parcel), action.budget,
            [this, call = action.call](const Result<Parcel>& reply, const Party&, bool) {
              conductor_.answered(
                  call,
                  reply.ok() ? Result<Reply>(reply.value().reply) : Result<Reply>(reply.error()),
                  now());
              perform();
            });
}

void SimNode::act(Answer& action) {
  const auto handle = came_with_.find(action.call);
  if (handle != came_with_.end()) {
    if (!action.reply.ok()) gradients_.erase(handle->second);
    came_with_.erase(handle);
  }
  const CallNumber call = static_cast<CallNumber>(action.call);
  if (action.reply.ok()) {
    out_.answer(call, Parcel{.reply = action.reply.value()});
  } else {
    out_.answer(call, action.reply.error());
  }
}

void SimNode::act(Explore& action) {
  out_.later(self_, out_.whims().between(10us, 2ms), [this, action] {
    const auto at = contexts_.find(action.context);
    const auto pass = passes_.find(action.pass);
    if (at == contexts_.end() || (action.from_roots && pass == passes_.end())) return;  // aborted
    const LocalContext* context = &at->second;
    std::vector<FunctionNumber> from;
    if (action.from_roots) {
      for (const Value& root : pass->second.roots) from.push_back(root.function);
    }
    for (const MessageId send : action.sends) from.push_back(context->sends.at(send));
    std::vector<MessageId> recvs;
    for (const FunctionNumber recv : reachable_recvs(out_.model().graph(), from)) {
      recvs.push_back(context->recv_ids.at(recv));
    }
    conductor_.explored(action.pass, action.exploration, recvs, now());
    perform();
  });
}

void SimNode::act(StartLocal& action) {
  LocalPass& pass = passes_[action.pass];
  pass.context = action.context;
  pass.retain_graph = action.run.retain_graph;
  std::map<MessageId, FunctionNumber> awaited;
  std::set<FunctionNumber> functions;
  for (const MessageId send : action.awaited) {
    awaited[send] = contexts_.at(action.context).sends.at(send);
    functions.insert(awaited[send]);
  }
  if (action.from_roots == pass.roots.empty()) {
    out_.model().complain(self_.name + " starts pass " + to_string(action.pass) +
                          " with another's roots");
  }
  out_.model().local_started(action.pass, self_, functions);
  if (action.from_roots) out_.model().local_computes(action.pass, self_);
  pass.engine.emplace(out_.model().graph(), pass.roots, std::move(awaited));
  step_later(action.pass);
}

void SimNode::act(Deliver& action) {
  const auto pass = passes_.find(action.pass);
  const auto handle = gradients_.find(action.gradients);
  const bool fits = pass != passes_.end() && pass->second.engine && handle != gradients_.end() &&
                    pass->second.engine->is_awaited(action.send);
  if (!fits) {
    return out_.model().complain("GRAD-1: gradients are delivered on " + self_.name +
                                 " that nobody waits for");
  }
  out_.model().local_computes(action.pass, self_);
  pass->second.engine->deliver(action.send, std::move(handle->second.gradients));
  gradients_.erase(handle);
  step_later(action.pass);
}

void SimNode::act(AbortLocal& action) {
  std::erase_if(gradients_, [&](const auto& each) { return each.second.pass == action.pass; });
  const auto at = passes_.find(action.pass);
  if (at == passes_.end()) return;
  const bool at_work = at->second.engine && !at->second.ended;
  passes_.erase(at);
  if (!at_work) return;
  // The function that is running comes to its end first.
  out_.later(self_, out_.whims().between(0us, 20ms), [this, id = action.pass] {
    out_.model().local_stopped(id, self_);
    conductor_.local_ended(id, Error(ErrorKind::Cancelled, "stopped"), now());
    perform();
  });
}

void SimNode::act(CommitLocal& action) {
  out_.model().committed(action.pass, self_);
  const auto at = passes_.find(action.pass);
  if (at == passes_.end()) return;
  auto& sums = contexts_.at(at->second.context).gradients;
  for (const auto& [leaf, gradient] : at->second.engine->collected()) sums[leaf] += gradient;
  passes_.erase(at);
}

void SimNode::act(Finished& action) {
  out_.world().note(self_.name, "ends pass", to_string(action.pass),
                    action.result.ok() ? "well" : action.result.error().what());
  out_.model().finished(action.pass, self_, action.result);
  if (!action.result.ok()) out_.check_that_it_goes(action.pass);
}

void SimNode::act(DropContext& action) {
  out_.world().note(self_.name, "leaves context", to_string(action.context));
  out_.model().dropped(action.context, self_);
  if (contexts_.erase(action.context) == 0) {
    out_.model().complain(self_.name + " drops a context twice");
  }
}

// ------------------------------------------------------------------------------- the engine

void SimNode::step_later(PassId id) {
  LocalPass& pass = passes_.at(id);
  if (std::exchange(pass.stepping, true)) return;
  out_.later(self_, out_.whims().between(5us, 1ms), [this, id] {
    const auto at = passes_.find(id);
    if (at == passes_.end()) return;
    at->second.stepping = false;
    step(id);
    perform();
  });
}

void SimNode::step(PassId id) {
  LocalPass& pass = passes_.at(id);
  if (pass.ended) return;
  LocalEngine& engine = *pass.engine;
  if (engine.can_step()) {
    const std::size_t which = out_.whims().below(engine.ready());
    const FunctionNumber function = engine.peek(which);
    Model& model = out_.model();
    if (model.raises(id, function)) {
      return end_local(id, Error(ErrorKind::Remote, "function " + std::to_string(function)));
    }
    if (model.graph().at(function).kind == Function::Kind::Sum) {
      if (model.is_freed(function)) return end_local(id, Error(ErrorKind::Remote, "freed"));
      if (!pass.retain_graph) model.freed(function);
    }
    if (const auto out = engine.step(which)) {
      const GradientHandle handle{++last_handle_};
      gradients_[handle] = {id, out->gradients};
      const MessageId recv = contexts_.at(pass.context).recv_ids.at(out->recv);
      if (!conductor_.send_gradients(id, recv, handle, now())) gradients_.erase(handle);
    }
  }
  if (engine.ended()) return end_local(id, {});
  if (engine.can_step()) step_later(id);
}

void SimNode::end_local(PassId id, Result<void> result) {
  passes_.at(id).ended = true;
  out_.model().local_stopped(id, self_);
  conductor_.local_ended(id, result, now());
}

// ------------------------------------------------------------------------------- checks

void SimNode::check_gradients(ContextId context) {
  const auto at = contexts_.find(context);
  if (at != contexts_.end()) out_.model().check_gradients(context, self_, at->second.gradients);
}

void SimNode::check_is_gone(PassId pass) {
  for (const PassReport& each : conductor_.passes(now())) {
    if (each.id != pass) continue;
    out_.model().complain("GRAD-3: pass " + to_string(pass) + " has failed, and is still " +
                          std::string(each.stage) + " on " + self_.name);
  }
}

void SimNode::check_empty() {
  if (conductor_.idle() && contexts_.empty() && passes_.empty() && gradients_.empty() &&
      came_with_.empty()) {
    return;
  }
  std::string text = "GRAD-3: " + self_.name +
                     " is not empty: " + std::to_string(contexts_.size()) + " contexts, " +
                     std::to_string(passes_.size()) + " passes, " +
                     std::to_string(gradients_.size()) + " gradients, " +
                     std::to_string(came_with_.size()) + " calls owed;";
  for (const auto& each : conductor_.contexts(now())) {
    text += " context " + to_string(each.id) + " of " + each.creator.name;
  }
  for (const auto& each : conductor_.passes(now())) {
    text += " pass " + to_string(each.id) + " " + std::string(each.stage) + " with " +
            std::to_string(each.unanswered) + " calls";
  }
  out_.model().complain(text);
}

}  // namespace hawser::autograd::simulation
