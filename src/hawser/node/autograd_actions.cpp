// What the conductor wants done (ACTION-1).
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include "hawser/base/log.h"
#include "hawser/engine/wire_form.h"
#include "hawser/node/autograd.h"

namespace hawser {
namespace {

using namespace autograd;
using engine::LocalPass;
using engine::Tensors;

// Sparse sums come last: a dense tensor can take up a sparse one, not the other way round.
at::Tensor sum(const at::Tensor& a, const at::Tensor& b) {
  return a.is_sparse() && !b.is_sparse() ? at::add(b, a) : at::add(a, b);
}

}  // namespace

void Autograd::work() {
  for (;;) {
    std::deque<Action> batch;
    {
      auto state = state_.lock();
      batch.swap(state->to_do);
      if (batch.empty()) {
        state->working = false;
        return;
      }
    }
    for (Action& action : batch) {
      try {
        std::visit([&](auto& each) { perform(std::move(each)); }, action);
      } catch (...) {
        failed(action, raised_here(std::current_exception()));
      }
    }
  }
}

// Nobody waits for the others: what has not been answered is, when it is dropped.
void Autograd::failed(const Action& action, const Error& error) {
  log::Line(log::Level::Warning, "node") << "distributed autograd: " << error.what();
  if (const auto* send = std::get_if<Send>(&action)) {
    tell([&](State& state, TimePoint at) { state.conductor.answered(send->call, error, at); });
  } else if (const auto* explore = std::get_if<Explore>(&action)) {
    tell([&](State& state, TimePoint at) {
      state.conductor.explored(explore->pass, explore->exploration, error, at);
    });
  } else if (const auto* start = std::get_if<StartLocal>(&action)) {
    tell([&](State& state, TimePoint at) { state.conductor.local_ended(start->pass, error, at); });
  } else if (const auto* deliver = std::get_if<Deliver>(&action)) {
    if (const auto pass = find_pass(deliver->pass)) pass->abort(error.message());
  } else if (const auto* commit = std::get_if<CommitLocal>(&action)) {
    state_.lock()->not_committed.emplace(commit->pass, error);
  }
}

Tensors Autograd::take_gradients(GradientHandle handle) {
  auto state = state_.lock();
  auto taken = state->gradients.extract(handle);
  return taken.empty() ? Tensors{} : std::move(taken.mapped());
}

std::shared_ptr<LocalPass> Autograd::find_pass(PassId pass) {
  auto state = state_.lock();
  const auto found = state->passes.find(pass);
  return found == state->passes.end() ? nullptr : found->second.local;
}

std::shared_ptr<LocalPass> Autograd::take_pass(PassId pass) {
  auto taken = state_.lock()->passes.extract(pass);
  return taken.empty() ? nullptr : std::move(taken.mapped().local);
}

std::shared_ptr<LocalPass> Autograd::find_or_add_pass(PassId pass, ContextId context) {
  if (auto known = find_pass(pass)) return known;
  Part added{std::make_shared<LocalPass>(pass, context, weak_from_this()), expectation()};
  auto state = state_.lock();
  return state->passes.try_emplace(pass, std::move(added)).first->second.local;
}

std::vector<c10::intrusive_ptr<engine::SendFunction>> Autograd::find_sends(
    ContextId context, const std::vector<MessageId>& messages) {
  std::vector<c10::intrusive_ptr<engine::SendFunction>> found;
  found.reserve(messages.size());
  auto state = state_.lock();
  const auto graph = state->graphs.find(context);
  if (graph == state->graphs.end()) return found;
  for (const MessageId message : messages) {
    const auto send = graph->second.sends.find(message);
    if (send != graph->second.sends.end()) found.push_back(send->second);
  }
  return found;
}

void Autograd::perform(Send&& action) {
  auto* gradients = std::get_if<autograd::Gradients>(&action.message);
  wire::Call message;
  message.target = wire::TargetKind::Autograd;
  message.function = engine::name_of(action.message);
  const PassHeader* const header = header_of(action.message);
  const auto record = header ? records_.find(autograd::number(header->pass)) : nullptr;
  const std::int64_t called_ns = record ? trace::wall_ns() : 0;
  try {
    message.payload = engine::write_message(
        action.message, gradients ? take_gradients(gradients->gradients) : Tensors{});
  } catch (const Error& error) {  // a gradient that cannot be sent
    tell([&](State& state, TimePoint at) { state.conductor.answered(action.call, error, at); });
    return;
  }
  std::shared_ptr<trace::CallRecord> sending;
  if (record && gradients) {
    sending = record->send_gradients(action.to.name, called_ns, message.payload.total_bytes());
    message.notes.trace = sending->note();
  } else if (record) {
    message.notes.trace = record->note();
  }
  const TimePoint now = out_.clock.now();
  out_.agent.request(
      {.to = action.to.name,
       .message = std::move(message),
       .started = now,
       .deadline = Deadline::from(now, action.budget),
       .budget = action.budget,
       .only_to = action.to.incarnation},
      [weak = weak_from_this(), call = action.call,
       sending = std::move(sending)](agent::Answer&& answer) {
        const auto self = weak.lock();
        if (!self) return;
        if (sending) sending->end(std::move(answer.notes.report), *self->out_.peer_clocks);
        const auto reply = [&]() -> Result<Reply> {
          if (answer.error) return *answer.error;
          try {
            return engine::read_reply(answer.payload);
          } catch (const Error& error) {
            return error;
          }
        }();
        self->tell([&](State& state, TimePoint at) { state.conductor.answered(call, reply, at); });
      });
}

void Autograd::perform(Answer&& action) {
  Arrived arrived;
  Tensors unwanted;
  {
    auto state = state_.lock();
    auto found = state->arrived.extract(action.call);
    if (found.empty()) return;
    arrived = std::move(found.mapped());
    if (arrived.gradients && !action.reply.ok()) {
      auto dropped = state->gradients.extract(*arrived.gradients);
      if (!dropped.empty()) unwanted = std::move(dropped.mapped());
    }
  }
  if (arrived.commits) {
    if (const auto error = take_commit_error(*arrived.commits)) action.reply = *error;
  }
  std::optional<wire::TraceReport> report;
  if (arrived.service) {
    report = arrived.service->finish(!action.reply.ok() || action.reply.value().child);
    // A message that came too late for its pass has not made this node take part in it.
    if (!action.reply.ok() && !find_pass(PassId{arrived.service->pass()})) {
      records_.end(arrived.service->pass(), /*begun_here=*/false);
    }
  }
  if (action.reply.ok()) {
    wire::Notes notes;
    notes.report = std::move(report);
    arrived.call->reply(engine::write_reply(action.reply.value()), std::move(notes));
  } else {
    arrived.call->fail(action.reply.error(), {}, std::move(report));
  }
}

void Autograd::perform(Explore&& action) {
  const auto pass = find_or_add_pass(action.pass, action.context);
  std::vector<MessageId> recvs =
      action.from_roots ? pass->explore_roots() : std::vector<MessageId>();
  for (const auto& send : find_sends(action.context, action.sends)) {
    const auto more = pass->explore(send);
    recvs.insert(recvs.end(), more.begin(), more.end());
  }
  tell([&](State& state, TimePoint now) {
    state.conductor.explored(action.pass, action.exploration, recvs, now);
  });
}

void Autograd::perform(StartLocal&& action) {
  const auto pass = find_or_add_pass(action.pass, action.context);
  // In SMART mode all of this has been walked already.
  if (action.from_roots) pass->explore_roots();
  const auto functions = find_sends(action.context, action.awaited);
  if (functions.size() != action.awaited.size()) {
    // The context is being dropped; the pass is aborted with it.
    const Error over(ErrorKind::Cancelled, "the context is over", {.node = self_});
    tell([&](State& state, TimePoint now) { state.conductor.local_ended(action.pass, over, now); });
    return;
  }
  std::unordered_map<MessageId, c10::intrusive_ptr<engine::SendFunction>> awaited;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    pass->explore(functions[i]);
    awaited.emplace(action.awaited[i], functions[i]);
  }
  const auto record = records_.find(autograd::number(action.pass));
  const trace::StartingPart recorded(record.get());
  pass->start(action.from_roots, action.run, std::move(awaited));
}

