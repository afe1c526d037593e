#include "hawser/node/node.h"

#include <algorithm>

#include "hawser/base/guarded.h"
#include "hawser/base/log.h"
#include "hawser/node/machinery.h"

namespace hawser {
namespace {

// The nodes of this process that are open, oldest first. Owns nothing and no thread; never
// destroyed, because nodes may be closed while the process exits.
Guarded<std::vector<Node*>>& open_nodes() {
  static auto* const nodes = new Guarded<std::vector<Node*>>;
  return *nodes;
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
  if (const CallContext* serving = current_call()) return serving->node();
  auto nodes = open_nodes().lock();
  if (nodes->empty()) {
    throw Error(ErrorKind::Invalid, "there is no node in this process: construct a hawser::Node");
  }
  return *nodes->front();
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
                                      agent::AnswerHandler&& on_answer) {
  machinery_->refuse_if_inherited();
  if (!machinery_->await_room(to, call.payload, timing.deadline, timing.now)) {
    agent::Answer answer;
    answer.error =
        Error(ErrorKind::Overloaded,
              "no room for the call in time: max_bytes_in_flight_per_peer are unanswered")
            .about(std::string(to), call.function);
    on_answer(std::move(answer));
    return nullptr;
  }
  agent::Request request{.to = to,
                         .message = {},
                         .started = timing.now,
                         .deadline = timing.deadline,
                         .budget = timing.budget};
  request.message.target = call.target;
  request.message.function = call.function;
  request.message.payload = std::move(call.payload);
  auto handle = machinery_->request(std::move(request), std::move(on_answer));
  if (const CallContext* serving = current_call()) {
    serving->on_cancel([handle] {
      agent::Agent::cancel(
          handle, Error(ErrorKind::Cancelled, "the call that made this one was cancelled"));
    });
  }
  return [handle = std::move(handle)] {
    agent::Agent::cancel(handle, Error(ErrorKind::Cancelled, "cancelled by the caller"));
  };
}

void Node::notify_written(std::string_view to, WrittenCall&& call) {
  machinery_->refuse_if_inherited();
  wire::Call message;
  message.target = call.target;
  message.function = call.function;
  message.payload = std::move(call.payload);
  message.one_way = true;
  machinery_->notice(to, std::move(message));
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
  const Deadline deadline = Deadline::after(machinery_->clock(), timeout);
  if (!machinery_->depart(deadline)) {
    std::string missing;
    for (const auto& name : machinery_->departure_waits_for()) {
      missing += (missing.empty() ? "" : ", ") + name;
    }
    throw Error(ErrorKind::Timeout, "shutdown of '" + name() + "' still waits" +
                                        (missing.empty() ? "" : " for " + missing));
  }
  close();
}

bool Node::close(Duration patience) {
  {
    auto nodes = open_nodes().lock();
    nodes->erase(std::remove(nodes->begin(), nodes->end(), this), nodes->end());
  }
  return machinery_->close(patience);
}

}  // namespace hawser
