#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "hawser/agent/holding.h"
#include "hawser/agent/spinner.h"
#include "hawser/base/event.h"
#include "hawser/base/guarded.h"
#include "hawser/base/scheduler.h"
#include "hawser/transport/doorbell.h"
#include "hawser/transport/poll_seat.h"
#include "hawser/transport/poll_set.h"

namespace hawser::agent {

using transport::Task;

struct CrewOptions {
  std::size_t max_threads = 128;
  std::size_t max_queued = 100'000;
  Duration spin_limit = std::chrono::microseconds(50);
  // Calls are held back, to be written together, while more replies than these are awaited: who
  // waits for as many does not wait for the next one to be sent.
  int many_replies = 8;
  // Where they have been held back for longer, they are not for a while (Holding).
  Duration hold_limit = std::chrono::microseconds(200);
};

struct CrewStats {
  std::size_t threads = 0;
  std::size_t running = 0;  // inside user code
  std::size_t parked = 0;
  std::size_t queued = 0;
  std::uint64_t tasks_run = 0;
  std::uint64_t refused = 0;
};

// The threads of a node that move its bytes and run its handlers. There is no separate network
// thread: one hand sits on the poll seat, and runs a request that it reads itself. Before it does,
// another hand, an anchor, is asleep on the bell, so that frames are looked after meanwhile. Two
// hands sleep on the bell where there are so many: then the one that is woken by a ring can go on
// to run a request without waking another first.
//
//   CREW-1  At least one hand is a lookout: not in user code. It polls, is an anchor, or is on its
//           way to be. A hand goes into user code only if another lookout remains (step_away()),
//           and hands park only while there are anchors.
//   CREW-2  A hand that is the last lookout at the thread limit keeps looking and queues requests;
//           whoever returns from user code looks at the queue. A request whose chain of calls
//           already holds a hand is then refused with Overloaded: waiting for a thread could be
//           waiting for itself.
//   CREW-3  Everything submitted is run or refused, once. After stop() it is refused: what stop()
//           finds on a thread beside the hands, so that it need not wait for user code longer than
//           it is to; later, where it is submitted.
//   CREW-4  What a task leaves behind with post_last() is run by its own hand, after it has
//           returned and everything it owned is gone; no other hand is woken for it.
//   CREW-5  A thread that waits runs nothing (CALL-1), unless it is a helper: then it runs what it
//           has itself come by of the work it helps with, inside its wait. It has nothing left to
//           run when it goes to sleep.
//
// Thread-safe. The threads share ownership: one whose handler does not return in time is left
// behind by stop() and ends when it returns. A forked child of the process has none of them: it may
// not wait here.
class Crew final : public Scheduler, public std::enable_shared_from_this<Crew> {
 public:
  Crew(std::shared_ptr<transport::Doorbell> bell, std::shared_ptr<transport::PollSet> set,
       CrewOptions options);
  ~Crew() override;

  // Throws Error(Overloaded) when the system gives no threads; stop() must be called all the same.
  void start();
  // False when handlers were still running at the deadline.
  // Any thread may call it, at any time and again; a handler that does is not waited for.
  // Afterwards nobody polls.
  bool stop(Deadline deadline);

  void submit(std::shared_ptr<Task> task);
  void post(UniqueFunction<void()> task) override;
  // The same for a task that is known to return within microseconds.
  void post_brief(UniqueFunction<void()> task);
  // As post(), for the end of a task that has nothing more to do than to return (CREW-4): nobody
  // sees to `task` before that. On other threads it is post(). `task` should be brief.
  void post_last(UniqueFunction<void()> task);
  void post_beside(UniqueFunction<void()> task) override;
  bool wait(Event& event, Deadline deadline) override;
  // As wait() without moving bytes, for what takes work on other threads: they read what arrives
  // for it, and need not have it handed over.
  bool sleep(Event& event, Deadline deadline);
  // As wait(), for as long as looking on is worth more than sleeping; false when it is no longer.
  bool look_on(Event& event) {
    refuse_if_inherited();
    return look_on(event, Deadline::never());
  }

  // Replies that this node is waiting for; a waiter then comes back to poll soon.
  void expect_reply() { replies_expected_.fetch_add(1, std::memory_order_relaxed); }
  void reply_arrived() { replies_expected_.fetch_sub(1, std::memory_order_relaxed); }

  // A link holds back what was sent with more to come. True when somebody will flush it: who polls,
  // or comes back to the seat, or this thread when it waits again, as it did just now.
  bool held_back(std::shared_ptr<transport::Link> link);

  // While it lives, messages are known to be on their way: a hand polls at once, and looks on for
  // longer.
  class Expectation {
   public:
    explicit Expectation(std::shared_ptr<Crew> crew);
    ~Expectation();
    Expectation(const Expectation&) = delete;

   private:
    const std::shared_ptr<Crew> crew_;
  };

  // While it lives, waits of this thread do a certain work as well (CREW-5): what it waits for
  // takes that work, and another thread need not be woken for it.
  class Helper {
   public:
    explicit Helper(std::shared_ptr<Crew> crew);
    ~Helper();
    Helper(const Helper&) = delete;

    // What it helps with; any number but 0.
    void helps_with(std::uint64_t work) { work_ = work; }

   private:
    friend class Crew;
    const std::shared_ptr<Crew> crew_;
    Helper* const before_;
    std::uint64_t work_ = 0;
    std::vector<std::shared_ptr<Task>> tasks_;
  };
  // The helper that this thread is, if any.
  Helper* this_helper() const;
  // As post() or post_brief(), for a part of that work.
  void post_for(std::uint64_t work, UniqueFunction<void()> task, bool brief);

