#include "hawser/node/autograd.h"

#include <algorithm>

#include "hawser/engine/wire_form.h"
#include "hawser/node/function.h"
#include "hawser/node/options.h"

namespace hawser {
namespace {

using namespace autograd;
using engine::LocalPass;
using engine::Tensors;

[[noreturn]] void invalid(const std::string& message) { throw Error(ErrorKind::Invalid, message); }

Error unknown_context(ContextId context, const std::string& self) {
  return Error(
      ErrorKind::Invalid,
      "Could not find autograd context with id: " + std::to_string(autograd::number(context)),
      {.node = self});
}

void check_roots(const Tensors& roots) {
  if (roots.empty()) invalid("No tensors provided for gradient computation.");
  for (const at::Tensor& root : roots) {
    if (!root.defined() || !root.requires_grad()) invalid("requires_grad not set on root");
    if (root.numel() != 1) {
      invalid("a root of shape " + c10::str(root.sizes()) +
              " is not a scalar, all roots need to be scalar");
    }
    if (!root.grad_fn()) invalid("a root does not have a valid gradient function.");
  }
}

const Tensors* differentiable(const wire::Payload& payload) {
  const auto* tie = static_cast<const tensor::Differentiable*>(payload.tie.get());
  return tie ? &tie->tensors : nullptr;
}

std::size_t count_differentiable(const wire::ReceivedPayload& payload) {
  return static_cast<std::size_t>(
      std::count_if(payload.tensors.begin(), payload.tensors.end(),
                    [](const wire::TensorDesc& desc) { return desc.flags & wire::kRequiresGrad; }));
}

// The program has called release() on this thread.
thread_local bool in_release = false;
struct Releasing {
  Releasing() { in_release = true; }
  ~Releasing() { in_release = false; }
  Releasing(const Releasing&) = delete;
};

// What arrives for a pass is work, which a thread that waits has to hand over (CALL-1), and a
// helper or a hand that polls can do itself.
class PassWaits final : public Scheduler {
 public:
  explicit PassWaits(std::shared_ptr<agent::Crew> crew) : crew_(std::move(crew)) {}
  void post(UniqueFunction<void()> task) override { crew_->post(std::move(task)); }
  bool wait(Event& event, Deadline deadline) override {
    return crew_->this_helper() ? crew_->wait(event, deadline) : crew_->sleep(event, deadline);
  }

 private:
  const std::shared_ptr<agent::Crew> crew_;
};

}  // namespace

Autograd::Autograd(Self self, Surroundings surroundings)
    : out_(std::move(surroundings)),
      waiting_(std::make_shared<PassWaits>(out_.crew)),
      self_(self.name),
      records_(out_.process, out_.serving_profiles),
      state_(std::in_place, std::move(self)) {}

Error Autograd::raised_here(std::exception_ptr thrown) const {
  const Error raised = remote_error(std::move(thrown));
  ErrorDetails details = raised.details();
  details.node = self_;
  return Error(raised.kind(), raised.message(), std::move(details));
}

void Autograd::keep_time(State& state) {
  const Deadline due = state.conductor.next_due();
  if (due.is_never() || due.at() >= state.timer_due) return;
  state.timer_due = due.at();
  out_.timers.schedule(due.at(), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->tell([](State& timed, TimePoint now) {
      if (timed.timer_due <= now) timed.timer_due = TimePoint::max();
      timed.conductor.tick(now);
    });
  });
}

Error Autograd::closed_error() const {
  return Error(ErrorKind::Invalid, "the node '" + self_ + "' is closed");
}

// A graph may hold Python objects, for whose end only some threads may wait (GIL-1).
void Autograd::destroy(std::shared_ptr<void> graph) {
  if (!in_release && !out_.crew->runs_task()) out_.crew->post([graph = std::move(graph)] {});
}

std::unique_ptr<agent::Crew::Expectation> Autograd::expectation() {
  return std::make_unique<agent::Crew::Expectation>(out_.crew);
}

const PassHeader* Autograd::header_of(const Message& message) {
  if (const auto* discover = std::get_if<Discover>(&message)) return &discover->pass;
  if (const auto* gradients = std::get_if<autograd::Gradients>(&message)) return &gradients->pass;
  return nullptr;
}

// ------------------------------------------------------------------------------- the program

ContextId Autograd::create() {
  ContextId context{};
  const bool open = tell([&](State& state, TimePoint now) {
    context = state.conductor.create_context(now);
    state.graphs.try_emplace(context);
  });
  if (!open) throw closed_error();
  return context;
}

bool Autograd::release(ContextId context) {
  const Releasing here;
  bool was_in = false;
  tell([&](State& state, TimePoint now) { was_in = state.conductor.release(context, now); });
  return was_in;
}

bool Autograd::is_in(ContextId context) {
  auto state = state_.lock();
  return !state->closed && state->conductor.is_in(context);
}

