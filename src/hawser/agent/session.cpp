#include "hawser/agent/session.h"

#include <algorithm>
#include <utility>

#include "hawser/base/fault.h"
#include "hawser/base/log.h"
#include "hawser/base/overloaded.h"
#include "hawser/base/process_forks.h"
#include "hawser/base/step.h"

namespace hawser::agent {
namespace {

// How long a round trip that was measured will do while the link is in use.
constexpr Duration kMeasuredFor = std::chrono::seconds(5);

std::int64_t nanoseconds(TimePoint at) { return at.time_since_epoch().count(); }

Answer failed(Error error, std::optional<Incarnation> sent_to = std::nullopt) {
  Answer answer;
  answer.error.emplace(std::move(error));
  answer.sent_to = sent_to;
  return answer;
}

Error timeout_error(const OutstandingCall& call, const std::string& peer) {
  const auto budget = std::chrono::duration_cast<std::chrono::microseconds>(call.budget);
  return Error(ErrorKind::Timeout,
               "'" + call.function + "' on '" + peer + "' took longer than " +
                   std::to_string(static_cast<double>(budget.count()) / 1000.0) + " ms",
               {.node = peer, .function = call.function, .budget = budget});
}

}  // namespace

Session::Session(std::shared_ptr<transport::Link> link, const Clock& clock, const Limits& limits,
                 FailureDetectorOptions detector, RequestHandler& handler, SessionEvents& events,
                 std::shared_ptr<void> keep_alive)
    : fork_depth_(fork_depth()),
      keep_alive_(std::move(keep_alive)),
      link_(std::move(link)),
      clock_(clock),
      limits_(limits),
      handler_(handler),
      events_(events),
      tables_(Tables(limits.max_calls_per_peer)),
      health_(Health{FailureDetector(detector, clock.now())}) {}

// ------------------------------------------------------------------------------- calling

CallId Session::call(OutstandingCall&& call, wire::Call&& message,
                     std::shared_ptr<Event>* no_room) {
  const Deadline deadline = call.deadline;
  const bool one_way = message.one_way;
  const bool too_much = one_way && backlogged();  // no answer will tell
  std::optional<Error> refusal;
  std::optional<CallId> id;
  bool peer_is_busy = false;
  {
    auto tables = tables_.lock();
    if (tables->closed) {
      refusal = tables->closed;
    } else if (call.only_to != Incarnation{} && call.only_to != peer().incarnation) {
      refusal.emplace(ErrorKind::PeerLost, "'" + peer().name + "' has been replaced",
                      ErrorDetails{.node = peer().name, .incarnation = number(call.only_to)});
    } else if (too_much) {
      refusal.emplace(ErrorKind::Overloaded, "max_bytes_queued_per_peer (" +
                                                 std::to_string(limits_.max_bytes_queued_per_peer) +
                                                 ") bytes wait to be sent to '" + peer().name +
                                                 "'");
    } else if (no_room && !one_way && !tables->has_room(call.bytes, limits_)) {  // FLOW-1
      *no_room = tables->wanting_room.emplace_back(std::make_shared<Event>());
      return CallId{};
    } else if (!(id = tables->outgoing.open(call))) {
      refusal.emplace(ErrorKind::Overloaded, "max_calls_per_peer (" +
                                                 std::to_string(limits_.max_calls_per_peer) +
                                                 ") calls to '" + peer().name + "' outstanding");
    } else {
      ++tables->calls_sent;
      peer_is_busy = tables->outgoing.size() > 1;
    }
  }
  if (refusal) {
    call.on_answer(failed(refusal->about(peer().name, call.function)));
    return CallId{};
  }
  events_.outstanding_changed(+1);
  if (!HAWSER_FAULT(kForgetDeadline)) events_.watch_deadline(deadline);
  message.id = *id;
  try {
    wire::OutFrame frame = wire::encode(std::move(message));
    const bool sent = peer_is_busy ? link_->send_with_more(std::move(frame))
                                   : link_->send(std::move(frame));  // if not, end() fails the call
    if (sent && one_way) complete(*id, Answer{});                    // nobody answers
  } catch (const Error& error) {
    if (auto unsent = take(*id))
      unsent->on_answer(failed(error.about(peer().name, unsent->function)));
  }
  return *id;
}

bool Session::send(wire::OutFrame&& frame) { return link_->send(std::move(frame)); }

std::optional<OutstandingCall> Session::take(CallId id) {
  std::vector<std::shared_ptr<Event>> wanting;
  std::optional<OutstandingCall> call;
  {
    auto tables = tables_.lock();
    call = tables->outgoing.take(id);
    if (!call) return std::nullopt;  // it crossed its answer on the way
    wanting.swap(tables->wanting_room);
  }
  events_.outstanding_changed(-1);
  for (const auto& room : wanting) room->set();
  return call;
}

void Session::complete(CallId id, Answer&& answer) {
  std::optional<OutstandingCall> call = take(id);
  if (!call) return;
  if (HAWSER_FAULT(kDropAnswer)) return;
  answer.sent_to = peer().incarnation;
  if (answer.error) answer.error = answer.error->about(peer().name, call->function);
  call->on_answer(std::move(answer));
}

// Not in a forked child: the call, and the connection, are its parent's.
void Session::cancel(CallId id, const Error& why) {
  if (fork_depth() != fork_depth_) return;
  std::optional<OutstandingCall> call = take(id);
  if (!call) return;
  send(wire::encode(wire::Cancel{id}));
  call->on_answer(failed(why.about(peer().name, call->function), peer().incarnation));
}

// ------------------------------------------------------------------------------- receiving

std::shared_ptr<transport::Task> Session::on_frame(wire::InFrame frame) {
  Result<wire::Message> decoded = wire::decode(frame);
  if (!decoded.ok()) {
    log::Line(log::Level::Warning, "agent") << "closing the connection to '" << peer().name
                                            << "': malformed frame: " << decoded.error().message();
    close(Error(ErrorKind::PeerLost,
                "'" + peer().name + "' sent a malformed frame: " + decoded.error().message()));
    return nullptr;
  }
  return std::visit(
      Overloaded{
          [&](wire::ReceivedCall& call) { return accept_call(std::move(frame), std::move(call)); },
          [&](wire::ReceivedReply& reply) -> std::shared_ptr<transport::Task> {
            const CallId id = reply.id;
            if (!reply.payload.references.empty() || reply.notes.autograd) {
              handler_.answer_received(reply.payload, reply.notes, peer());
            }
            Answer answer;
            answer.frame = std::move(frame);
            answer.payload = std::move(reply.payload);
            answer.notes = std::move(reply.notes);
            complete(id, std::move(answer));
            return nullptr;
          },
          [&](wire::ReceivedFailure& failure) -> std::shared_ptr<transport::Task> {
            const CallId id = failure.id;
            wire::Notes notes;
            notes.report = std::move(failure.report);
            if (!failure.payload.references.empty()) {
              handler_.answer_received(failure.payload, notes, peer());
            }
            Answer answer;
            answer.frame = std::move(frame);
            answer.payload = std::move(failure.payload);
            answer.notes = std::move(notes);
            answer.error.emplace(std::move(failure.error));
            complete(id, std::move(answer));
            return nullptr;
          },
          [&](wire::Cancel& cancel) -> std::shared_ptr<transport::Task> {
            if (!HAWSER_FAULT(kKeepCancelled)) cancel_incoming(cancel.id);
            return nullptr;
          },
          [&](wire::Heartbeat& beat) -> std::shared_ptr<transport::Task> {
            send(wire::encode(wire::HeartbeatEcho{beat.sent_at_ns, nanoseconds(clock_.now())}));
            return nullptr;
          },
          [&](wire::HeartbeatEcho& echo) -> std::shared_ptr<transport::Task> {
            round_trip_ns_.store(nanoseconds(clock_.now()) - echo.sent_at_ns,
                                 std::memory_order_relaxed);
            return nullptr;
          },
          [&](auto& control) -> std::shared_ptr<transport::Task> {
            events_.control_message(shared_from_this(), wire::Message(std::move(control)));
            return nullptr;
          },
      },
      decoded.value());
}

std::shared_ptr<transport::Task> Session::accept_call(wire::InFrame&& frame,
                                                      wire::ReceivedCall&& call) {
  const TimePoint now = clock_.now();
  const Deadline deadline =
      call.budget_us == 0
          ? Deadline::never()
          : Deadline(now + std::chrono::microseconds(static_cast<std::int64_t>(
                               std::min<std::uint64_t>(call.budget_us, INT64_MAX / 2000))));
  const CallId id = call.id;
  Preparation preparation = handler_.prepare(call, peer());
  const bool at_once = preparation.at_once;
  auto incoming = std::make_shared<IncomingCall>(
      std::move(frame), std::move(call), Caller{peer().name, peer().incarnation}, deadline,
      shared_from_this(), handler_, std::move(preparation));
  bool known = false, full = false;
  {
    auto tables = tables_.lock();
    full = !at_once && tables->incoming.size() >= limits_.max_calls_per_peer;
    if (!full)
      known = !tables->incoming.emplace(number(id), Serving{incoming, now, deadline}).second;
    if (!full && !known) ++tables->calls_received;
  }
  if (known) {
    incoming->disown();  // the id is that of the first
    close(Error(ErrorKind::PeerLost, "'" + peer().name + "' used a call id twice"));
    return nullptr;
  }
  if (full) {
    incoming->fail(Error(ErrorKind::Overloaded, "max_calls_per_peer (" +
                                                    std::to_string(limits_.max_calls_per_peer) +
                                                    ") calls are being served"));
    return nullptr;
  }
  if (!HAWSER_FAULT(kForgetDeadline)) events_.watch_deadline(deadline);
  if (at_once) {
    handler_.handle(std::move(incoming));
    return nullptr;
  }
  if (handler_.needs_no_run(incoming)) return nullptr;
  return incoming;
}

// The call is put aside before the link is asked for the last time. So either the link is no longer
// backlogged then, or whoever looks at it when that changes finds the call (LINK-7).
bool Session::put_aside(const std::shared_ptr<IncomingCall>& call) {
  if (!backlogged()) return false;
  bool full = false;
  {
    auto tables = tables_.lock();
    if (tables->closed) return false;
    full = tables->aside.size() >= limits_.max_requests_queued;
    // It was received before those that wait already.
    if (!full) tables->aside.push_front(call);
    any_aside_.store(!tables->aside.empty(), std::memory_order_seq_cst);
  }
  HAWSER_STEP();
  if (full) {
    call->fail(Error(ErrorKind::Overloaded,
                     "max_requests_queued (" + std::to_string(limits_.max_requests_queued) +
                         ") calls wait for '" + peer().name + "' to take its answers"));
    return true;
  }
  if (backlogged()) return true;
  auto tables = tables_.lock();
  const auto found = std::find(tables->aside.begin(), tables->aside.end(), call);
  if (found == tables->aside.end()) return true;  // it has been resumed
  tables->aside.erase(found);
  any_aside_.store(!tables->aside.empty(), std::memory_order_seq_cst);
  return false;
}

std::shared_ptr<transport::Task> Session::resume() {
  if (!any_aside_.load(std::memory_order_seq_cst) || backlogged()) return nullptr;
  if (HAWSER_FAULT(kForgetPutAside)) return nullptr;
  auto tables = tables_.lock();
  if (tables->aside.empty()) return nullptr;
  auto call = std::move(tables->aside.front());
  tables->aside.pop_front();
  any_aside_.store(!tables->aside.empty(), std::memory_order_seq_cst);
  return call;
}

void Session::cancel_incoming(CallId id) {
  std::shared_ptr<IncomingCall> call;
  {
    auto tables = tables_.lock();
    const auto found = tables->incoming.find(number(id));
    if (found != tables->incoming.end()) call = found->second.call.lock();
  }
  if (call) call->cancel();
}

bool Session::send_reply(wire::Reply&& reply) {
  const CallId id = reply.id;
  try {
    return send(wire::encode(std::move(reply)));
  } catch (const Error& error) {  // too large to be encoded
    return send(wire::encode(wire::Failure{.id = id, .error = error, .payload = {}, .report = {}}));
  }
}

bool Session::send_reply_at_leisure(wire::Reply&& reply) {
  const CallId id = reply.id;
  try {
    return link_->send_at_leisure(wire::encode(std::move(reply)));
  } catch (const Error& error) {
    return send(wire::encode(wire::Failure{.id = id, .error = error, .payload = {}, .report = {}}));
  }
}

bool Session::send_failure(wire::Failure&& failure) {
  return send(wire::encode(std::move(failure)));
}

void Session::call_answered(CallId id) { tables_.lock()->incoming.erase(number(id)); }

// ------------------------------------------------------------------------------- time

Deadline Session::sweep(TimePoint now) {
  std::vector<std::pair<CallId, OutstandingCall>> expired;
  std::vector<std::shared_ptr<IncomingCall>> overdue;
  std::vector<std::shared_ptr<Event>> wanting;
  Deadline earliest;
  {
    auto tables = tables_.lock();
    expired = tables->outgoing.expire(now);
    if (!expired.empty()) wanting.swap(tables->wanting_room);
    earliest = tables->outgoing.earliest();
    for (auto& [id, serving] : tables->incoming) {
      if (!serving.deadline.passed(now)) {
        earliest = std::min(earliest, serving.deadline);
      } else if (auto call = serving.call.lock()) {
        serving.deadline = Deadline::never();  // told once
        overdue.push_back(std::move(call));
      }
    }
  }
  for (const auto& room : wanting) room->set();
  for (auto& [id, call] : expired) {
    events_.outstanding_changed(-1);
    send(wire::encode(wire::Cancel{id}));
    call.on_answer(failed(timeout_error(call, peer().name), peer().incarnation));
  }
  for (auto& call : overdue) call->cancel();
  return earliest;
}

Liveness Session::check_health(TimePoint now) {
  // Bytes of a frame that is still arriving prove life too: a large tensor takes its time.
  const transport::LinkTraffic traffic = link_->traffic();
  const auto pulse = link_->pulse();
  const std::uint64_t calls = calls_so_far();
  bool heartbeat_due = false;
  Liveness verdict;
  {
    auto health = health_.lock();
    if (traffic.bytes_received != health->bytes_received || (pulse && pulse != health->pulse)) {
      health->detector.heard(now);
    }
    const bool measure = !health->measured ||
                         (calls != health->calls_then && now - *health->measured >= kMeasuredFor);
    heartbeat_due = measure || (!pulse && traffic.frames_sent == health->frames_sent);
    if (heartbeat_due) {
      health->measured = now;
      health->calls_then = calls;
    }
    health->bytes_received = traffic.bytes_received;
    health->frames_sent = traffic.frames_sent;
    health->pulse = pulse;
    verdict = HAWSER_FAULT(kNeverSuspect) ? Liveness::Alive : health->detector.judge(now);
  }
  liveness_.store(verdict, std::memory_order_relaxed);
  if (heartbeat_due && verdict != Liveness::Lost) {
    send(wire::encode(wire::Heartbeat{nanoseconds(now)}));
    health_.lock()->frames_sent = link_->traffic().frames_sent;
  }
  return verdict;
}

bool Session::probe(TimePoint now) {
  const std::uint64_t received = link_->stats().bytes_received;
  {
    auto health = health_.lock();
    if (health->bytes_at_probe == received) return false;
    health->bytes_at_probe = received;
  }
  send(wire::encode(wire::Heartbeat{nanoseconds(now)}));
  return true;
}

bool Session::is_silent_since_probe() {
  const std::uint64_t received = link_->stats().bytes_received;
  return std::exchange(health_.lock()->bytes_at_probe, std::nullopt) == received;
}

std::uint64_t Session::calls_so_far() const {
  auto tables = tables_.lock();
  return tables->calls_sent + tables->calls_received;
}

Duration Session::since_heard(TimePoint now) const {
  return now - health_.lock()->detector.last_heard();
}

std::optional<Duration> Session::round_trip() const {
  const auto ns = round_trip_ns_.load(std::memory_order_relaxed);
  return ns < 0 ? std::nullopt : std::optional(Duration(ns));
}

// ------------------------------------------------------------------------------- closing

Error Session::lost_error(const std::string& why) const {
  const TimePoint now = clock_.now();
  return Error(
      ErrorKind::PeerLost, "'" + peer().name + "' is gone: " + why,
      {.node = peer().name,
       .incarnation = number(peer().incarnation),
       .last_heard = std::chrono::duration_cast<std::chrono::microseconds>(since_heard(now))});
}

void Session::close(Error why) {
  link_->close();
  end(why);
}

void Session::drop_put_aside() {
  std::deque<std::shared_ptr<IncomingCall>> dropped;
  auto tables = tables_.lock();
  dropped.swap(tables->aside);
  any_aside_.store(false, std::memory_order_seq_cst);
  tables.unlock();  // before they die
}

std::optional<Error> Session::closed() const { return tables_.lock()->closed; }

void Session::on_closed() {
  const auto reason = link_->close_reason();
  end(lost_error(reason ? *reason : "it closed the connection"));
}

// Fails and cancels everything, once, whoever notices the end first.
void Session::end(const Error& why) {
  std::vector<OutstandingCall> calls;
  std::vector<std::shared_ptr<IncomingCall>> serving;
  std::deque<std::shared_ptr<IncomingCall>> never_started;
  std::vector<std::shared_ptr<Event>> wanting;
  {
    auto tables = tables_.lock();
    if (tables->closed) return;
    tables->closed.emplace(why);
    never_started.swap(tables->aside);
    any_aside_.store(false, std::memory_order_seq_cst);
    wanting.swap(tables->wanting_room);
    if (!HAWSER_FAULT(kForgetOnLoss)) calls = tables->outgoing.take_all();
    for (auto& [id, entry] : tables->incoming) {
      if (auto call = entry.call.lock()) serving.push_back(std::move(call));
    }
  }
  for (auto& call : calls) {
    events_.outstanding_changed(-1);
    call.on_answer(failed(why.about(peer().name, call.function), peer().incarnation));
  }
  for (auto& call : serving) call->cancel();
  for (const auto& room : wanting) room->set();
  events_.session_closed(shared_from_this());
}

void Session::list_calls(TimePoint now, std::vector<CallInFlight>& out) const {
  const auto remaining = [&](Deadline deadline) -> std::optional<Duration> {
    if (deadline.is_never()) return std::nullopt;
    return deadline.remaining(now);
  };
  std::vector<std::shared_ptr<IncomingCall>> kept;  // die after the lock is released
  auto tables = tables_.lock();
  tables->outgoing.for_each([&](CallId id, const OutstandingCall& call) {
    out.push_back(
        {id, call.function, peer().name, now - call.started, remaining(call.deadline), false});
  });
  for (const auto& [id, serving] : tables->incoming) {
    auto call = serving.call.lock();
    if (!call) continue;
    out.push_back({CallId{id}, std::string(call->call().function), peer().name,
                   now - serving.started, remaining(serving.deadline), true});
    kept.push_back(std::move(call));
  }
}

}  // namespace hawser::agent
