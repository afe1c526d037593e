#include <algorithm>
#include <utility>

#include "sim_autograd/sim_node.h"

// What the programs on a simulated node do: forward passes over several nodes, and the backward
// passes that follow.
namespace hawser::autograd::simulation {
namespace {

using namespace std::chrono_literals;

constexpr Duration kForwardBudget = 3s;

}  // namespace

void SimNode::run_a_context() {
  auto& whims = out_.whims();
  const ContextId context = conductor_.create_context(now());
  out_.world().note(self_.name, "enters context", to_string(context));
  out_.model().created(context, self_);
  contexts_[context];
  auto frame = std::make_shared<Frame>();
  frame->context = context;
  frame->order = {.depth = 3, .all_used = whims.per_mille(400)};
  frame->steps = 3 + static_cast<int>(whims.below(8));
  frame->finish = [this](const FramePtr& finished) {
    begin_passes(finished, 1 + static_cast<int>(out_.whims().below(3)));
  };
  go_on(frame);
}

// ------------------------------------------------------------------------------- forward

void SimNode::go_on(const FramePtr& frame) {
  if (!contexts_.contains(frame->context)) frame->steps = 0;  // released meanwhile
  if (frame->steps == 0) {
    frame->in_a_hurry = !frame->order.all_used && out_.whims().per_mille(300);
    return finish_if_ready(frame);
  }
  --frame->steps;
  if (frame->order.depth > 0 && out_.whims().per_mille(400)) {
    call_somebody(frame);
  } else {
    make_value(*frame);
  }
  out_.later(self_, out_.whims().between(10us, 2ms), [this, frame] { go_on(frame); });
}

void SimNode::finish_if_ready(const FramePtr& frame) {
  if (frame->steps > 0 || !frame->finish) return;
  if (frame->unanswered > 0 && !frame->in_a_hurry) return;
  auto finish = std::exchange(frame->finish, nullptr);
  finish(frame);
}

void SimNode::make_value(Frame& frame) {
  auto& whims = out_.whims();
  if (!frame.values.empty() && whims.per_mille(600)) {
    frame.values.push_back(sum_of(frame, 1 + whims.below(3)));
    if (whims.per_mille(200)) contexts_.at(frame.context).put_aside.push_back(frame.values.back());
    return;
  }
  // The parameters of a node are used in many contexts.
  if (leaves_.size() < 3) leaves_.push_back(out_.model().graph().leaf(self_));
  frame.values.push_back({whims.one_of(leaves_), 0});
}

// The same value may be a term twice.
Value SimNode::sum_of(Frame& frame, std::size_t terms) {
  std::vector<Function::Input> inputs;
  for (std::size_t i = 0; i < terms; ++i) {
    inputs.push_back({out_.whims().one_of(frame.values), 1 + out_.whims().below(9)});
  }
  return {out_.model().graph().sum(self_, frame.context, std::move(inputs)), 0};
}

Value SimNode::sum_of_all(Frame& frame) {
  if (frame.values.empty()) make_value(frame);
  std::vector<Function::Input> inputs;
  for (const Value& value : frame.values) inputs.push_back({value, 1 + out_.whims().below(9)});
  return {out_.model().graph().sum(self_, frame.context, std::move(inputs)), 0};
}

Parcel SimNode::pack(ContextId context, const Party& to, const std::vector<Value>& values) {
  Parcel parcel;
  parcel.note = conductor_.record_send(context, to, !values.empty());
  if (!parcel.note || values.empty()) return parcel;
  parcel.send_function = out_.model().graph().send(self_, context, values);
  contexts_.at(context).sends[parcel.note->message] = parcel.send_function;
  return parcel;
}

// Nothing: the context is over.
std::optional<std::vector<Value>> SimNode::take(const Parcel& parcel, const Party& from) {
  if (!parcel.note) return std::nullopt;
  const ContextId context = parcel.note->context;
  const bool joined = conductor_.record_recv(*parcel.note, from, parcel.send_function != 0, now());
  perform();
  if (!joined) {
    out_.model().refused();
    return std::nullopt;
  }
  if (!contexts_.contains(context)) out_.model().joined(context, self_);
  LocalContext& local = contexts_[context];
  std::vector<Value> values;
  if (parcel.send_function == 0) return values;
  Graph& graph = out_.model().graph();
  const FunctionNumber recv = graph.recv(self_, context, parcel.send_function);
  local.recvs[parcel.note->message] = recv;
  local.recv_ids[recv] = parcel.note->message;
  for (std::size_t i = 0; i < graph.at(recv).slots; ++i) values.push_back({recv, i});
  return values;
}

void SimNode::call_somebody(const FramePtr& frame) {
  auto& whims = out_.whims();
  const ContextId context = frame->context;
  std::string to = whims.one_of(out_.others(self_.name));
  if (whims.per_mille(100)) to = self_.name;
  std::vector<Value> arguments;
  for (std::uint64_t i = whims.below(3); i > 0 && !frame->values.empty(); --i) {
    arguments.push_back(whims.one_of(frame->values));
  }
  Parcel parcel = pack(context, {to, {}}, arguments);
  parcel.order = {.depth = frame->order.depth - 1,
                  .all_used = frame->order.all_used,
                  .fetch = !frame->order.all_used && whims.per_mille(200)};
  const MessageId message = parcel.note->message;
  ++frame->unanswered;
  out_.call(
      self_, {to, {}}, std::move(parcel), kForwardBudget,
      [this, frame, context, message](const Result<Parcel>& reply, const Party& from, bool left) {
        --frame->unanswered;
        auto values = reply.ok() ? take(reply.value(), from) : std::nullopt;
        if (!reply.ok()) conductor_.send_failed(context, message, left);
        if (!left && contexts_.contains(context)) contexts_[context].sends.erase(message);
        if (!values) out_.model().call_failed(context);
        if (values) {
          frame->values.insert(frame->values.end(), values->begin(), values->end());
        }
        finish_if_ready(frame);
      });
}

void SimNode::serve(const Party& from, CallNumber call, const Parcel& parcel) {
  const auto values = take(parcel, from);
  if (!values) return out_.answer(call, Parcel{});
  auto& whims = out_.whims();
  auto frame = std::make_shared<Frame>();
  frame->context = parcel.note->context;
  frame->order = parcel.order;
  frame->values = *values;
  frame->steps = static_cast<int>(whims.below(5));
  if (parcel.order.fetch) {
    const auto& put_aside = contexts_.at(frame->context).put_aside;
    if (!put_aside.empty()) frame->values.push_back(whims.one_of(put_aside));
    frame->steps = 0;
  }
  frame->finish = [this, from, call](const FramePtr& done) {
    auto& whims = out_.whims();
    if (!contexts_.contains(done->context)) return out_.answer(call, Parcel{});
    std::vector<Value> results;
    if (done->order.all_used) {
      results.push_back(sum_of_all(*done));
    } else {
      for (std::uint64_t i = whims.below(3); i > 0 && !done->values.empty(); --i) {
        results.push_back(whims.one_of(done->values));
      }
      // Anybody who is in a context may begin a pass.
      if (!done->values.empty() && whims.per_mille(60)) begin_pass(*done, false);
    }
    out_.answer(call, pack(done->context, from, results));
  };
  go_on(frame);
}

// ------------------------------------------------------------------------------- backward

// One after the other, and sometimes beside each other.
void SimNode::begin_passes(const FramePtr& frame, int left) {
  if (!contexts_.contains(frame->context)) return;
  if (left == 0) {
    // Some stay in their contexts for long.
    const Duration pause = out_.whims().per_mille(250) ? 3s : 0s;
    return out_.later(self_, pause,
                      [this, context = frame->context] { release_when_quiet(context, 2000); });
  }
  if (frame->order.all_used) frame->values = {sum_of_all(*frame)};
  begin_pass(*frame, left == 1);
  out_.later(self_, out_.whims().between(0ms, 40ms),
             [this, frame, left] { begin_passes(frame, left - 1); });
}

void SimNode::begin_pass(Frame& frame, bool last) {
  auto& whims = out_.whims();
  if (!conductor_.is_in(frame.context)) return;  // released in this moment
  if (frame.values.empty()) make_value(frame);
  PassPlan plan{.context = frame.context};
  plan.all_used = frame.order.all_used && !out_.model().has_failed_calls(frame.context);
  plan.mode = whims.per_mille(frame.order.all_used ? 500 : 100) ? Mode::Fast : Mode::Smart;
  plan.retain_graph = !last || whims.per_mille(300);
  plan.roots = {frame.values.back()};
  for (std::uint64_t i = whims.below(3); i > 0; --i)
    plan.roots.push_back(whims.one_of(frame.values));
  plan.budget = whims.between(5s, 8s);
  if (plan.mode == Mode::Smart && whims.per_mille(300)) plan.budget = std::nullopt;
  if (plan.mode == Mode::Fast && !plan.all_used) plan.budget = 600ms;
  if (whims.per_mille(80)) plan.budget = whims.between(1ms, 50ms);
  if (whims.per_mille(120)) {
    const auto reached = out_.model().graph().backward(plan.roots).reached;
    plan.fails_at = whims.one_of(std::vector<FunctionNumber>(reached.begin(), reached.end()));
  }
  const Deadline deadline = plan.budget ? Deadline::from(now(), *plan.budget) : Deadline::never();
  const auto id = conductor_.backward(plan.context, plan.mode, {.retain_graph = plan.retain_graph},
                                      deadline, now());
  if (!id) return out_.model().complain(self_.name + " cannot begin a pass: " + id.error().what());
  passes_[id.value()].context = plan.context;
  passes_[id.value()].roots = plan.roots;
  out_.world().note(self_.name, "begins pass", to_string(id.value()),
                    plan.mode == Mode::Fast ? "FAST" : "SMART");
  out_.model().begun(id.value(), self_, plan);
  perform();
  if (!whims.per_mille(60)) return;
  out_.later(self_, whims.between(0ms, 20ms), [this, pass = id.value()] {
    if (conductor_.cancel(pass, now())) out_.model().cancelled(pass);
    perform();
  });
}

void SimNode::release_when_quiet(ContextId context, int patience) {
  if (!contexts_.contains(context)) return;
  const bool impatient = out_.whims().per_mille(1);
  const bool quiet = out_.model().is_quiet(context);
  if (!quiet && !impatient && patience > 0) {
    out_.later(self_, 10ms,
               [this, context, patience] { release_when_quiet(context, patience - 1); });
    return;
  }
  if (quiet) out_.check_gradients(context);
  out_.model().released(context);
  conductor_.release(context, now());
  perform();
}

}  // namespace hawser::autograd::simulation
