#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hawser/agent/call_table.h"
#include "hawser/agent/failure_detector.h"
#include "hawser/agent/incoming_call.h"
#include "hawser/base/clock.h"
#include "hawser/base/event.h"
#include "hawser/base/guarded.h"
#include "hawser/base/limits.h"
#include "hawser/transport/link.h"
#include "hawser/transport/poll_set.h"

namespace hawser::agent {

class Session;

// What a session tells the agent. Never called under the session's lock.
class SessionEvents {
 public:
  virtual ~SessionEvents() = default;
  // The connection is gone; everything outstanding on it has been failed.
  virtual void session_closed(const std::shared_ptr<Session>& session) = 0;
  // A message that is not about one call.
  virtual void control_message(const std::shared_ptr<Session>& session, wire::Message message) = 0;
  // A deadline that the sweeper must know of.
  virtual void watch_deadline(Deadline deadline) = 0;
  // A call was opened (+1) or has left the table (-1).
  virtual void outstanding_changed(int by) = 0;
};

struct CallInFlight {
  CallId id{};
  std::string function;
  std::string peer;
  Duration age{};
  std::optional<Duration> remaining;  // absent: no deadline
  bool incoming = false;
};

// One connection to one incarnation of one peer: two tables of calls, one of each direction, and
// what is known about the peer's health. Open until the link closes; from then on the reason
// answers every use.
//
//   FLOW-1  Calls that may wait do not make the bytes of unanswered calls exceed
//           max_bytes_in_flight_per_peer; who found no room for one is woken by every call that
//           leaves afterwards, and by the end.
//   FLOW-2  No call of the peer is started while more than max_bytes_queued_per_peer wait to be
//           sent to it, and every one that was put aside for that is started when there are fewer.
//           The peer's frames are read all the same, so that two nodes cannot wait for each other;
//           and what has been started is answered, however large the answer.
//
// Thread-safe. Frames come from the holder of the poll seat, calls from any thread, health checks
// and deadlines from the control thread.
class Session final : public transport::FrameSink,
                      public AnswerPath,
                      public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<transport::Link> link, const Clock& clock, const Limits& limits,
          FailureDetectorOptions detector, RequestHandler& handler, SessionEvents& events,
          std::shared_ptr<void> keep_alive);

  const transport::PeerIdentity& peer() const { return link_->peer(); }
  transport::Link& link() const { return *link_; }

  // Sends a call. Whatever happens, `call.on_answer` is called exactly once; the id is for
  // cancel(). A one-way call is answered, with nothing, as soon as it is sent. `message.function`
  // need only live until this returns.
  //
  // With `no_room` the call may wait (FLOW-1): when there is no room for it, nothing is done, both
  // arguments stay as they are, and `no_room` is what happens when it is worth trying again. A
  // single call that is larger than the limit is sent alone. A one-way call never waits.
  CallId call(OutstandingCall&& call, wire::Call&& message,
              std::shared_ptr<Event>* no_room = nullptr);
  // Completes the call with Cancelled and tells the peer. No effect when it is already answered.
  void cancel(CallId id, const Error& why);
  // False when closed.
  bool send(wire::OutFrame&& frame);

  // Fails and cancels what is overdue; the earliest deadline that remains.
  Deadline sweep(TimePoint now);
  // Once per heartbeat interval: judges the peer, and sends a heartbeat where one is needed: to
  // show that we live, or to measure the round trip of a link that is new or has been used since.
  Liveness check_health(TimePoint now);
  // Asks for a sign of life on this very connection; a pulse is none. False when the last one that
  // was asked for has not come yet.
  bool probe(TimePoint now);
  // Nothing has arrived since probe(). Ends the asking.
  bool is_silent_since_probe();

  // Closes the link; `why` answers all calls.
  void close(Error why);

  // Answers calls that were put aside with an error. They keep the session alive until its end.
  void drop_put_aside();

  std::optional<Error> closed() const;
  Liveness liveness() const { return liveness_.load(std::memory_order_relaxed); }
  Duration since_heard(TimePoint now) const;
  std::optional<Duration> round_trip() const;
  std::size_t outstanding() const { return tables_.lock()->outgoing.size(); }
  std::size_t serving() const { return tables_.lock()->incoming.size(); }
  // Calls of the peer that wait for it to take what is queued.
  std::size_t calls_put_aside() const { return tables_.lock()->aside.size(); }
  std::uint64_t calls_sent() const { return tables_.lock()->calls_sent; }
  std::uint64_t calls_received() const { return tables_.lock()->calls_received; }
  void list_calls(TimePoint now, std::vector<CallInFlight>& out) const;

  // transport::FrameSink
  std::shared_ptr<transport::Task> on_frame(wire::InFrame frame) override;
  std::shared_ptr<transport::Task> resume() override;
  void on_closed() override;

  // AnswerPath
  bool send_reply(wire::Reply&& reply) override;
  bool send_reply_at_leisure(wire::Reply&& reply) override;
  bool send_failure(wire::Failure&& failure) override;
  bool is_past(Deadline deadline) const override { return deadline.passed(clock_.now()); }
  void call_answered(CallId id) override;
  bool put_aside(const std::shared_ptr<IncomingCall>& call) override;

 private:
  struct Serving {
    std::weak_ptr<IncomingCall> call;
    TimePoint started;
    Deadline deadline;
  };
  struct Tables {
    explicit Tables(std::size_t limit) : outgoing(limit) {}
    CallTable outgoing;
    std::unordered_map<std::uint64_t, Serving> incoming;
    std::deque<std::shared_ptr<IncomingCall>> aside;  // the oldest first (FLOW-2)
    std::uint64_t calls_sent = 0;
    std::uint64_t calls_received = 0;
    std::vector<std::shared_ptr<Event>> wanting_room;
    std::optional<Error> closed;  // the state: open, or closed for this reason

    bool has_room(std::size_t bytes, const Limits& limits) const {
      const std::size_t unanswered = outgoing.bytes();
      return unanswered == 0 || unanswered + bytes <= limits.max_bytes_in_flight_per_peer;
    }
  };

  std::shared_ptr<transport::Task> accept_call(wire::InFrame&& frame, wire::ReceivedCall&& call);
  void complete(CallId id, Answer&& answer);
  std::optional<OutstandingCall> take(CallId id);
  bool backlogged() const { return link_->backlogged(limits_.max_bytes_queued_per_peer); }
  void cancel_incoming(CallId id);
  void end(const Error& why);
  std::uint64_t calls_so_far() const;
  Error lost_error(const std::string& why) const;

  const std::uint64_t fork_depth_;
  const std::shared_ptr<void> keep_alive_;  // what the references below point into; dies last
  const std::shared_ptr<transport::Link> link_;
  const Clock& clock_;
  const Limits& limits_;
  RequestHandler& handler_;
  SessionEvents& events_;
  mutable Guarded<Tables> tables_;
  std::atomic<bool> any_aside_{false};  // written under the lock

  std::atomic<std::int64_t> round_trip_ns_{-1};
  std::atomic<Liveness> liveness_{Liveness::Alive};
  struct Health {
    FailureDetector detector;
    std::uint64_t bytes_received = 0;  // at the last check
    std::uint64_t frames_sent = 0;
    std::optional<std::uint64_t> pulse{};
    std::optional<TimePoint> measured{};  // when the round trip was, last
    std::uint64_t calls_then = 0;
    std::optional<std::uint64_t> bytes_at_probe{};  // received, while a sign of life is asked for
  };
  mutable Guarded<Health> health_;
};

}  // namespace hawser::agent
