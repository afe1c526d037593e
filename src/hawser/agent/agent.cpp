#include "hawser/agent/agent.h"

#include <algorithm>
#include <utility>

#include "hawser/base/fault.h"
#include "hawser/base/log.h"

namespace hawser::agent {
namespace {

Answer failed(Error error) {
  Answer answer;
  answer.error.emplace(std::move(error));
  return answer;
}

// 0 means no limit on the wire.
std::uint64_t budget_us(Deadline deadline, TimePoint now) {
  if (deadline.is_never()) return 0;
  const auto left = std::chrono::ceil<std::chrono::microseconds>(deadline.remaining(now)).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(left, 1));
}

}  // namespace

Agent::Agent(AgentOptions options, Surroundings surroundings)
    : options_(std::move(options)), out_(std::move(surroundings)) {}

// Where it was not closed: calls that were put aside hold their session, which holds them.
Agent::~Agent() {
  for (const auto& peer : all_peers()) {
    if (const auto session = peer->state.lock()->session) session->drop_put_aside();
  }
}

void Agent::introduce(transport::Identity identity) {
  self_.lock()->identity = std::move(identity);
}

void Agent::start(transport::Identity identity, Card card,
                  std::vector<transport::Transport*> transports,
                  std::shared_ptr<transport::Link> self) {
  const std::string name = identity.name;
  transports_ = std::move(transports);
  *self_.lock() = Self{.identity = std::move(identity), .card = std::move(card), .started = true};
  install(peer(name), std::move(self));
  out_.timers.schedule(out_.clock.now() + options_.detector.heartbeat_interval,
                       [this] { check_health(); });
}

// ------------------------------------------------------------------------------- calls

CallHandle Agent::request(Request&& request, AnswerHandler&& on_answer,
                          std::shared_ptr<Event>* no_room) {
  OutstandingCall call{.function = std::string(request.message.function),
                       .started = request.started,
                       .deadline = request.deadline,
                       .budget = request.budget,
                       .bytes = request.message.payload.total_bytes(),
                       .only_to = request.only_to,
                       .on_answer = std::move(on_answer)};
  const auto& to = peer(request.to);
  CallHandle handle;
  std::optional<Error> refusal;
  std::shared_ptr<Session> session;
  {
    auto state = to->state.lock();
    session = state->session;
    if (closing()) {
      refusal.emplace(ErrorKind::Invalid, "the node is closed");
    } else if (session) {
      // Sent below, without the lock.
    } else if (!state->waiting.empty() &&
               state->waiting_bytes + call.bytes > options_.limits.max_bytes_in_flight_per_peer) {
      refusal.emplace(ErrorKind::Overloaded, "max_bytes_in_flight_per_peer bytes wait for " +
                                                 quoted(to->name) + " to be reached");
    } else if (state->waiting.size() >= options_.limits.max_calls_per_peer) {
      refusal.emplace(ErrorKind::Overloaded,
                      "max_calls_per_peer (" + std::to_string(options_.limits.max_calls_per_peer) +
                          ") calls wait for " + quoted(to->name) + " to be reached");
    } else {
      handle.place = std::make_shared<Guarded<CallPlace>>();
      handle.place->lock()->peer = to;
      state->waiting_bytes += call.bytes;
      state->waiting.push_back({handle.place, std::move(call), std::move(request.message)});
    }
  }
  if (refusal) {
    call.on_answer(failed(refusal->about(request.to, call.function)));
  } else if (session) {
    request.message.budget_us = budget_us(request.deadline, request.started);
    handle.session = session;
    handle.id = session->call(std::move(call), std::move(request.message), no_room);
    if (no_room && *no_room) on_answer = std::move(call.on_answer);
  } else {
    watch_deadline(request.deadline);
    seek(to, Patience::Fresh);
  }
  return handle;
}

void Agent::cancel(const CallHandle& handle, const Error& why) {
  if (!handle.place) {
    if (auto session = handle.session.lock()) session->cancel(handle.id, why);
    return;
  }
  const auto peer = handle.place->lock()->peer.lock();
  if (!peer) return;
  std::optional<WaitingCall> call;
  {
    auto state = peer->state.lock();
    auto& waiting = state->waiting;
    const auto found = std::find_if(waiting.begin(), waiting.end(),
                                    [&](const WaitingCall& w) { return w.place == handle.place; });
    if (found != waiting.end()) {
      state->waiting_bytes -= found->call.bytes;
      call.emplace(std::move(*found));
      waiting.erase(found);
    }
  }
  if (call) return call->call.on_answer(failed(why.about(peer->name, call->call.function)));
  std::shared_ptr<Session> session;
  CallId id{};
  {
    auto place = handle.place->lock();
    place->cancelled = why;  // for the one who is just sending it
    session = place->session.lock();
    id = place->id;
  }
  if (session) session->cancel(id, why);
}