  // More is likely to come soon: whoever looks looks on for longer, for a while from `now`.
  void attend(TimePoint now);

  // This thread is in a task of the crew's, or helps with one: it may wait for what tasks wait for.
  bool runs_task() const;

  CrewStats stats() const;

 private:
  using Seat = transport::PollSeat;
  struct Hand {
    std::thread thread;
    std::thread::id id{};                 // also after the thread has been detached
    std::atomic<std::uint64_t> chain{0};  // of the task it runs
    std::atomic<bool> running{false};
    bool lends_seat = false;                           // its task is brief, apart from its waits
    std::vector<std::shared_ptr<Task>> left_behind{};  // by the task it runs; its own
  };
  struct Roster {
    std::list<Hand> hands;
    std::deque<std::shared_ptr<Task>> queue;
    std::vector<std::thread> finished;  // to be joined
    std::size_t parked = 0;
    std::size_t summoned = 0;  // parked hands that have been told to get up
    std::size_t anchors = 0;   // asleep on the bell
    bool stopping = false;
    bool seat_closed = false;  // stop() has it, for good
  };

  // What runs beside the hands, on a thread that is started for the first of it.
  struct Beside {
    std::deque<UniqueFunction<void()>> tasks;
    std::thread thread;
    std::thread::id id{};  // also after the thread has been detached
    bool stopping = false;
    bool ended = false;
  };
  void work_beside();
  bool stop_beside(Deadline deadline);

  void refuse_if_inherited() const;

  // Hands.
  bool spawn(Roster& roster);
  void work(Hand& hand);
  bool step_away();
  bool step_away(Roster& roster, bool replaced);
  bool one_lookout_fewer();
  bool no_thread_free() const;
  void run_task(Hand& hand, std::shared_ptr<Task> task);
  void run_in(Hand& hand, std::shared_ptr<Task> task);
  Hand* this_hand() const;

  // The poll seat.
  void lead(Hand& hand, bool just_served);
  bool take_in(transport::PollSet::Arrival& arrival, std::shared_ptr<Task>& task);
  bool looks_at_queue_next() const;
  bool run_seated(Hand& hand, std::shared_ptr<Task> task);
  void lend_seat();
  bool sit_down(Seat::Sitter me);
  bool try_leave(Seat::Sitter me, Seat::State polls);
  void flush();
  void vacate();

  // Anchors, and those who are not needed.
  bool anchor_or_park(Hand& hand);
  void anchor(Hand& hand);
  bool on_tick(Seat::Sitter me);
  bool park(Guarded<Roster>::Held& roster);

  // The queue.
  void enqueue(std::shared_ptr<Task> task, bool announce);
  void call_hand();
  std::shared_ptr<Task> take_queued();
  bool run_queued(Hand& hand);
  bool queue_can_be_served() const;
  bool waits_for_itself(const Roster& roster, const Task& task) const;
  void refuse_what_waits_for_itself();
  Error thread_limit_error() const;

  // Waiting.
  bool look_on(Event& event, Deadline deadline);
  bool waiter_may_yield();
  bool yield_to_pollers(Event& event);
  bool sit_down_to_wait(Seat::Sitter me);
  bool ask_for_seat(Seat::Sitter me);
  void poll_while_waiting(Event& event, Deadline deadline, Seat::Sitter me);
  void leave_waiting(Seat::Sitter me);
  void give_back_lent_seat();
  void tell_who_waits_for_seat();
  bool drain(int at_most);
  void run_tasks_of(Helper& helper);
  bool help_seated(Helper& helper, Seat::Sitter me);
  // A node that got a request this recently is better polled by a hand, which can run the next one.
  static constexpr std::int64_t kRequestsAreComingNs = 200'000;
  bool had_request_within(std::int64_t ns) const;
  bool awaits_many_replies() const {
    return replies_expected_.load(std::memory_order_relaxed) > options_.many_replies;
  }
  TimePoint attentive_until() const { return attentive_until_.load(std::memory_order_relaxed); }

  const CrewOptions options_;
  const std::uint64_t fork_depth_;
  const std::shared_ptr<transport::Doorbell> bell_;
  const std::shared_ptr<transport::PollSet> set_;
  Seat seat_;
  Spinner spinner_;  // holder of the seat
  Wakes wakes_;      // holder of the seat
  struct Ticking {
    std::uint64_t lends = 0;  // at the last tick
    int idle = 0;             // ticks without a lend
  };
  Guarded<Ticking> ticking_;

  Guarded<Beside> beside_;
  Condition beside_changed_;
  mutable Guarded<Roster> roster_;
  Condition summons_;
  Condition ended_;                           // a hand, or the use of the seat while stopping
  std::atomic<std::size_t> lookouts_{0};      // hands that are not in user code
  std::atomic<std::size_t> threads_{0};       // hands that are not about to end
  std::atomic<bool> no_more_threads_{false};  // the system refused one; until a hand comes back
  std::atomic<std::size_t> anchors_{0};       // copies of what the roster says, for the fast path
  std::atomic<std::size_t> queued_{0};
  std::atomic<bool> stopping_{false};

  std::atomic<std::int64_t> replies_expected_{0};
  std::atomic<std::int64_t> expectations_{0};
  std::atomic<int> seat_wanted_{0};  // by so many waiters, of the hand that has it
  std::atomic<TimePoint> attentive_until_{TimePoint::min()};
  std::atomic<std::int64_t> last_request_ns_{0};
  std::atomic<int> waits_without_yield_{0};
  Holding holding_;
  std::atomic<std::uint64_t> tasks_run_{0};
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace hawser::agent
