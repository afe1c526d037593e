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

void Node::add(std::shared_ptr<Function> function) { machinery_->add(std::move(function)); }

bool Node::withdraw(std::string_view name) { return machinery_->withdraw(name); }

std::shared_ptr<Scheduler> Node::scheduler() const { return machinery_->crew(); }

bool Node::closed() const { return machinery_->inherited() || machinery_->closed(); }

NodeReport Node::inspect() const { return machinery_->report(); }

Node::Prepared Node::match_operator(std::string_view name, std::vector<c10::IValue> args) {
  tensor::MatchedOperator matched = machinery_->operators().match(name, args);
  args.clear();
  PayloadWriter out;
  const auto inside = out.nest();
  out.tuple(matched.stack.size());
  for (c10::IValue& value : matched.stack) write_ivalue(out, std::move(value));
  return {std::move(matched.name), out.finish()};
}

Node::Timing Node::timing_of(const CallOptions& options) const {
  const Duration timeout = options.timeout.value_or(machinery_->options().call_timeout);
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

UniqueFunction<void()> Node::send_raw(std::string_view to, Timing timing, wire::TargetKind target,
                                      Prepared&& prepared, RawHandler&& handler) {
  machinery_->refuse_if_inherited();
  if (!machinery_->await_room(to, prepared.payload, timing.deadline, timing.now)) {
    agent::Answer answer;
    answer.error =
        Error(ErrorKind::Overloaded,
              "no room for the call in time: max_bytes_in_flight_per_peer are unanswered")
            .about(std::string(to), prepared.function);
    handler(std::move(answer));
    return nullptr;
  }
  agent::Request request{.to = to,
                         .message = {},
                         .started = timing.now,
                         .deadline = timing.deadline,
                         .budget = timing.budget};
  request.message.target = target;
  request.message.function = prepared.function;
  request.message.payload = std::move(prepared.payload);
  auto handle = machinery_->request(std::move(request), std::move(handler));
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

void Node::send_notice(std::string_view to, std::string_view function, wire::Payload payload) {
  machinery_->refuse_if_inherited();
  wire::Call message;
  message.function = function;
  message.payload = std::move(payload);
  message.one_way = true;
  machinery_->notice(to, std::move(message));
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
