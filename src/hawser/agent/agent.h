#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hawser/agent/directory.h"
#include "hawser/agent/peer.h"
#include "hawser/agent/session.h"
#include "hawser/base/clock.h"
#include "hawser/base/guarded.h"
#include "hawser/base/limits.h"
#include "hawser/base/random.h"
#include "hawser/base/timers.h"
#include "hawser/transport/transport.h"

namespace hawser::agent {

struct AgentOptions {
  FailureDetectorOptions detector;
  Limits limits;
  Duration connect_timeout = std::chrono::seconds(5);        // one attempt by one transport
  Duration look_up_interval = std::chrono::milliseconds(5);  // at first; doubles up to 200 ms
};

// Where links are looked after and tasks run: the poll set and the crew in production, the
// simulator's event queue in the simulator.
class Workshop {
 public:
  virtual ~Workshop() = default;
  virtual void attach(std::shared_ptr<transport::Link> link,
                      std::shared_ptr<transport::FrameSink> sink) = 0;
  virtual void watch_writable(transport::Link& link) = 0;
  // As Host::held_back().
  virtual bool held_back(std::shared_ptr<transport::Link> /*link*/) { return false; }
  // The link to use in place of one that was just made; the same, unless things are to go wrong.
  virtual std::shared_ptr<transport::Link> decorate(std::shared_ptr<transport::Link> link) {
    return link;
  }
  virtual void outstanding_changed(int by) = 0;
  // Once per heartbeat interval, on the control thread: show that we live.
  virtual void beat() = 0;
  // What a session, and so a handler that is still running, needs to stay alive.
  virtual std::shared_ptr<void> keep_alive() = 0;
};

// A request on its way: what cancel() needs to find it.
struct CallHandle {
  // Sent at once:
  std::weak_ptr<Session> session;
  CallId id{};
  // Or it had to wait for a connection:
  std::shared_ptr<Guarded<CallPlace>> place;
};

struct Request {
  std::string_view to;
  wire::Call message;  // without id and budget; `function` need only live until request() returns
  TimePoint started;   // now, but for what it took to get here
  Deadline deadline;
  Duration budget = Duration::max();  // as the caller gave it, for messages
  Incarnation only_to{};              // zero: whoever has the name
};

struct PeerReport {
  std::string name;
  std::string state;  // "connected", "suspect", "seeking", "lost", "unknown"
  std::uint64_t incarnation = 0;
  std::uint64_t given_up = 0;  // up to this incarnation it is not let in again
  std::string transport;
  std::vector<std::string> choice;  // why this transport, and why not the others
  std::optional<Duration> round_trip;
  std::optional<Duration> since_heard;
  transport::LinkStats traffic;
  std::size_t outgoing = 0;
  std::size_t incoming = 0;
  std::size_t put_aside = 0;      // of the incoming: they wait for the peer to take what is queued
  std::size_t waiting = 0;        // calls that wait for the connection
  std::size_t waiting_bytes = 0;  // of their arguments
};

// How much is going on at a node, for those who want to know when nothing is.
struct Activity {
  std::uint64_t busy = 0;      // calls outstanding or being served
  std::uint64_t sent = 0;      // calls, over connections that are open
  std::uint64_t received = 0;  // the same
  // Connections made and lost since the start: while it stays the same, the counts above only grow.
  std::uint64_t changes = 0;

  bool operator==(const Activity&) const = default;
};

// The node as its peers see it: finds them, connects, calls, notices when they are gone. Knows
// nothing of tensors, functions or threads. All time, chance and I/O is injected, so the simulator
// runs this very class.
//
// Thread-safe; never blocks. Callbacks run on whichever thread learnt the news, never under a lock.
class Agent final : public transport::Host, public SessionEvents {
 public:
  struct Surroundings {
    const Clock& clock;
    Timers& timers;
    Directory& directory;
    Workshop& workshop;
    RequestHandler& handler;
  };
  Agent(AgentOptions options, Surroundings surroundings);
  ~Agent() override;

  // Who this node is, as far as it is known before it has joined; transports ask for it.
  void introduce(transport::Identity identity);
  // `transports` in the order of preference; not owned, and closed before the agent is destroyed.
  // `self` is what calls to this very node travel on. Until then nobody is let in and nothing
  // called.
  void start(transport::Identity identity, Card card, std::vector<transport::Transport*> transports,
             std::shared_ptr<transport::Link> self);

  // Sends a request, connecting first where needed. `on_answer` is called exactly once. With
  // `no_room` the request may wait, as in Session::call(): when that is set, nothing was done.
  CallHandle request(Request&& request, AnswerHandler&& on_answer,
                     std::shared_ptr<Event>* no_room = nullptr);
  // Completes the call with `why` and tells the callee. No effect once it is answered.
  static void cancel(const CallHandle& handle, const Error& why);

  // No new calls in or out; everything outstanding fails with `why`; says goodbye. Idempotent.
  void close(Error why);