Future<void> Autograd::backward(ContextId context, const Tensors& roots,
                                const BackwardOptions& options) {
  check_roots(roots);
  const Duration timeout = options.timeout.value_or(kForever);
  if (timeout <= Duration::zero()) invalid("the timeout of a backward pass must be positive");
  const Deadline deadline = Deadline::after(out_.clock, timeout);
  // Before anything is sent, so that a hand is there when it is answered.
  auto expected = expectation();
  // The conductor knows the deadline; whoever waits for the future waits for its verdict.
  auto [promise, future] = Promise<void>::pair(waiting_);
  std::optional<Error> refusal;
  std::optional<PassId> pass;
  const bool open = tell([&](State& state, TimePoint now) {
    const autograd::RunOptions run{.retain_graph = options.retain_graph,
                                   .anomaly_mode = engine::anomaly_mode()};
    const auto begun = state.conductor.backward(context, options.mode, run, deadline, now);
    if (!begun.ok()) {
      refusal = begun.error();
      return;
    }
    pass = begun.value();
    if (auto* const helper = out_.crew->this_helper()) helper->helps_with(autograd::number(*pass));
    if (trace::is_watched()) records_.begin(autograd::number(*pass));
    auto local = std::make_shared<LocalPass>(*pass, context, weak_from_this());
    local->begin_at(roots);
    state.passes.emplace(*pass, Part{std::move(local), std::move(expected)});
    state.begun.emplace(*pass, std::move(promise));
  });
  if (!open) throw closed_error();
  if (refusal) throw *refusal;
  future.set_canceller([weak = weak_from_this(), pass = *pass] {
    if (const auto self = weak.lock()) {
      self->tell([&](State& state, TimePoint now) { state.conductor.cancel(pass, now); });
    }
  });
  return std::move(future);  // a binding: not moved by itself
}

Autograd::Waiting::Waiting(Autograd& autograd, const BackwardOptions& options) {
  if (scope_.isActive()) scope_.before("torch::distributed::autograd::backward");
  const bool is_limited = options.timeout.value_or(kForever) != kForever || current_call();
  const bool runs_function = torch::autograd::get_current_graph_task_id() != -1;
  if (is_limited || runs_function) return;
  helper_ = std::make_unique<agent::Crew::Helper>(autograd.out_.crew);
}

hawser::Gradients Autograd::gradients(ContextId context) {
  auto state = state_.lock();
  if (state->closed) throw closed_error();
  const auto graph = state->graphs.find(context);
  if (graph == state->graphs.end()) throw unknown_context(context, self_);
  return graph->second.gradients.copy();
}

AutogradContextReport Autograd::report(ContextId context) {
  auto state = state_.lock();
  if (state->closed) throw closed_error();
  const auto known = state->conductor.context(context, out_.clock.now());
  const auto graph = state->graphs.find(context);
  if (!known || graph == state->graphs.end()) throw unknown_context(context, self_);
  return {.id = context,
          .creator = known->creator.name,
          .known = known->known,
          .sends = graph->second.sends,
          .recvs = graph->second.recvs};
}

AutogradCounts Autograd::count() {
  auto state = state_.lock();
  const TimePoint now = out_.clock.now();
  return {state->conductor.contexts(now).size(), state->conductor.passes(now).size()};
}

// ------------------------------------------------------------------------------- messages

std::optional<wire::AutogradNote> Autograd::record_send(ContextId context, const Party& to,
                                                        const wire::Payload& payload) {
  out_.crew->attend(out_.clock.now());
  const Tensors* tensors = differentiable(payload);
  c10::intrusive_ptr<engine::SendFunction> function;
  if (tensors) function = c10::make_intrusive<engine::SendFunction>(*tensors);
  auto state = state_.lock();
  if (state->closed) return std::nullopt;
  auto note = state->conductor.record_send(context, to, function != nullptr);
  if (!note) return std::nullopt;
  note->anomaly_mode = engine::anomaly_mode();
  if (function) state->graphs[context].sends.emplace(note->message, std::move(function));
  return engine::to_wire(*note, state->party);
}

void Autograd::send_failed(const wire::AutogradNote& note, bool left) {
  state_.lock()->conductor.send_failed(ContextId{note.context}, MessageId{note.message}, left);
}

void Autograd::received(wire::Notes& notes, wire::ReceivedPayload& payload, const Party& from) {
  out_.crew->attend(out_.clock.now());
  const Note note = engine::from_wire(*notes.autograd, from);
  const std::size_t tensors = count_differentiable(payload);
  c10::intrusive_ptr<engine::RecvFunction> function;
  if (tensors > 0) {
    function = c10::make_intrusive<engine::RecvFunction>(note.context, note.message, tensors);
  }
  bool taken = false;
  tell([&](State& state, TimePoint now) {
    taken = state.conductor.record_recv(note, from, function != nullptr, now);
    if (!taken) return;
    Graph& graph = state.graphs[note.context];
    if (function) graph.recvs.emplace(note.message, function);
  });
  if (!taken) {
    notes.autograd.reset();
  } else if (function) {
    payload.tie = std::make_shared<engine::ReceivedHistory>(std::move(function));
  }
}

