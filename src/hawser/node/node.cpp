#include "hawser/node/node.h"

#include <ATen/core/function.h>
#include <ATen/core/function_schema.h>
#include <c10/util/Backtrace.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "hawser/base/guarded.h"
#include "hawser/base/log.h"
#include "hawser/base/process_forks.h"
#include "hawser/engine/current_context.h"
#include "hawser/node/machinery.h"
#include "hawser/node/scripts.h"

namespace hawser {
namespace {

// The nodes of this process that are open, oldest first. Owns nothing and no thread; never
// destroyed, because nodes may be closed while the process exits. A forked child begins with a list
// of its own: the nodes of its parent are none of its, and another thread may have held their lock.
Guarded<std::vector<Node*>>& open_nodes() {
  struct List {
    const std::uint64_t fork_depth;
    Guarded<std::vector<Node*>> nodes{};
  };
  static std::atomic<List*> current{nullptr};
  List* list = current.load(std::memory_order_acquire);
  while (!list || list->fork_depth != fork_depth()) {
    auto own = std::make_unique<List>(fork_depth());
    if (current.compare_exchange_strong(list, own.get(), std::memory_order_acq_rel)) {
      list = own.release();
    }
  }
  return list->nodes;
}

}  // namespace

Node::Node(NodeOptions options) : machinery_(std::make_shared<Machinery>(std::move(options))) {
  try {
    machinery_->start(*this);
  } catch (...) {
    machinery_->close(std::chrono::seconds(1));
    throw;
  }
  open_nodes().lock()->push_back(this);
}

Node::~Node() {
  if (machinery_->inherited()) {
    // Threads and descriptors stayed with the parent; there is nothing here that could be taken
    // apart in order.
    new std::shared_ptr<Machinery>(std::move(machinery_));
    return;
  }
  close();
}

const std::string& Node::name() const { return machinery_->options().name; }

Node& Node::current() {
  if (Node* const node = find_current()) return *node;
  throw Error(ErrorKind::Invalid, "there is no node in this process: construct a hawser::Node");
}

Node* Node::find_current() {
  if (const CallContext* serving = current_call()) return &serving->node();
  auto nodes = open_nodes().lock();
  if (nodes->empty()) return nullptr;
  const auto here = std::find_if(nodes->begin(), nodes->end(), [](const Node* node) {
    return node->machinery_->crew()->runs_task();
  });
  return here == nodes->end() ? nodes->front() : *here;
}

void Node::serve_function(std::shared_ptr<Function> function) {
  machinery_->add(std::move(function));
}

bool Node::withdraw(std::string_view name) { return machinery_->withdraw(name); }

std::shared_ptr<Scheduler> Node::scheduler() const { return machinery_->crew(); }

bool Node::closed() const { return machinery_->inherited() || machinery_->closed(); }

NodeReport Node::inspect() const { return machinery_->report(); }

WrittenCall Node::match_operator(std::string_view name, std::vector<c10::IValue> args) {
  tensor::MatchedOperator matched = machinery_->operators().match(name, args);
  args.clear();
  PayloadWriter out;
  const auto inside = out.nest();
  out.tuple(matched.stack.size());
  for (c10::IValue& value : matched.stack) write_ivalue(out, std::move(value));
  return {wire::TargetKind::Operator, std::move(matched.name), out.finish()};
}

WrittenCall Node::write_script_call(std::string_view function, std::vector<c10::IValue> args) {
  const auto& program = scripts().shared_program();
  const torch::jit::Function* const known =
      program ? program->find(std::string(function)) : nullptr;
  if (known) {
    script::fit_types(known->getSchema(), args);
    args = script::complete_stack(known->getSchema(), std::move(args), {});
  }
  return {wire::TargetKind::Script, std::string(function),
          script::write_call(std::move(args), /*asynchronous=*/false)};
}

Node::Timing Node::timing_of(const CallOptions& options) const {
  const Duration timeout = options.timeout ? *options.timeout : machinery_->call_timeout();
  if (timeout <= Duration::zero()) {
    throw Error(ErrorKind::Invalid, "a call's timeout must be positive; kForever for none");
  }
  const TimePoint now = machinery_->clock().now();
  Deadline deadline = Deadline::from(now, timeout);
  if (const CallContext* serving = current_call()) {
    deadline = std::min(deadline, serving->deadline());
  }
  return {now, deadline, deadline.remaining(now)};
}

Duration Node::call_timeout() const { return machinery_->call_timeout(); }

void Node::set_call_timeout(Duration timeout) {
  if (timeout <= Duration::zero()) {
    throw Error(ErrorKind::Invalid, "call_timeout must be positive; kForever for none");
  }
  machinery_->set_call_timeout(timeout);
}

UniqueFunction<void()> Node::call_written(const CallOptions& options, WrittenCall&& call,
                                          agent::AnswerHandler&& on_answer) {
  return send_raw(options.to, timing_of(options), std::move(call), std::move(on_answer));
}

UniqueFunction<void()> Node::send_raw(std::string_view to, Timing timing, WrittenCall&& call,
                                      agent::AnswerHandler&& on_answer,
                                      const wire::Creation* creates) {
  machinery_->refuse_if_inherited();
  wire::Notes notes;
  if (trace::is_watched()) notes.trace = trace_call(to, call, creates != nullptr, on_answer);
  if (const auto context = engine::current_context()) {
    notes.autograd = record(*context, to, call, on_answer);
  }
  auto use = References::Use::Safe;
  if (call.on || !call.payload.held.empty()) {
    use = hold_references(to, call, on_answer);
  }
  agent::Request request{.to = to,
                         .message = {},
                         .started = timing.now,
                         .deadline = timing.deadline,
                         .budget = timing.budget};
  request.message.target = call.target;
  request.message.function = call.function;
  request.message.payload = std::move(call.payload);
  request.message.notes = std::move(notes);
  if (creates) request.message.creates = *creates;
  if (call.on) request.message.subject = wire::RefName{call.on->id().on, call.on->id().local};
  auto handle = machinery_->request(std::move(request), std::move(on_answer));
  if (call.on) machinery_->references().cancel_with(*call.on, use, handle);
  if (const CallContext* serving = current_call()) {
    serving->call()->on_cancel([handle] {
      agent::Agent::cancel(
          handle, Error(ErrorKind::Cancelled, "the call that made this one was cancelled"));
    });
  }
  return [handle = std::move(handle)] {
    agent::Agent::cancel(handle, Error(ErrorKind::Cancelled, "cancelled by the caller"));
  };
}

// The record ends before the program learns of the answer: whoever waits finds the profile
// complete.
std::optional<wire::TraceNote> Node::trace_call(std::string_view to, const WrittenCall& call,
                                                bool creates, agent::AnswerHandler& on_answer) {
  const auto record = std::make_shared<trace::CallRecord>(
      trace::CallNames{.style = creates ? trace::CallStyle::Remote : call.style,
                       .target = call.target,
                       .function = call.function,
                       .label = call.label,
                       .from = name(),
                       .to = to},
      machinery_->process(), call.called_ns, call.payload.total_bytes());
  on_answer = [record, clocks = machinery_->peer_clocks(),
               on_answer = std::move(on_answer)](agent::Answer&& answer) mutable {
    record->end(std::exchange(answer.notes.report, std::nullopt), *clocks);
    on_answer(std::move(answer));
  };
  return record->note();
}

void Node::begin_serving_profile(std::uint32_t wants) {
  machinery_->serving_profiles().begin(wants);
}

trace::ServingProfiles::Served Node::end_serving_profile() {
  return machinery_->serving_profiles().end();
}

wire::TraceProcess Node::process() const { return machinery_->process(); }

// Whoever runs a function of the program in the context becomes a member of it, so that what the
// function calls is recorded, too. An operator calls nobody.
std::optional<wire::AutogradNote> Node::record(autograd::ContextId context, std::string_view to,
                                               const WrittenCall& call,
                                               agent::AnswerHandler& on_answer) {
  if (call.target == wire::TargetKind::Operator && !call.payload.tie) return std::nullopt;
  const auto autograd = machinery_->autograd().shared_from_this();
  auto note = autograd->record_send(context, {std::string(to), {}}, call.payload);
  if (!note) return note;
  on_answer = [autograd, note = *note,
               on_answer = std::move(on_answer)](agent::Answer&& answer) mutable {
    if (answer.error) autograd->send_failed(note, answer.sent_to.has_value());
    on_answer(std::move(answer));
  };
  return note;
}

// What the call is about is in use, and what it carries is on its way, until it has ended.
References::Use Node::hold_references(std::string_view to, WrittenCall& call,
                                      agent::AnswerHandler& on_answer) {
  References& references = machinery_->references();
  const auto use = call.on ? references.begin_use(*call.on) : References::Use::Safe;
  std::vector<refs::ForkId> forks;
  if (!call.payload.held.empty()) {
    try {
      forks = references.give(call.payload, to);
    } catch (const Error&) {
      if (call.on) references.end_use(*call.on, use);
      throw;
    }
  }
  on_answer = [references = references.shared_from_this(), use, on = call.on, to = std::string(to),
               forks = std::move(forks),
               on_answer = std::move(on_answer)](agent::Answer&& answer) mutable {
    if (!forks.empty()) references->given(forks, to, answer.sent_to);
    if (on) references->end_use(*on, use);
    on_answer(std::move(answer));
  };
  return use;
}

std::shared_ptr<RefHandle> Node::create_written(const CallOptions& options, WrittenCall&& call,
                                                std::string type,
                                                UniqueFunction<void(agent::Answer&&)> on_created,
                                                std::string origin) {
  machinery_->refuse_if_inherited();
  const Timing timing = timing_of(options);
  if (origin.empty() && machinery_->options().record_reference_origins) {
    origin = c10::get_backtrace();
  }
  References& references = machinery_->references();
  const References::Creation creation =
      references.create(std::string(options.to), call.function, std::move(type), std::move(origin));
  try {
    send_raw(
        options.to, timing, std::move(call),
        [references = references.shared_from_this(), handle = creation.handle,
         on_created = std::move(on_created)](agent::Answer&& answer) mutable {
          references->creation_ended(*handle, answer);
          if (on_created) on_created(std::move(answer));
        },
        &creation.note);
  } catch (...) {
    agent::Answer never_sent;
    never_sent.error = Error(ErrorKind::Invalid, "the call could not be sent");  // nobody sees it
    references.creation_ended(*creation.handle, never_sent);
    throw;
  }
  return creation.handle;
}

std::shared_ptr<RefHandle> Node::keep(std::shared_ptr<Kept> value, std::string origin) {
  machinery_->refuse_if_inherited();
  if (origin.empty() && machinery_->options().record_reference_origins) {
    origin = c10::get_backtrace();
  }
  return machinery_->references().keep(std::move(value), std::move(origin));
}

Found Node::find_local(const RefHandle& handle, Duration timeout) {
  machinery_->refuse_if_inherited();
  if (!handle.is_owner()) {
    throw Error(ErrorKind::Invalid,
                "the value is on '" + handle.owner() + "', not here: fetch() it");
  }
  struct Arrival {
    Event there;
    Found found;
  };
  const auto arrival = std::make_shared<Arrival>();
  References& references = machinery_->references();
  const std::uint64_t waiter = references.when_there(handle, [arrival](Found found) {
    arrival->found = std::move(found);
    arrival->there.set();
  });
  Deadline deadline = Deadline::after(machinery_->clock(), timeout);
  if (const CallContext* serving = current_call()) {
    deadline = std::min(deadline, serving->deadline());
  }
  if (!machinery_->crew()->wait(arrival->there, deadline)) {
    references.stop_waiting(handle.id(), waiter);
    throw Error(ErrorKind::Timeout, "the value does not exist yet");
  }
  if (arrival->found.failure) throw arrival->found.failure->error;
  return arrival->found;
}

bool Node::has_value(const RefHandle& handle) {
  if (!handle.is_owner()) {
    throw Error(ErrorKind::Invalid,
                "whether the value exists is known on '" + handle.owner() + "', not here");
  }
  return machinery_->references().has_value(handle);
}

bool Node::look_on(Event& event) { return machinery_->crew()->look_on(event); }

ScriptHost& Node::scripts() const { return machinery_->scripts(); }

std::uint32_t Node::rank_of(const std::string& name) { return machinery_->rank_of(name); }

References& Node::references() const { return machinery_->references(); }

Autograd& Node::autograd() const {
  machinery_->refuse_if_inherited();
  return machinery_->autograd();
}

Future<void> Node::backward(autograd::ContextId context, const std::vector<at::Tensor>& roots,
                            BackwardOptions options) {
  const Duration unless_told = options.mode == autograd::Mode::Fast ? call_timeout() : kForever;
  options.timeout = options.timeout.value_or(unless_told);
  const CallContext* serving = current_call();
  if (serving) {
    options.timeout =
        std::min(*options.timeout, serving->deadline().remaining(machinery_->clock().now()));
  }
  auto done = autograd().backward(context, roots, options);
  if (serving) {
    serving->call()->on_cancel([done]() mutable { done.cancel(); });
  }
  return done;
}

void Node::run_backward(autograd::ContextId context, const std::vector<at::Tensor>& roots,
                        const BackwardOptions& options) {
  const Autograd::Waiting waiting(autograd(), options);
  backward(context, roots, options).get();
}

std::vector<RefReport> Node::refs() const {
  machinery_->refuse_if_inherited();
  return machinery_->references().report();
}

void Node::add_method(const std::type_info& type, std::string name,
                      std::shared_ptr<const Method> method) {
  machinery_->add_method(type, std::move(name), std::move(method));
}

std::shared_ptr<const Method> Node::find_method(const std::type_info& type,
                                                std::string_view name) const {
  return machinery_->find_method(type, name);
}

std::shared_ptr<const Method> find_method(const CallContext& context, const std::type_info& type,
                                          std::string_view name) {
  auto method = context.node().find_method(type, name);
  if (method) return method;
  throw detail::BadRequest{
      Error(ErrorKind::Invalid, "'" + context.node().name() + "' serves no method '" +
                                    std::string(name) + "' of a " + demangled(type))};
}

void Node::notify_written(std::string_view to, WrittenCall&& call) {
  machinery_->refuse_if_inherited();
  agent::AnswerHandler on_sent = [](agent::Answer&&) {};
  wire::Call message;
  if (const auto context = engine::current_context()) {
    message.notes.autograd = record(*context, to, call, on_sent);
  }
  if (call.on || !call.payload.held.empty()) hold_references(to, call, on_sent);
  message.target = call.target;
  message.function = call.function;
  message.payload = std::move(call.payload);
  message.one_way = true;
  if (call.on) message.subject = wire::RefName{call.on->id().on, call.on->id().local};
  machinery_->notice(to, std::move(message), std::move(on_sent));
}

void Node::connect(std::string_view to, Duration timeout) {
  machinery_->refuse_if_inherited();
  if (!machinery_->connect(std::string(to), Deadline::after(machinery_->clock(), timeout))) {
    throw Error(closed() ? ErrorKind::Invalid : ErrorKind::Timeout,
                "no connection to '" + std::string(to) + "' in time", {.node = std::string(to)});
  }
}

std::map<std::uint32_t, std::string> Node::members(Duration timeout) {
  machinery_->refuse_if_inherited();
  return machinery_->members(Deadline::after(machinery_->clock(), timeout));
}

std::optional<std::uint32_t> Node::look_up(std::string_view name, Duration timeout) {
  machinery_->refuse_if_inherited();
  return machinery_->look_up(name, Deadline::after(machinery_->clock(), timeout));
}

void Node::shutdown(Duration timeout) {
  if (closed()) return;
  const Deadline deadline = machinery_->leaving_deadline(timeout);
  depart(timeout);
  release_references();
  await_release(std::min(kReleasePatience, deadline.remaining(machinery_->clock().now())));
  report_leaks();
  close();
}

void Node::release_references() {
  machinery_->refuse_if_inherited();
  machinery_->release_references();
}

bool Node::await_release(Duration timeout) {
  machinery_->refuse_if_inherited();
  return machinery_->await_release(Deadline::after(machinery_->clock(), timeout));
}

void Node::report_leaks() const {
  machinery_->log_references(log::Level::Warning, "still referenced when it left",
                             machinery_->references().describe_leaks());
}

void Node::depart(Duration timeout) {
  machinery_->refuse_if_inherited();
  if (!machinery_->depart(machinery_->leaving_deadline(timeout))) {
    std::string missing;
    for (const auto& name : machinery_->departure_waits_for()) {
      missing += (missing.empty() ? "" : ", ") + name;
    }
    throw Error(ErrorKind::Timeout, "shutdown of '" + name() + "' still waits" +
                                        (missing.empty() ? "" : " for " + missing));
  }
}

bool Node::close(Duration patience) {
  {
    auto nodes = open_nodes().lock();
    nodes->erase(std::remove(nodes->begin(), nodes->end(), this), nodes->end());
  }
  return machinery_->close(patience);
}

}  // namespace hawser
