#include "sim/model.h"

#include <algorithm>
#include <array>
#include <utility>

namespace hawser::simulation {
namespace {

// How long after a fault its consequences may show: silence is noticed, attempts to connect run
// out, a node that was given up is told so when it next says something.
constexpr Duration kAfterEffects = std::chrono::seconds(8);
// How late a deadline may be noticed by a process that runs.
constexpr Duration kLateness = std::chrono::milliseconds(1);

constexpr std::array<std::pair<Function, std::string_view>, 8> kNames = {{
    {Function::Echo, "echo"},
    {Function::Slow, "slow"},
    {Function::Hang, "hang"},
    {Function::Nested, "nested"},
    {Function::Relay, "relay"},
    {Function::Fail, "fail"},
    {Function::Forget, "forget"},
    {Function::AnswerTwice, "answer twice"},
}};

std::pair<std::string, std::string> pair_of(const std::string& one, const std::string& other) {
  return std::minmax(one, other);
}

std::uint64_t scrambled(CallNumber number) { return number * 0x9e3779b97f4a7c15u; }

}  // namespace

std::string_view to_string(Function function) {
  for (const auto& [known, name] : kNames) {
    if (known == function) return name;
  }
  return "unknown";
}

std::optional<Function> function_named(std::string_view name) {
  for (const auto& [function, known] : kNames) {
    if (known == name) return function;
  }
  return std::nullopt;
}

// ---------------------------------------------------------------------------------- payloads

wire::Payload arguments_of(CallNumber number) {
  wire::Payload payload;
  wire::ValueWriter writer(payload.value);
  writer.integer(static_cast<std::int64_t>(number));
  const std::vector<std::byte> filling(number % 300, static_cast<std::byte>(number));
  writer.bytes(filling);
  return payload;
}

CallNumber number_in(const wire::ReceivedPayload& payload) {
  wire::ValueReader reader(payload.value);
  const auto number = static_cast<CallNumber>(reader.integer());
  const auto filling = reader.bytes();
  const bool intact = filling.size() == number % 300 &&
                      std::all_of(filling.begin(), filling.end(), [&](std::byte each) {
                        return each == static_cast<std::byte>(number);
                      });
  return intact ? number : 0;
}

wire::Payload result_of(CallNumber number) {
  wire::Payload payload;
  wire::ValueWriter(payload.value).integer(static_cast<std::int64_t>(scrambled(number)));
  return payload;
}

bool is_result_of(CallNumber number, const wire::ReceivedPayload& payload) {
  wire::ValueReader reader(payload.value);
  return reader.integer() == static_cast<std::int64_t>(scrambled(number));
}

// ---------------------------------------------------------------------------------- nodes, faults

void Model::node_started(const std::string& node) {
  up_[node] = world_.now();
  disturbed(node);
  std::erase_if(met_, [&](const auto& entry) { return entry.first.first == node; });
}

void Model::node_leaving(const std::string& node) {
  up_.erase(node);
  disturbed(node);
}

void Model::node_resumed(const std::string& node) {
  stopped_.erase(node);
  resumed_[node] = world_.now();
}

void Model::node_gone(const std::string& node) {
  up_.erase(node);
  stopped_.erase(node);
  disturbed(node);
  for (const auto& [deadline, number] : outstanding_[node]) calls_[number].orphaned = true;
  outstanding_[node].clear();
  std::erase_if(executions_, [&](const auto& entry) { return entry.second.node == node; });
}

void Model::disturbed(const std::string& node) { node_disturbed_[node] = world_.now(); }

void Model::disturbed(const std::string& one, const std::string& other) {
  pair_disturbed_[pair_of(one, other)] = world_.now();
}

bool Model::recently_disturbed(const std::string& one, const std::string& other,
                               TimePoint since) const {
  const TimePoint from = since - kAfterEffects;
  const auto in = [&](const auto& times, const auto& key) {
    const auto found = times.find(key);
    return found != times.end() && found->second >= from;
  };
  return !is_up(one) || !is_up(other) || in(node_disturbed_, one) || in(node_disturbed_, other) ||
         in(pair_disturbed_, pair_of(one, other)) || (all_disturbed_ && *all_disturbed_ >= from);
}

// ---------------------------------------------------------------------------------- calls

CallNumber Model::open(Call call) {
  const CallNumber number = calls_.size() + 1;
  call.started = world_.now();
  world_.note("call", number, to_string(call.function), call.from, call.to);
  outstanding_[call.from].emplace(call.deadline, number);
  calls_.emplace(number, std::move(call));
  return number;
}

const std::set<std::pair<Deadline, CallNumber>>& Model::outstanding(const std::string& node) const {
  static const std::set<std::pair<Deadline, CallNumber>> kNone;
  const auto found = outstanding_.find(node);
  return found == outstanding_.end() ? kNone : found->second;
}

std::uint16_t Model::depth(CallNumber number) const {
  std::uint16_t depth = 0;
  while ((number = calls_.at(number).parent) != 0) ++depth;
  return depth;
}

void Model::answered(CallNumber number, const agent::Answer& answer) {
  Call& call = calls_.at(number);
  world_.note("answer", number, answer.error ? to_string(answer.error->kind()) : "ok");
  if (std::exchange(call.done, true)) complain(describe(number) + " was answered twice");
  if (call.orphaned) complain(describe(number) + " was answered in a process that is gone");
  outstanding_[call.from].erase({call.deadline, number});
  if (answer.error) {
    check_error(number, call, *answer.error);
  } else {
    ++succeeded_;
    check_value(number, call, answer);
  }
}

void Model::check_value(CallNumber number, const Call& call, const agent::Answer& answer) {
  if (call.one_way) return;
  if (!is_result_of(number, answer.payload)) {
    complain(describe(number) + " got somebody else's result");
  } else if (!call.answered_with_value) {
    complain(describe(number) + " has a result that nobody made");
  }
}

void Model::check_error(CallNumber number, const Call& call, const Error& error) {
  const auto expect = [&](bool justified) {
    if (!justified) complain(describe(number) + " failed without cause: " + error.what());
  };
  switch (error.kind()) {
    case ErrorKind::Timeout:
      return expect(call.deadline.passed(world_.now()));
    case ErrorKind::Cancelled:
      return expect(call.cancelled);
    case ErrorKind::PeerLost:
      return expect(recently_disturbed(call.from, call.to, call.started));
    case ErrorKind::Remote:
      return expect(call.function == Function::Fail || call.function == Function::Forget);
    case ErrorKind::Invalid:  // the caller's node is closed
      return expect(!is_up(call.from));
    case ErrorKind::Overloaded:  // too much is queued, and no answer would tell
      return expect(call.one_way);
    case ErrorKind::Refused:
      return expect(false);
  }
}

std::string Model::describe(CallNumber number) const {
  const Call& call = calls_.at(number);
  return "call " + std::to_string(number) + " (" + std::string(to_string(call.function)) + ", " +
         call.from + " to " + call.to + ")";
}

// ---------------------------------------------------------------------------------- handlers

Model::ExecutionId Model::execution_started(CallNumber number, const std::string& node) {
  const ExecutionId id = next_execution_++;
  world_.note("runs", number, node);
  executions_.emplace(id, Execution{number, node});
  const auto found = calls_.find(number);
  if (found == calls_.end()) {
    complain(node + " got a call that nobody made");
  } else {
    ++found->second.executions;
    if (found->second.to != node) complain(describe(number) + " was delivered to " + node);
  }
  return id;
}

void Model::execution_answers(ExecutionId id, bool with_value) {
  const auto found = executions_.find(id);
  Call& call = calls_.at(found->second.call);
  call.answered_with_value = call.answered_with_value || with_value;
  executions_.erase(found);
}

// ---------------------------------------------------------------------------------- checks

void Model::session_made(const std::string& node, const std::string& peer,
                         std::uint64_t incarnation, std::uint64_t given_up) {
  world_.note("session", node, peer, incarnation);
  std::uint64_t& highest = met_[{node, peer}];
  if (incarnation <= given_up || incarnation < highest) {
    complain(node + " let in incarnation " + std::to_string(incarnation) + " of " + peer +
             ", after " + std::to_string(std::max(given_up, highest)) +
             (incarnation <= given_up ? " was given up" : " was here"));
  }
  highest = std::max(highest, incarnation);
}

void Model::check_deadlines() {
  for (const auto& [node, since] : up_) {
    const auto& waiting = outstanding(node);
    if (stopped_.contains(node) || waiting.empty() || waiting.begin()->first.is_never()) continue;
    const auto resumed = resumed_.find(node);
    TimePoint due = waiting.begin()->first.at();
    if (resumed != resumed_.end()) due = std::max(due, resumed->second);
    if (world_.now() > due + kLateness) {
      complain(describe(waiting.begin()->second) + " has outlived its deadline");
    }
  }
}

void Model::check_rest() {
  for (const auto& [node, since] : up_) {
    for (const auto& [deadline, number] : outstanding(node)) {
      complain(describe(number) + " never ended");
    }
  }
  for (const auto& [id, execution] : executions_) {
    complain("the handler of " + describe(execution.call) + " was never told to stop");
  }
}

void Model::complain(const std::string& what) {
  world_.note("COMPLAINT", what);
  constexpr std::size_t kEnough = 20;
  if (complaints_.size() < kEnough) complaints_.push_back(what);
}

}  // namespace hawser::simulation
