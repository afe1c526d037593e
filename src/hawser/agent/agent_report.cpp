#include <utility>

#include "hawser/agent/agent.h"

// What an agent tells about itself.
namespace hawser::agent {

Activity Agent::activity(const Names& among) const {
  Activity activity;
  activity.changes = changes_.load(std::memory_order_seq_cst);
  for (const auto& peer : all_peers()) {
    auto state = peer->state.lock();
    activity.busy += state->waiting.size() + state->departing;
    if (!state->session) continue;
    activity.busy += state->session->outstanding() + state->session->serving();
    if (!among.empty() && !among.contains(peer->name)) continue;
    activity.sent += state->session->calls_sent();
    activity.received += state->session->calls_received();
  }
  std::erase_if(*fading_.lock(), [&](const std::weak_ptr<Session>& fading) {
    const auto session = fading.lock();
    const std::size_t left = session ? session->outstanding() + session->serving() : 0;
    activity.busy += left;
    return left == 0;
  });
  return activity;
}

std::vector<PeerReport> Agent::report_peers() const {
  const TimePoint now = out_.clock.now();
  std::vector<PeerReport> reports;
  for (const auto& peer : all_peers()) {
    PeerReport report;
    report.name = peer->name;
    std::shared_ptr<Session> session;
    {
      auto state = peer->state.lock();
      session = state->session;
      report.waiting = state->waiting.size();
      report.waiting_bytes = state->waiting_bytes;
      for (const auto& [transport, why] : state->choice) {
        report.choice.push_back(transport + ": " + why);
      }
      report.state = state->seeking != Peer::Seeking::No ? "seeking"
                     : state->loss                       ? "lost"
                                                         : "unknown";
      if (state->last_session) report.incarnation = number(*state->last_session);
      report.given_up = number(state->barred);
    }
    if (session) {
      report.state = session->liveness() == Liveness::Alive ? "connected" : "suspect";
      report.incarnation = number(session->peer().incarnation);
      report.transport = session->link().transport();
      report.round_trip = session->round_trip();
      report.since_heard = session->since_heard(now);
      report.traffic = session->link().stats();
      report.outgoing = session->outstanding();
      report.incoming = session->serving();
      report.put_aside = session->calls_put_aside();
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

std::vector<CallInFlight> Agent::list_calls() const {
  const TimePoint now = out_.clock.now();
  std::vector<CallInFlight> calls;
  for (const auto& peer : all_peers()) {
    std::shared_ptr<Session> session;
    {
      auto state = peer->state.lock();
      session = state->session;
      for (const WaitingCall& waiting : state->waiting) {
        std::optional<Duration> remaining;
        if (!waiting.call.deadline.is_never()) remaining = waiting.call.deadline.remaining(now);
        calls.push_back({CallId{}, waiting.call.function, peer->name, now - waiting.call.started,
                         remaining, false});
      }
    }
    if (session) session->list_calls(now, calls);
  }
  return calls;
}

}  // namespace hawser::agent
