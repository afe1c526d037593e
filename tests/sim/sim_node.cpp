#include "sim/sim_node.h"

#include <utility>

namespace hawser::simulation {
namespace {

using namespace std::chrono_literals;

constexpr Duration kQuickestPoll = 1us;
constexpr Duration kSlowestPoll = 100us;
constexpr int kDeepest = 4;  // calls of a chain

const Limits& limits() {
  static const Limits kLimits;
  return kLimits;
}

}  // namespace

Stage::Stage(std::uint64_t seed) : world(seed), whims(world.stream("whims")) {}

agent::AgentOptions node_options() {
  agent::AgentOptions options;
  options.detector = {.heartbeat_interval = 200ms, .suspect_after = 400ms, .lost_after = 2s};
  options.connect_timeout = 1s;
  options.limits.max_bytes_queued_per_peer = 500;  // two or three frames
  return options;
}

Duration longest_silence() { return node_options().detector.lost_after; }

// ---------------------------------------------------------------------------------- life

SimNode::SimNode(Stage& stage, std::string name, std::uint32_t rank, std::string address)
    : stage_(stage),
      name_(std::move(name)),
      rank_(rank),
      process_(stage.world.start_process(name_)),
      directory_(stage.rendezvous, process_) {
  agent_ = std::make_unique<agent::Agent>(
      node_options(),
      agent::Agent::Surroundings{stage.world.clock(), *process_, directory_, *this, *this});
  agent_->introduce({.name = name_, .incarnation = {}, .world = {}, .secret = {}});
  departure_ = std::make_unique<agent::DepartureDriver>(name_, *agent_, stage.world.clock(),
                                                        *process_, 50ms);
  agent_->on_control_message = [this](const transport::PeerIdentity& peer,
                                      const wire::Message& message) {
    departure_->control_message(peer.name, message);
  };
  agent_->on_peer_lost = [this](const std::string& peer, const Error&) {
    departure_->connection_lost(peer);
  };
  agent_->on_given_up = [this](const std::string& peer, const Error& why) {
    stage_.world.note("given up", name_, peer, why.message());
    for (const auto& report : agent_->report_peers()) {
      if (report.name == peer && report.waiting > 0) {
        stage_.model.complain(name_ + " has given up " + peer + ", and calls still wait for it");
      }
    }
    departure_->given_up(peer);
  };
  transport_ = transport::sim::create_sim(
      stage.network, process_, *agent_, limits(),
      {.address = std::move(address), .handshake_timeout = node_options().connect_timeout});
  address_ = transport_->listen();
  stage_.model.node_started(name_);
  join();
}

SimNode::~SimNode() { transport_->close(); }

void SimNode::join() {
  const agent::Card card{.name = name_, .rank = rank_, .incarnation = {}, .endpoints = {address_}};
  directory_.join(card, [this](Result<agent::Card> joined) {
    if (!joined.ok()) return join();
    start(std::move(joined).value());
  });
}

void SimNode::start(agent::Card card) {
  const transport::PeerIdentity self{
      .name = name_, .incarnation = card.incarnation, .minor = 0, .features = {}};
  const transport::Identity identity{
      .name = name_, .incarnation = card.incarnation, .world = {}, .secret = {}};
  joined_ = true;
  agent_->start(identity, std::move(card), {transport_.get()},
                transport::sim::make_sim_loopback(stage_.network, process_, self, limits()));
}

// ---------------------------------------------------------------------------------- calling

CallNumber SimNode::call(const std::string& to, Function function, Deadline deadline, bool one_way,
                         CallNumber parent) {
  const CallNumber number = stage_.model.open({.from = name_,
                                               .to = to,
                                               .function = function,
                                               .one_way = one_way,
                                               .started = {},
                                               .deadline = deadline,
                                               .parent = parent});
  agent::Request request{
      .to = to, .message = {}, .started = stage_.world.now(), .deadline = deadline};
  request.message.function = to_string(function);
  request.message.one_way = one_way;
  request.message.depth = stage_.model.depth(number);
  request.message.payload = arguments_of(number);
  request.budget = deadline.remaining(stage_.world.now());
  handles_[number];  // before the answer, which may come at once
  auto handle = agent_->request(std::move(request), [this, number](agent::Answer answer) {
    handles_.erase(number);
    stage_.model.answered(number, answer);
    finish_nested(number);
  });
  const auto found = handles_.find(number);
  if (found != handles_.end()) found->second = std::move(handle);
  return number;
}

void SimNode::cancel(CallNumber number) {
  const auto found = handles_.find(number);
  if (found == handles_.end()) return;
  const agent::CallHandle handle = found->second;
  stage_.model.cancelled(number);
  agent_->cancel(handle, Error(ErrorKind::Cancelled, "the caller changed its mind"));
}

std::vector<CallNumber> SimNode::calls_in_flight() const {
  std::vector<CallNumber> numbers;
  for (const auto& [number, handle] : handles_) numbers.push_back(number);
  return numbers;
}

// ---------------------------------------------------------------------------------- polling

void SimNode::attach(std::shared_ptr<transport::Link> link,
                     std::shared_ptr<transport::FrameSink> sink) {
  auto watched = std::make_shared<Watched>();
  watched->link = std::static_pointer_cast<transport::sim::SimLink>(std::move(link));
  watched->sink = std::move(sink);
  const transport::PeerIdentity& peer = watched->link->peer();
  std::uint64_t given_up = 0;
  for (const auto& report : agent_->report_peers()) {
    if (report.name == peer.name) given_up = report.given_up;
  }
  stage_.model.session_made(name_, peer.name, number(peer.incarnation), given_up);
  watched->link->on_ready([this, watched] { schedule_poll(watched); });
  if (watched->link->pending()) schedule_poll(watched);
}

void SimNode::schedule_poll(const std::shared_ptr<Watched>& watched) {
  if (process_->dead() || std::exchange(watched->poll_scheduled, true)) return;
  process_->schedule_after(stage_.whims.between(kQuickestPoll, kSlowestPoll),
                           [this, watched] { poll(watched); });
}

void SimNode::poll(const std::shared_ptr<Watched>& watched) {
  watched->poll_scheduled = false;
  wire::InFrame frame;
  switch (watched->link->receive(frame)) {
    case transport::Link::Received::Nothing:
      while (auto task = watched->sink->resume()) run(std::move(task));
      return;
    case transport::Link::Received::Closed:
      watched->link->on_ready(nullptr);
      return watched->sink->on_closed();
    case transport::Link::Received::Frame:
      break;
  }
  if (auto task = watched->sink->on_frame(std::move(frame))) run(std::move(task));
  if (watched->link->pending()) schedule_poll(watched);
}

// At once, as the poller does with brief ones, or handed over to a thread that comes to it later.
void SimNode::run(std::shared_ptr<transport::Task> task) {
  if (task->brief()) return task->run();
  process_->schedule_after(stage_.whims.between(kQuickestPoll, kSlowestPoll),
                           [task = std::move(task)] { task->run(); });
}

// ---------------------------------------------------------------------------------- handlers

agent::Preparation SimNode::prepare(wire::ReceivedCall& call, const transport::PeerIdentity&) {
  return {.target = nullptr, .brief = call.function == "echo"};
}

void SimNode::handle(std::shared_ptr<agent::IncomingCall> call) {
  const CallNumber number = number_in(call->payload());
  const auto function = function_named(call->call().function);
  const ExecutionId id = stage_.model.execution_started(number, name_);
  if (!function || number == 0) return stage_.model.complain("a call arrived damaged");
  working_.emplace(id, Work{call, number, std::nullopt});
  call->on_cancel([this, id] { told_to_stop(id); });
  work_on(id, *function);
}

void SimNode::work_on(ExecutionId id, Function function) {
  if (!working_.contains(id)) return;  // it was cancelled before it started
  const auto after_a_while = [&](auto task) {
    process_->schedule_after(stage_.whims.between(1ms, 300ms), [this, id, task] {
      if (working_.contains(id)) task(id);
    });
  };
  switch (function) {
    case Function::Echo:
      return answer(id);
    case Function::Slow:
      return after_a_while([this](ExecutionId each) { answer(each); });
    case Function::Hang:
      return;
    case Function::Nested:
      return start_nested(id);
    case Function::Relay:
      return after_a_while([this](ExecutionId each) { relay(each); });
    case Function::Fail: {
      const auto call = take(id, false);
      call->fail(Error(ErrorKind::Remote, "as ordered"));
      return;
    }
    case Function::Forget:
      take(id, false);
      return;
    case Function::AnswerTwice: {
      const CallNumber number = working_.at(id).number;
      const auto call = take(id, true);
      call->reply(result_of(number));
      if (call->reply(result_of(number))) {
        stage_.model.complain("a call could be answered twice");
      }
      return;
    }
  }
}

// Calls on, within the budget of the call that it serves, and answers when that is over.
void SimNode::start_nested(ExecutionId id) {
  const Work& work = working_.at(id);
  const bool deep = work.call->call().depth >= kDeepest || stage_.whims.per_mille(500);
  const std::string& to = stage_.whims.one_of(stage_.names);
  const CallNumber parent = work.number;
  const Deadline deadline = work.call->deadline();
  const CallNumber nested =
      call(to, deep ? Function::Slow : Function::Nested, deadline, false, parent);
  const auto found = working_.find(id);
  if (found == working_.end()) return;
  if (stage_.model.call(nested).done) return answer(id);
  found->second.nested = nested;
}

void SimNode::finish_nested(CallNumber nested) {
  for (const auto& [id, work] : working_) {
    if (work.nested == nested) return answer(id);
  }
}

// Sends the work on, and does not wait for it.
void SimNode::relay(ExecutionId id) {
  const Work& work = working_.at(id);
  const CallNumber parent = work.number;
  if (stage_.whims.per_mille(700)) {
    call(stage_.whims.one_of(stage_.names), Function::Relay, Deadline::never(), true, parent);
  }
  answer(id);
}

void SimNode::told_to_stop(ExecutionId id) {
  const auto found = working_.find(id);
  if (found == working_.end()) return;
  stage_.world.note("stops", found->second.number, name_);
  const auto nested = found->second.nested;
  const auto call = take(id, false);
  if (nested) cancel(*nested);
  call->fail(Error(ErrorKind::Cancelled, "told to stop"));
}

void SimNode::answer(ExecutionId id) {
  const CallNumber number = working_.at(id).number;
  const auto call = take(id, true);
  call->reply(result_of(number));
}

std::shared_ptr<agent::IncomingCall> SimNode::take(ExecutionId id, bool with_value) {
  auto work = working_.extract(id);
  stage_.model.execution_answers(id, with_value);
  return std::move(work.mapped().call);
}

// ---------------------------------------------------------------------------------- checks

void SimNode::check_tables() {
  std::size_t waiting = 0;
  const auto reports = agent_->report_peers();
  for (const auto& report : reports) waiting += report.waiting;
  const std::size_t in_model = stage_.model.outstanding(name_).size();
  if (waiting + static_cast<std::size_t>(outstanding_) != in_model) {
    stage_.model.complain(name_ + " holds " + std::to_string(outstanding_) + " calls and " +
                          std::to_string(waiting) + " waiting ones, of " +
                          std::to_string(in_model));
  }
  if (reports.size() > stage_.names.size()) stage_.model.complain(name_ + " knows strangers");
}

void SimNode::check_rest() {
  check_tables();
  if (const auto busy = agent_->activity().busy; busy != 0) {
    stage_.model.complain(name_ + " still has " + std::to_string(busy) + " calls in its tables");
  }
}

}  // namespace hawser::simulation
