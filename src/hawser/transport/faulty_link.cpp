#include "hawser/transport/faulty_link.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "hawser/wire/message.h"

namespace hawser::transport {
namespace {

// A frame to be sent, as its receiver would see it.
wire::InFrame received_form(const wire::OutFrame& frame) {
  wire::InFrame copy;
  copy.kind = frame.kind;
  copy.body = wire::BodyBytes(frame.body.size());
  std::copy(frame.body.begin(), frame.body.end(), copy.body.data());
  copy.segments = frame.segments;
  return copy;
}

// Of the calls by which conductors of backward passes talk to each other (engine/wire_form.h), the
// one whose kind can be named; empty for the others.
std::string_view kind_of_autograd(std::string_view message) {
  return message == "release" ? "CLEANUP_AUTOGRAD_CONTEXT_REQ" : std::string_view();
}

std::string_view kind_of_call(const wire::ReceivedCall& call) {
  if (call.target == wire::TargetKind::Autograd) return kind_of_autograd(call.function);
  const bool scripted =
      call.target == wire::TargetKind::Operator || call.target == wire::TargetKind::Script;
  if (call.creates) return scripted ? "SCRIPT_REMOTE_CALL" : "PYTHON_REMOTE_CALL";
  return scripted ? "SCRIPT_CALL" : "PYTHON_CALL";
}

std::string_view kind_of_record(wire::RecordKind kind) {
  switch (kind) {
    case wire::RecordKind::Claim:
      return "RREF_FORK_REQUEST";
    case wire::RecordKind::Share:
      return "RREF_CHILD_ACCEPT";
    case wire::RecordKind::Drop:
      return "RREF_USER_DELETE";
    default:
      return {};
  }
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What makes a message the same one when it is sent again: not the number, the time left or the
// chain of a call, which are new each time.
std::string identity_of(const wire::OutFrame& frame) {
  wire::InFrame copy = received_form(frame);
  const auto message = wire::decode(copy);
  std::ostringstream identity;
  if (const auto* records = std::get_if<wire::References>(&message.value())) {
    identity << "records " << records->first;
    return identity.str();
  }
  const auto& call = std::get<wire::ReceivedCall>(message.value());
  identity << static_cast<int>(call.target) << ' ' << call.function << '\0';
  if (call.subject) identity << call.subject->on << ':' << call.subject->local << ' ';
  if (call.creates) identity << call.creates->ref.on << ':' << call.creates->ref.local << ' ';
  for (const Buffer& segment : call.payload.segments) {
    identity << std::hash<std::string_view>()(as_text(segment.bytes())) << ' ';
  }
  identity << as_text(call.payload.value);
  return identity.str();
}

}  // namespace

const std::set<std::string_view>& all_message_kinds() {
  static const std::set<std::string_view> kAll = {"RREF_FORK_REQUEST",
                                                  "RREF_CHILD_ACCEPT",
                                                  "RREF_USER_DELETE",
                                                  "PYTHON_REMOTE_CALL",
                                                  "SCRIPT_REMOTE_CALL",
                                                  "PYTHON_CALL",
                                                  "SCRIPT_CALL",
                                                  "PYTHON_RREF_FETCH_CALL",
                                                  "SCRIPT_RREF_FETCH_CALL",
                                                  "CLEANUP_AUTOGRAD_CONTEXT_REQ"};
  return kAll;
}

std::vector<std::string_view> kinds_of(const wire::OutFrame& frame) {
  if (frame.kind != wire::Kind::Call && frame.kind != wire::Kind::References) return {};
  wire::InFrame copy = received_form(frame);
  const auto message = wire::decode(copy);
  if (!message.ok()) return {};
  if (const auto* call = std::get_if<wire::ReceivedCall>(&message.value())) {
    // Whether the value is Python's or a script's, only its owner knows.
    if (call->target == wire::TargetKind::Method && call->function.empty()) {
      return {"PYTHON_RREF_FETCH_CALL", "SCRIPT_RREF_FETCH_CALL"};
    }
    const std::string_view kind = kind_of_call(*call);
    return kind.empty() ? std::vector<std::string_view>() : std::vector{kind};
  }
  std::vector<std::string_view> kinds;
  for (const auto& record : std::get<wire::References>(message.value()).records) {
    const std::string_view kind = kind_of_record(record.kind);
    if (!kind.empty()) kinds.push_back(kind);
  }
  return kinds;
}

FaultyLink::FaultyLink(std::shared_ptr<Link> link, std::shared_ptr<Doorbell> bell,
                       const Clock& clock, Timers& timers, std::shared_ptr<const Faults> faults)
    : link_(std::move(link)),
      bell_(std::move(bell)),
      clock_(clock),
      timers_(timers),
      faults_(std::move(faults)) {}

bool FaultyLink::send(wire::OutFrame frame) {
  Duration delay{};
  for (const std::string_view kind : kinds_of(frame)) {
    if (is_to_fail(kind, frame)) {
      if (frame.kind == wire::Kind::Call) answer_with_failure(frame, kind);
      return true;
    }
    const auto late = faults_->delay.find(kind);
    if (late != faults_->delay.end()) delay = std::max(delay, late->second);
  }
  if (delay > Duration::zero()) {
    send_later(std::move(frame), delay);
    return true;
  }
  return link_->send(std::move(frame));
}

bool FaultyLink::is_to_fail(std::string_view kind, const wire::OutFrame& frame) {
  if (!faults_->fail.contains(kind)) return false;
  auto state = state_.lock();
  int& failed = state->failed[identity_of(frame)];
  if (failed >= faults_->times) return false;
  ++failed;
  return true;
}

void FaultyLink::answer_with_failure(const wire::OutFrame& call, std::string_view kind) {
  wire::InFrame copy = received_form(call);
  const auto message = wire::decode(copy);
  const auto& asked = std::get<wire::ReceivedCall>(message.value());
  // Both ends count calls, to know when none is on its way: one that does nothing goes in its
  // place.
  wire::Call nothing;
  nothing.id = asked.id;
  nothing.one_way = true;
  link_->send(wire::encode(std::move(nothing)));
  if (asked.one_way) return;
  const wire::Failure failure{
      .id = asked.id,
      .error = Error(ErrorKind::PeerLost,
                     "RPCErr:2:Send attempt failed intentionally for " + std::string(kind)),
      .payload = {},
      .report = {}};
  {
    auto state = state_.lock();
    state->own_answers.push_back(received_form(wire::encode(wire::Failure(failure))));
  }
  bell_->ring();
}

void FaultyLink::send_later(wire::OutFrame&& frame, Duration delay) {
  auto kept = std::make_shared<wire::InFrame>(received_form(frame));
  timers_.schedule(clock_.now() + delay, [self = shared_from_this(), kept] {
    self->link_->send({.kind = kept->kind, .body = kept->body.view(), .segments = kept->segments});
  });
}

Link::Received FaultyLink::receive(wire::InFrame& frame) {
  {
    auto state = state_.lock();
    if (!state->own_answers.empty()) {
      frame = std::move(state->own_answers.front());
      state->own_answers.erase(state->own_answers.begin());
      return Received::Frame;
    }
  }
  return link_->receive(frame);
}

bool FaultyLink::pending() const { return !state_.lock()->own_answers.empty() || link_->pending(); }

}  // namespace hawser::transport