void Agent::send_waiting(const std::shared_ptr<Peer>& peer,
                         const std::shared_ptr<Session>& session) {
  std::deque<WaitingCall> waiting;
  {
    auto state = peer->state.lock();
    waiting.swap(state->waiting);
    state->waiting_bytes = 0;
    state->departing += waiting.size();
  }
  for (WaitingCall& call : waiting) {
    const std::string function = call.call.function;
    call.message.function = function;
    call.message.budget_us = budget_us(call.call.deadline, out_.clock.now());
    const CallId id = session->call(std::move(call.call), std::move(call.message));
    std::optional<Error> cancelled;
    {
      auto place = call.place->lock();
      place->session = session;
      place->id = id;
      cancelled = place->cancelled;
    }
    if (cancelled) session->cancel(id, *cancelled);
  }
  peer->state.lock()->departing -= waiting.size();
}

void Agent::give_up(const std::shared_ptr<Peer>& peer, const Error& why) {
  std::deque<WaitingCall> waiting;
  bool connected = false;
  {
    auto state = peer->state.lock();
    connected = state->session != nullptr;
    state->seeking = Peer::Seeking::No;
    state->attempts = 0;
    state->next_pause = {};
    if (!HAWSER_FAULT(kForgetWaiting)) {
      waiting.swap(state->waiting);
      state->waiting_bytes = 0;
    }
  }
  for (WaitingCall& call : waiting) {
    call.call.on_answer(failed(why.about(peer->name, call.call.function)));
  }
  if (on_given_up && !connected && !closing()) on_given_up(peer->name, why);
}

// ------------------------------------------------------------------------------- finding peers

const std::shared_ptr<Peer>& Agent::peer(std::string_view name) {
  auto peers = peers_.lock();
  auto found = peers->find(name);
  if (found == peers->end()) {
    found = peers->emplace(std::string(name), std::make_shared<Peer>(std::string(name))).first;
  }
  return found->second;
}