void Autograd::perform(Deliver&& action) {
  Tensors gradients = take_gradients(action.gradients);
  if (const auto pass = find_pass(action.pass)) pass->deliver(action.send, std::move(gradients));
}

void Autograd::perform(AbortLocal&& action) {
  records_.end(autograd::number(action.pass), /*begun_here=*/false);
  auto pass = take_pass(action.pass);
  if (!pass) return;
  pass->abort(action.why.message());
  destroy(std::move(pass));
}

void Autograd::perform(CommitLocal&& action) {
  records_.end(autograd::number(action.pass), /*begun_here=*/false);
  auto pass = take_pass(action.pass);
  if (!pass) return;
  commit(*pass);
  destroy(std::move(pass));
}

void Autograd::commit(const LocalPass& pass) {
  const at::NoGradGuard no_grad;
  // Added up without the lock, where what is replaced dies as well: nobody else commits meanwhile
  // (ACTION-1). And before any is replaced: a sum that cannot be made leaves all as they were.
  hawser::Gradients sums;
  {
    auto state = state_.lock();
    const auto graph = state->graphs.find(pass.context());
    if (graph == state->graphs.end()) return;
    sums = graph->second.gradients.copy();
  }
  for (const auto& entry : pass.collected()) {
    const auto before = sums.find(entry.key());
    sums.insert_or_assign(
        entry.key(), before == sums.end() ? entry.value() : sum(before->value(), entry.value()));
  }
  auto state = state_.lock();
  const auto graph = state->graphs.find(pass.context());
  if (graph != state->graphs.end()) std::swap(graph->second.gradients, sums);
}

std::optional<Error> Autograd::take_commit_error(PassId pass) {
  const auto taken = state_.lock()->not_committed.extract(pass);
  return taken.empty() ? std::nullopt : std::optional(taken.mapped());
}

void Autograd::perform(Finished&& action) {
  std::optional<Promise<void>> promise;
  if (const auto error = take_commit_error(action.pass)) action.result = *error;
  {
    auto state = state_.lock();
    auto found = state->begun.extract(action.pass);
    if (!found.empty()) promise.emplace(std::move(found.mapped()));
  }
  // Before the program learns of it: whoever waits finds the profile complete.
  records_.end(autograd::number(action.pass), /*begun_here=*/true);
  if (!promise) return;
  if (action.result.ok()) {
    promise->succeed();
  } else {
    promise->fail(action.result.error());
  }
}

void Autograd::perform(DropContext&& action) {
  auto dropped = state_.lock()->graphs.extract(action.context);
  if (!dropped.empty()) destroy(std::make_shared<Graph>(std::move(dropped.mapped())));
}

}  // namespace hawser
