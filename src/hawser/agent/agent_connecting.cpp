// How an agent comes by connections: it looks names up, tries transports, and judges strangers.

#include <algorithm>
#include <utility>

#include "hawser/agent/agent.h"
#include "hawser/base/log.h"

namespace hawser::agent {
namespace {

constexpr Duration kLongestPause = std::chrono::milliseconds(200);
constexpr int kAttempts = 4;  // to reach a node that has joined and does not answer

}  // namespace

// ------------------------------------------------------------------------------- looking up

void Agent::look_up(const std::shared_ptr<Peer>& peer) {
  if (closing()) return;
  out_.directory.look_up(peer->name, [this, peer](Result<std::optional<Card>> card) {
    out_.timers.post(
        [this, peer, card = std::move(card)]() mutable { found(peer, std::move(card)); });
  });
}

void Agent::found(const std::shared_ptr<Peer>& peer, Result<std::optional<Card>> card) {
  if (closing()) return;
  if (!card.ok()) return directory_failed(peer, card.error());
  std::optional<Error> lost;
  bool there = false, arriving = false;
  {
    auto state = peer->state.lock();
    if (state->session) {
      state->seeking = Peer::Seeking::No;
      return;
    }
    there = card.value() && !card.value()->endpoints.empty();
    if (!there) {
      lost = state->loss;
      if (!lost && card.value()) {
        lost.emplace(ErrorKind::PeerLost, quoted(peer->name) + " has left");
      }
    } else {
      arriving = !state->arriving.passed(out_.clock.now());
      if (!arriving) state->seeking = Peer::Seeking::Connecting;
    }
  }
  if (lost) return give_up(peer, *lost);
  if (arriving) return seek_again(peer, "its connection to this node is being made");
  if (!there) return seek_again(peer, "nobody of that name has joined the world");
  try_transport(peer, std::move(*card.value()), 0);
}

// Calls wait for it to come back. Not for somebody who was here and is lost; and who only wants to
// reach the peer, as leaving together does, is told some day.
void Agent::directory_failed(const std::shared_ptr<Peer>& peer, const Error& why) {
  std::optional<Error> lost;
  {
    auto state = peer->state.lock();
    if (!state->session) lost = state->loss;
    if (!lost && state->waiting.empty() && ++state->attempts >= kAttempts) {
      lost.emplace(ErrorKind::PeerLost,
                   quoted(peer->name) + " cannot be looked up: " + why.message());
    }
  }
  if (lost) return give_up(peer, *lost);
  seek_again(peer, "the directory answers: " + why.message());
}

void Agent::seek_again(const std::shared_ptr<Peer>& peer, std::string waiting_for) {
  Duration pause;
  {
    auto state = peer->state.lock();
    if (state->waiting.empty()) {
      state->seeking = Peer::Seeking::No;
      return;
    }
    state->seeking = Peer::Seeking::InDirectory;
    state->waiting_for = std::move(waiting_for);
    pause = state->next_pause;
    state->next_pause = std::min(2 * pause, kLongestPause);
  }
  out_.timers.schedule(out_.clock.now() + pause, [this, peer] { look_up(peer); });
}

// ------------------------------------------------------------------------------- connecting

void Agent::try_transport(const std::shared_ptr<Peer>& peer, Card card, std::size_t which) {
  for (; which < transports_.size(); ++which) {
    transport::Transport& transport = *transports_[which];
    const std::string prefix = std::string(transport.name()) + ":";
    const auto endpoint = std::find_if(card.endpoints.begin(), card.endpoints.end(),
                                       [&](const std::string& e) { return e.starts_with(prefix); });
    std::optional<std::string> why_not;
    if (endpoint == card.endpoints.end()) {
      why_not = "not offered by the peer";
    } else {
      why_not = transport.objection(*endpoint);
    }
    if (!why_not) {
      const Deadline deadline = Deadline::after(out_.clock, options_.connect_timeout);
      transport.connect(*endpoint, peer->name, deadline,
                        [this, peer, card, which](transport::ConnectOutcome outcome) mutable {
                          connected(peer, std::move(card), which, std::move(outcome));
                        });
      return;
    }
    peer->state.lock()->choice[std::string(transport.name())] = *why_not;
  }
  unreachable(peer, card);
}

void Agent::connected(const std::shared_ptr<Peer>& peer, Card card, std::size_t which,
                      transport::ConnectOutcome outcome) {
  const std::string transport(transports_[which]->name());
  if (auto* link = std::get_if<std::shared_ptr<transport::Link>>(&outcome)) {
    if (install(peer, std::move(*link))) {
      peer->state.lock()->choice[transport] = "chosen: the first that passed its probe";
      return;
    }
    return seek_again(peer, "it had been given up, and is rejoining");
  }
  const auto& failure = std::get<transport::ConnectFailure>(outcome);
  peer->state.lock()->choice[transport] = failure.why;
  if (closing()) return;
  if (failure.refusal && *failure.refusal != wire::RefusalReason::Transport) {
    return refused(peer, failure);
  }
  log::Line(log::Level::Info, "agent")
      << quoted(peer->name) << " cannot be reached by " << transport << ": " << failure.why;
  try_transport(peer, std::move(card), which + 1);
}

void Agent::refused(const std::shared_ptr<Peer>& peer, const transport::ConnectFailure& failure) {
  switch (*failure.refusal) {
    case wire::RefusalReason::Duplicate:  // its connection to us will be there in a moment
    case wire::RefusalReason::Busy:
      return seek_again(peer, failure.why);
    case wire::RefusalReason::DeclaredLost:
      rejoin(peer->name);
      return seek_again(peer, "this node was declared lost by it and is rejoining");
    case wire::RefusalReason::Closing:
      return give_up(peer, Error(ErrorKind::PeerLost, quoted(peer->name) + " is closing"));
    default:
      return give_up(peer, Error(ErrorKind::Refused,
                                 quoted(peer->name) + " refused the connection: " + failure.why));
  }
}

void Agent::unreachable(const std::shared_ptr<Peer>& peer, const Card& card) {
  std::string reasons;
  bool lost_before = false, last_attempt = false;
  {
    auto state = peer->state.lock();
    for (const auto& [transport, why] : state->choice) {
      reasons += (reasons.empty() ? "" : "; ") + transport + ": " + why;
    }
    lost_before = state->last_session == card.incarnation;
    last_attempt = ++state->attempts >= kAttempts;
  }
  if (lost_before || last_attempt) {
    return give_up(peer, Error(ErrorKind::PeerLost,
                               quoted(peer->name) + " cannot be reached (" + reasons + ")",
                               {.incarnation = number(card.incarnation)}));
  }
  seek_again(peer, "it cannot be reached (" + reasons + ")");
}

bool Agent::install(const std::shared_ptr<Peer>& peer, std::shared_ptr<transport::Link> link) {
  link = out_.workshop.decorate(std::move(link));
  auto session = std::make_shared<Session>(link, out_.clock, options_.limits, options_.detector,
                                           out_.handler, *this, out_.workshop.keep_alive());
  std::shared_ptr<Session> previous;
  bool stale = false;
  {
    auto state = peer->state.lock();
    stale = Peer::is_stale(*state, link->peer().incarnation);
    if (!stale) {
      previous = std::exchange(state->session, session);
      state->seeking = Peer::Seeking::No;
      state->attempts = 0;
      state->arriving = Deadline(TimePoint::min());
      state->loss.reset();
    }
  }
  if (stale) {
    link->send(wire::encode(wire::Goodbye{"declared lost", true}));
    link->close();
    return false;
  }
  changes_.fetch_add(1, std::memory_order_seq_cst);
  if (previous) {
    fading_.lock()->push_back(previous);
    previous->close(Error(ErrorKind::PeerLost, quoted(peer->name) + " has connected anew"));
  }
  if (on_connected && !closing()) on_connected(session->peer());
  out_.workshop.attach(std::move(link), session);  // who is there is known before it is heard
  if (closing()) {
    session->close(Error(ErrorKind::Invalid, "the node is closed"));
  } else {
    send_waiting(peer, session);
  }
  return true;
}

void Agent::rejoin(const std::string& told_by) {
  Card card;
  {
    auto self = self_.lock();
    if (std::exchange(self->rejoining, true)) return;
    card = self->card;
  }
  log::Line(log::Level::Warning, "agent")
      << quoted(told_by) << " had declared this node lost; rejoining as a new incarnation";
  const Error why(ErrorKind::PeerLost,
                  "this node had been declared lost by " + quoted(told_by) + " and rejoins");
  for (const auto& peer : all_peers()) {
    if (peer->name == card.name) continue;
    const auto session = peer->state.lock()->session;
    if (session) session->close(why);
  }
  out_.directory.join(std::move(card), [this](Result<Card> joined) {
    if (joined.ok() && on_rejoined && !closing()) on_rejoined(joined.value().incarnation);
    auto self = self_.lock();
    self->rejoining = false;
    if (!joined.ok()) {  // the next refusal tries again
      log::Line(log::Level::Warning, "agent") << "cannot rejoin: " << joined.error().message();
      return;
    }
    self->card = joined.value();
    self->identity.incarnation = self->card.incarnation;
  });
}

// ------------------------------------------------------------------------------- strangers

transport::Identity Agent::identity() const { return self_.lock()->identity; }

Incarnation Agent::incarnation() const { return self_.lock()->identity.incarnation; }

std::optional<wire::Refusal> Agent::admit(const wire::Hello& stranger) {
  using Reason = wire::RefusalReason;
  if (closing()) return wire::Refusal{Reason::Closing, "the node is closing"};
  if (!self_.lock()->started) return wire::Refusal{Reason::Busy, "the node is starting"};
  if (stranger.from == self_.lock()->identity.name) {
    return wire::Refusal{Reason::WrongName, "that is my own name"};
  }
  return std::nullopt;
}

// Whether there is, or should be, another connection to the same node, or a later life of it.
std::optional<wire::Refusal> Agent::object_to(const wire::Hello& stranger) {
  using Reason = wire::RefusalReason;
  const auto known = find_peer(stranger.from);
  if (!known) return std::nullopt;
  const std::string self = self_.lock()->identity.name;
  auto state = known->state.lock();
  if (Peer::is_stale(*state, stranger.incarnation)) {
    return wire::Refusal{Reason::DeclaredLost,
                         "incarnation " + std::to_string(number(stranger.incarnation)) + " of " +
                             quoted(stranger.from) + " was given up"};
  }
  if (state->session && stranger.incarnation == state->session->peer().incarnation) {
    const auto doubtful = state->session;
    state.unlock();
    probe(doubtful);
    return wire::Refusal{Reason::Duplicate, "already connected"};
  }
  if (state->seeking == Peer::Seeking::Connecting && self < stranger.from) {  // PEER-1
    return wire::Refusal{Reason::Duplicate, "a connection the other way round is being made"};
  }
  return std::nullopt;
}

// PEER-2
void Agent::probe(const std::shared_ptr<Session>& session) {
  const TimePoint now = out_.clock.now();
  if (!session->probe(now)) return;
  out_.timers.schedule(now + options_.detector.suspect_after, [this,
                                                               weak = std::weak_ptr(session)] {
    const auto probed = weak.lock();
    if (!probed || closing() || !probed->is_silent_since_probe()) return;
    const std::string& name = probed->peer().name;
    probed->close(Error(ErrorKind::PeerLost,
                        quoted(name) + " has connected anew, and was silent on its old connection",
                        {.node = name, .incarnation = number(probed->peer().incarnation)}));
  });
}

// On the control thread, as found() is: nothing comes between the two steps.
std::optional<wire::Refusal> Agent::welcome(const wire::Hello& stranger) {
  if (auto refusal = admit(stranger)) return refusal;
  if (auto refusal = object_to(stranger)) return refusal;
  peer(stranger.from)->state.lock()->arriving =
      Deadline::after(out_.clock, options_.connect_timeout);
  return std::nullopt;
}

void Agent::accepted(std::shared_ptr<transport::Link> link) {
  const auto from = peer(link->peer().name);
  const std::string transport(link->transport());
  if (install(from, std::move(link))) {
    from->state.lock()->choice[transport] = "chosen: by the peer";
  }
}

void Agent::turned_away(std::string_view) { turned_away_.fetch_add(1, std::memory_order_relaxed); }

void Agent::watch_writable(transport::Link& link) { out_.workshop.watch_writable(link); }

}  // namespace hawser::agent