std::shared_ptr<Peer> Agent::find_peer(std::string_view name) const {
  auto peers = peers_.lock();
  const auto found = peers->find(name);
  return found == peers->end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Peer>> Agent::all_peers() const {
  std::vector<std::shared_ptr<Peer>> all;
  auto peers = peers_.lock();
  all.reserve(peers->size());
  for (const auto& [name, peer] : *peers) all.push_back(peer);
  return all;
}

void Agent::seek(const std::shared_ptr<Peer>& peer, Patience patience) {
  {
    auto state = peer->state.lock();
    if (state->session || state->seeking != Peer::Seeking::No) return;
    state->seeking = Peer::Seeking::InDirectory;
    if (patience == Patience::Fresh) state->attempts = 0;
    state->next_pause = options_.look_up_interval;
  }
  look_up(peer);
}

bool Agent::send_to(const std::string& name, wire::OutFrame frame) {
  const auto to = peer(name);
  const auto session = to->state.lock()->session;
  if (session && session->send(std::move(frame))) return true;
  if (!closing()) seek(to, Patience::AsBefore);
  return false;
}

std::optional<Incarnation> Agent::reach(const std::string& name) {
  const auto to = peer(name);
  if (const auto session = to->state.lock()->session) return session->peer().incarnation;
  if (!closing()) seek(to, Patience::AsBefore);
  return std::nullopt;
}

bool Agent::send_to(const std::string& name, Incarnation incarnation,
                    const wire::References& message) {
  const auto session = peer(name)->state.lock()->session;
  return session && session->peer().incarnation == incarnation &&
         session->send(wire::encode(message));
}

std::optional<Incarnation> Agent::bar(const std::string& name, Incarnation known) {
  auto state = peer(name)->state.lock();
  if (state->session) return std::nullopt;
  state->barred = std::max({state->barred, known, state->last_session.value_or(Incarnation{})});
  return state->barred;
}

void Agent::tell_lost(const std::string& name, Incarnation incarnation) {
  std::shared_ptr<Session> session;
  {
    auto state = peer(name)->state.lock();
    state->barred = std::max(state->barred, incarnation);
    if (state->session && state->session->peer().incarnation <= incarnation)
      session = state->session;
  }
  if (!session) return;
  session->send(wire::encode(wire::Goodbye{"declared lost", true}));
  session->close(Error(ErrorKind::PeerLost, quoted(name) + " had been given up",
                       {.node = name, .incarnation = number(incarnation)}));
}

// ------------------------------------------------------------------------------- sessions

void Agent::session_closed(const std::shared_ptr<Session>& session) {
  const auto peer = find_peer(session->peer().name);
  const Error why = *session->closed();
  bool wanted = false, current = false;
  {
    auto state = peer->state.lock();
    const Incarnation ended = session->peer().incarnation;
    state->last_session = std::max(state->last_session.value_or(ended), ended);
    current = state->session == session;
    if (current) {
      state->session.reset();
      state->loss = why;
      wanted = !state->waiting.empty();
    }
  }
  changes_.fetch_add(1, std::memory_order_seq_cst);
  if (current && session->serving() > 0) fading_.lock()->push_back(session);
  log::Line(log::Level::Info, "agent") << why.message();
  if (on_peer_lost && !closing()) on_peer_lost(peer->name, why);
  if (wanted && !closing()) seek(peer, Patience::Fresh);
}

void Agent::control_message(const std::shared_ptr<Session>& session, wire::Message message) {
  if (auto* goodbye = std::get_if<wire::Goodbye>(&message)) {
    if (goodbye->declared_lost) rejoin(session->peer().name);
    session->close(
        Error(ErrorKind::PeerLost, quoted(session->peer().name) + " has left: " + goodbye->reason,
              {.node = session->peer().name, .incarnation = number(session->peer().incarnation)}));
    return;
  }
  if (on_control_message) on_control_message(session->peer(), std::move(message));
}

void Agent::outstanding_changed(int by) { out_.workshop.outstanding_changed(by); }

// ------------------------------------------------------------------------------- time

void Agent::watch_deadline(Deadline deadline) {
  if (deadline.is_never()) return;
  const std::int64_t at = deadline.at().time_since_epoch().count();
  std::int64_t due = sweep_due_ns_.load(std::memory_order_seq_cst);
  while (at < due) {
    if (sweep_due_ns_.compare_exchange_weak(due, at, std::memory_order_seq_cst)) {
      out_.timers.schedule(deadline.at(), [this] { sweep(); });
      return;
    }
  }
}

void Agent::sweep() {
  sweep_due_ns_.store(INT64_MAX, std::memory_order_seq_cst);
  const TimePoint now = out_.clock.now();
  Deadline earliest = Deadline::never();
  for (const auto& peer : all_peers()) {
    std::shared_ptr<Session> session;
    std::vector<WaitingCall> expired;
    std::string waiting_for;
    {
      auto state = peer->state.lock();
      session = state->session;
      waiting_for = state->waiting_for;
      std::erase_if(state->waiting, [&](WaitingCall& call) {
        if (!call.call.deadline.passed(now)) {
          earliest = std::min(earliest, call.call.deadline);
          return false;
        }
        state->waiting_bytes -= call.call.bytes;
        expired.push_back(std::move(call));
        return true;
      });
    }
    for (WaitingCall& call : expired) {
      call.call.on_answer(failed(
          Error(ErrorKind::Timeout,
                "no connection to " + quoted(peer->name) +
                    " in time: " + (waiting_for.empty() ? "still connecting" : waiting_for),
                {.budget = std::chrono::duration_cast<std::chrono::microseconds>(call.call.budget)})
              .about(peer->name, call.call.function)));
    }
    if (session) earliest = std::min(earliest, session->sweep(now));
  }
  watch_deadline(earliest);
}

void Agent::check_health() {
  if (closing()) return;
  out_.workshop.beat();
  const TimePoint now = out_.clock.now();
  const std::string self = self_.lock()->identity.name;
  for (const auto& peer : all_peers()) {
    if (peer->name == self) continue;
    const auto session = peer->state.lock()->session;
    if (!session || session->check_health(now) != Liveness::Lost) continue;
    const auto silence =
        std::chrono::duration_cast<std::chrono::microseconds>(session->since_heard(now));
    peer->state.lock()->barred = session->peer().incarnation;
    if (on_barred) on_barred(peer->name, session->peer().incarnation);
    session->close(Error(ErrorKind::PeerLost,
                         quoted(peer->name) + " was silent for " +
                             std::to_string(silence.count() / 1000) + " ms and is given up",
                         {.node = peer->name,
                          .incarnation = number(session->peer().incarnation),
                          .last_heard = silence}));
  }
  out_.timers.schedule(now + options_.detector.heartbeat_interval, [this] { check_health(); });
}

// ------------------------------------------------------------------------------- closing

void Agent::close(Error why) {
  if (closing_.exchange(true, std::memory_order_seq_cst)) return;
  const Card card = self_.lock()->card;
  if (!card.name.empty()) out_.directory.leave(card);
  for (const auto& peer : all_peers()) {
    give_up(peer, why);
    const auto session = peer->state.lock()->session;
    if (!session) continue;
    session->send(wire::encode(wire::Goodbye{why.message()}));
    session->close(why);
  }
}

}  // namespace hawser::agent
