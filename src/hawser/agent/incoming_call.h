#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "hawser/base/clock.h"
#include "hawser/base/guarded.h"
#include "hawser/base/unique_function.h"
#include "hawser/transport/link.h"
#include "hawser/transport/poll_set.h"
#include "hawser/wire/message.h"

namespace hawser::agent {

class IncomingCall;

// What is known about a request before it runs.
struct Preparation {
  std::shared_ptr<void> target{};    // whatever the handler wants to find again in handle()
  bool brief = false;                // known to return within microseconds
  std::shared_ptr<void> attached{};  // dies with the call
  // To be handled on the thread that received it, and never refused for load: messages of
  // protocols that others wait for.
  bool at_once = false;
};

// Who sent a request.
struct Caller {
  std::string name;
  Incarnation incarnation{};
};

// Runs requests: the upper layers.
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  // On the thread that received the request: must be quick, and not run user code.
  virtual Preparation prepare(wire::ReceivedCall& call, const transport::PeerIdentity& from) = 0;
  // An answer with references or with a note of autograd has been received; likewise, and whether
  // or not anybody still wants the answer.
  virtual void answer_received(wire::ReceivedPayload& payload, wire::Notes& notes,
                               const transport::PeerIdentity& from) = 0;
  // On the thread that received the request, once it is entered: must be quick, and not run user
  // code. True when there is nothing to run for it: it is answered, or will be when something else
  // has happened.
  virtual bool needs_no_run(const std::shared_ptr<IncomingCall>& /*call*/) { return false; }
  // On a hand of the crew: runs user code. Answers through `call`, now or later, from any thread.
  virtual void handle(std::shared_ptr<IncomingCall> call) = 0;
};

// Where answers go: the session the call came from. False when it is closed.
class AnswerPath {
 public:
  virtual ~AnswerPath() = default;
  virtual bool send_reply(wire::Reply&& reply) = 0;
  // The same, when nobody is likely to wait for it: a caller that sleeps is not woken.
  virtual bool send_reply_at_leisure(wire::Reply&& reply) { return send_reply(std::move(reply)); }
  virtual bool send_failure(wire::Failure&& failure) = 0;
  virtual bool is_past(Deadline deadline) const = 0;
  virtual void call_answered(CallId id) = 0;
  // Whether the call must not start now; it is then run again when it may (FLOW-2).
  virtual bool put_aside(const std::shared_ptr<IncomingCall>& call) = 0;
};

// A request that was received, from reading its frame to its answer.
//
//   CALL-3  Every request is answered exactly once, or its connection is gone. Dropping the last
//           reference to an unanswered call answers it with an error.
//
// Thread-safe.
class IncomingCall final : public transport::Task,
                           public std::enable_shared_from_this<IncomingCall> {
 public:
  IncomingCall(wire::InFrame&& frame, wire::ReceivedCall&& call, Caller caller, Deadline deadline,
               std::shared_ptr<AnswerPath> path, RequestHandler& handler, Preparation preparation);
  ~IncomingCall() override;

  const wire::ReceivedCall& call() const { return call_; }
  wire::ReceivedPayload& payload() { return call_.payload; }  // may be moved from, once
  const Caller& caller() const { return caller_; }
  const std::shared_ptr<void>& target() const { return preparation_.target; }
  const std::shared_ptr<void>& attached() const { return preparation_.attached; }
  Deadline deadline() const { return deadline_; }

  // The first one counts. False when the call had been answered, or nobody waits any more. What
  // failed because its time was up is not told: the caller's was up before, and he knows.
  bool reply(wire::Payload&& payload, wire::Notes&& notes = {});
  bool reply_at_leisure(wire::Payload&& payload, wire::Notes&& notes = {});
  bool fail(Error error, wire::Payload&& payload = {},
            std::optional<wire::TraceReport> report = std::nullopt);

  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  // Called once if the call is cancelled while unanswered, at once if it has been; on the thread
  // that learns of it: must not block. Dropped when the call is answered.
  void on_cancel(UniqueFunction<void()> callback);

  // The caller has cancelled, its time is up, or it is lost: nobody wants the answer.
  void cancel();
  // It was never a call of its own (its id was taken): it is dropped without an answer.
  void disown() { answered_.store(true, std::memory_order_release); }

  // transport::Task
  void run() override;
  void refuse(const Error& why) override { fail(why); }
  ChainId chain() const override { return call_.chain; }
  bool brief() const override { return preparation_.brief; }

 private:
  bool claim_answer();

  const wire::InFrame frame_;  // call_ points into it
  wire::ReceivedCall call_;
  const Caller caller_;
  const Deadline deadline_;
  const std::shared_ptr<AnswerPath> path_;
  RequestHandler& handler_;
  const Preparation preparation_;
  std::atomic<bool> answered_{false};
  std::atomic<bool> cancelled_{false};
  Guarded<std::vector<UniqueFunction<void()>>> on_cancel_;
};

}  // namespace hawser::agent