void Autograd::serve(std::shared_ptr<agent::IncomingCall> call) {
  out_.crew->attend(out_.clock.now());
  engine::ReadMessage read;
  try {
    read = engine::read_message(call->call().function, call->payload());
  } catch (const Error& error) {
    call->fail(error);
    return;
  }
  const Party from{call->caller().name, call->caller().incarnation};
  std::shared_ptr<trace::PassService> service;
  if (const PassHeader* header = header_of(read.message)) {
    const auto* gradients = std::get_if<autograd::Gradients>(&read.message);
    service = records_.serve(autograd::number(header->pass), call->call().notes.trace,
                             gradients ? autograd::number(gradients->message) : 0);
  }
  const bool open = tell([&](State& state, TimePoint now) {
    const Incoming incoming{state.next_number++};
    Arrived arrived{.call = call, .service = std::move(service)};
    if (const auto* commit = std::get_if<Commit>(&read.message)) arrived.commits = commit->pass;
    if (auto* gradients = std::get_if<autograd::Gradients>(&read.message)) {
      gradients->gradients = GradientHandle{state.next_number++};
      state.gradients.emplace(gradients->gradients, std::move(read.gradients));
      arrived.gradients = gradients->gradients;
    }
    state.arrived.emplace(incoming, std::move(arrived));
    state.conductor.receive(from, incoming, read.message, now);
  });
  if (!open) call->fail(closed_error());
}

// ------------------------------------------------------------------------------- backward
// functions

void Autograd::gradients_leave(PassId pass, MessageId recv, Tensors gradients) {
  tell([&](State& state, TimePoint now) {
    const GradientHandle handle{state.next_number++};
    if (!state.conductor.send_gradients(pass, recv, handle, now)) return;
    state.gradients.emplace(handle, std::move(gradients));
  });
}

void Autograd::part_ended(PassId pass, std::exception_ptr failure, std::string warnings) {
  if (const auto record = records_.find(autograd::number(pass))) record->part_done();
  Result<void> result;
  if (failure) {
    const Error raised = raised_here(failure);
    ErrorDetails details = raised.details();
    if (!warnings.empty()) {
      details.remote_traceback += (details.remote_traceback.empty() ? "" : "\n") + warnings;
    }
    result = Error(raised.kind(), raised.message(), std::move(details));
  } else if (!warnings.empty()) {
    TORCH_WARN(warnings);
  }
  tell([&](State& state, TimePoint now) { state.conductor.local_ended(pass, result, now); });
}

void Autograd::lend_thread(PassId pass, UniqueFunction<void()> work) {
  auto timed = [self = shared_from_this(), work = std::move(work)]() mutable {
    self->running_.run([&] { work(); });
  };
  out_.crew->post_for(autograd::number(pass), std::move(timed), running_.is_brief());
}

// ------------------------------------------------------------------------------- the agent

void Autograd::connected(const std::string& peer, Incarnation incarnation) {
  if (peer == self_) return;
  tell([&](State& state, TimePoint now) { state.conductor.met({peer, incarnation}, now); });
}

// Whoever shares a context is sought at once: it comes back, or it is given up.
void Autograd::disconnected(const std::string& peer) {
  if (peer == self_) return;
  bool concerned = false;
  const bool open = tell([&](State& state, TimePoint now) {
    state.conductor.disconnected(peer, now);
    concerned = state.conductor.concerns(peer);
  });
  if (open && concerned) out_.agent.reach(peer);
}

void Autograd::barred(const std::string& peer, Incarnation incarnation) {
  tell([&](State& state, TimePoint now) { state.conductor.lost({peer, incarnation}, now); });
}

// Whoever cannot be reached may come back, but not as who it was: contexts go on without it.
void Autograd::given_up(const std::string& peer) {
  bool concerned = false;
  tell([&](State& state, TimePoint) { concerned = state.conductor.concerns(peer); });
  if (!concerned) return;
  const auto gone = out_.agent.bar(peer);
  if (!gone) return;  // it is there after all
  barred(peer, *gone);
  if (*gone != Incarnation{}) barred(peer, Incarnation{});  // nor is there any other
}

void Autograd::rejoined(Incarnation incarnation) {
  tell([&](State& state, TimePoint now) {
    state.party.incarnation = incarnation;
    state.conductor.rejoined({self_, incarnation, state.rank}, now);
    state.not_committed.clear();
  });
}

void Autograd::close() {
  std::unordered_map<PassId, Promise<void>> begun;
  std::unordered_map<PassId, Part> passes;
  std::unordered_map<ContextId, Graph> graphs;
  std::unordered_map<GradientHandle, Tensors> gradients;
  std::unordered_map<Incoming, Arrived> arrived;
  {
    auto state = state_.lock();
    state->closed = true;
    begun.swap(state->begun);
    passes.swap(state->passes);
    graphs.swap(state->graphs);
    gradients.swap(state->gradients);
    arrived.swap(state->arrived);
  }
  for (auto& [pass, promise] : begun) promise.fail(closed_error());
  for (auto& [pass, part] : passes) part.local->abort("the node is closed");
}

}  // namespace hawser