  // For protocols that are not calls. Sends to a connected peer; false when there is no connection,
  // and then one is sought.
  bool send_to(const std::string& peer, wire::OutFrame frame);
  // To that incarnation and no other; false when there is no connection to it.
  bool send_to(const std::string& peer, Incarnation incarnation, const wire::References& message);
  // Whom there is a connection to; if nobody, one is sought, which ends in one or in on_given_up
  // (unless nobody of that name has joined yet: then ask again).
  std::optional<Incarnation> reach(const std::string& peer);
  // Gives up a peer that is not connected: whoever it was so far, up to `known` if that is later,
  // is not let in again, and told so. The last of those incarnations, zero if there was none;
  // nothing when it is connected.
  std::optional<Incarnation> bar(const std::string& peer, Incarnation known = {});
  // Ends the connection to an incarnation that was given up all the same; it then rejoins.
  void tell_lost(const std::string& peer, Incarnation incarnation);

  // Messages that are not about one call, and losses, for protocols on top. Set before start().
  std::function<void(const transport::PeerIdentity& peer, wire::Message)> on_control_message;
  // There is a connection; nothing that it carries has been looked at yet.
  std::function<void(const transport::PeerIdentity& peer)> on_connected;
  // A connection is gone. The peer may be there still, and another connection be made at once.
  std::function<void(const std::string& peer, const Error& why)> on_peer_lost;
  // An incarnation was silent for too long and is given up for good. Before on_peer_lost.
  std::function<void(const std::string& peer, Incarnation incarnation)> on_barred;
  // This node had been given up, and goes on as a new incarnation. There are no connections (but to
  // itself) when this is called, and none is made before it returns.
  std::function<void(Incarnation incarnation)> on_rejoined;
  // The peer cannot be reached: a call to it would fail now. It may come back all the same.
  std::function<void(const std::string& peer, const Error& why)> on_given_up;

  std::vector<PeerReport> report_peers() const;
  std::vector<CallInFlight> list_calls() const;
  std::uint64_t turned_away() const { return turned_away_.load(std::memory_order_relaxed); }
  // Calls are counted over connections to these nodes; without any, over all.
  using Names = std::set<std::string, std::less<>>;
  Activity activity(const Names& among = {}) const;
  Incarnation incarnation() const;

  // transport::Host
  transport::Identity identity() const override;
  std::optional<wire::Refusal> admit(const wire::Hello& stranger) override;
  std::optional<wire::Refusal> welcome(const wire::Hello& stranger) override;
  void accepted(std::shared_ptr<transport::Link> link) override;
  void turned_away(std::string_view why) override;
  void watch_writable(transport::Link& link) override;
  bool held_back(std::shared_ptr<transport::Link> link) override {
    return out_.workshop.held_back(std::move(link));
  }

  // SessionEvents
  void session_closed(const std::shared_ptr<Session>& session) override;
  void control_message(const std::shared_ptr<Session>& session, wire::Message message) override;
  void watch_deadline(Deadline deadline) override;
  void outstanding_changed(int by) override;

 private:
  struct Self {
    transport::Identity identity;
    Card card;
    bool started = false;
    bool rejoining = false;
  };
  // Peers are never forgotten: what this returns stays.
  const std::shared_ptr<Peer>& peer(std::string_view name);
  std::shared_ptr<Peer> find_peer(std::string_view name) const;
  std::vector<std::shared_ptr<Peer>> all_peers() const;

  // False when the link leads to an incarnation that has been given up; it is told so then.
  bool install(const std::shared_ptr<Peer>& peer, std::shared_ptr<transport::Link> link);
  void send_waiting(const std::shared_ptr<Peer>& peer, const std::shared_ptr<Session>& session);
  void look_up(const std::shared_ptr<Peer>& peer);
  void found(const std::shared_ptr<Peer>& peer, Result<std::optional<Card>> card);
  void directory_failed(const std::shared_ptr<Peer>& peer, const Error& why);
  void try_transport(const std::shared_ptr<Peer>& peer, Card card, std::size_t which);
  void connected(const std::shared_ptr<Peer>& peer, Card card, std::size_t which,
                 transport::ConnectOutcome outcome);
  void unreachable(const std::shared_ptr<Peer>& peer, const Card& card);
  void refused(const std::shared_ptr<Peer>& peer, const transport::ConnectFailure& failure);
  enum class Patience { Fresh, AsBefore };  // how many attempts are left
  void seek(const std::shared_ptr<Peer>& peer, Patience patience);
  void seek_again(const std::shared_ptr<Peer>& peer, std::string waiting_for);
  void give_up(const std::shared_ptr<Peer>& peer, const Error& why);
  void rejoin(const std::string& told_by);
  std::optional<wire::Refusal> object_to(const wire::Hello& stranger);
  void probe(const std::shared_ptr<Session>& session);

  void sweep();
  void check_health();
  bool closing() const { return closing_.load(std::memory_order_seq_cst); }

  const AgentOptions options_;
  const Surroundings out_;
  std::vector<transport::Transport*> transports_;  // set by start()
  mutable Guarded<Self> self_;
  mutable Guarded<std::map<std::string, std::shared_ptr<Peer>, std::less<>>> peers_;
  std::atomic<bool> closing_{false};
  std::atomic<std::int64_t> sweep_due_ns_{INT64_MAX};
  std::atomic<std::uint64_t> turned_away_{0};
  std::atomic<std::uint64_t> changes_{0};
  // Closed or replaced, with calls that have not ended yet.
  mutable Guarded<std::vector<std::weak_ptr<Session>>> fading_;
};

}  // namespace hawser::agent
