#include "hawser/agent/crew.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "hawser/agent/crew_thread.h"
#include "hawser/base/log.h"
#include "hawser/base/process_forks.h"

namespace hawser::agent {
namespace {

using transport::PollSeat;

constexpr Duration kParkedFor = std::chrono::seconds(5);  // then a surplus hand ends
constexpr std::size_t kFewestHands = 2;                   // one polls, one is an anchor
constexpr std::size_t kMostAnchors = 2;
constexpr int kIdleTicks = 16;
// A thread that has waited this recently will wait again.
constexpr std::int64_t kWaitsAgainWithinNs = 10'000'000;

// A task that should not throw, and does.
void log_thrown() {
  try {
    throw;
  } catch (const std::exception& error) {
    log::Line(log::Level::Error, "agent") << "a task threw: " << error.what();
  } catch (...) {
    log::Line(log::Level::Error, "agent") << "a task threw something";
  }
}

struct TakingIn {
  explicit TakingIn(const Crew* crew)
      : thread(CrewThread::here()), before(std::exchange(thread.taking_in, crew)) {}
  ~TakingIn() { thread.taking_in = before; }
  TakingIn(const TakingIn&) = delete;
  CrewThread& thread;
  const Crew* const before;
};

// While it lives, threads that are started block all signals: those belong to the program's own.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Crew::Crew(std::shared_ptr<transport::Doorbell> bell, std::shared_ptr<transport::PollSet> set,
           CrewOptions options)
    : options_(options),
      fork_depth_(fork_depth()),
      bell_(std::move(bell)),
      set_(std::move(set)),
      spinner_(options.spin_limit),
      holding_(options.hold_limit) {
  if (options_.max_threads < kFewestHands) {
    throw Error(ErrorKind::Invalid, "max_threads must be at least " + std::to_string(kFewestHands) +
                                        ", got " + std::to_string(options_.max_threads));
  }
}

Crew::~Crew() = default;

void Crew::refuse_if_inherited() const {
  if (fork_depth() == fork_depth_) return;
  throw Error(ErrorKind::Invalid, "the node belongs to the parent process");
}

void Crew::start() {
  auto roster = roster_.lock();
  for (std::size_t i = 0; i < kFewestHands; ++i) {
    if (!spawn(*roster)) throw Error(ErrorKind::Overloaded, "cannot start the node's threads");
  }
}

bool Crew::stop(Deadline deadline) {
  const auto me = CrewThread::here().sitter();
  stopping_.store(true, std::memory_order_seq_cst);
  std::deque<std::shared_ptr<Task>> unrun;
  std::vector<std::thread> finished;
  bool all_ended = true;
  {
    auto roster = roster_.lock();
    roster->stopping = true;
    unrun.swap(roster->queue);
    queued_.store(0, std::memory_order_seq_cst);
    bell_->ring();
    summons_.notify_all();
  }
  // Before anybody is waited for, who may be waiting for just this.
  for (auto& task : unrun) {
    post_beside([task = std::move(task)] {
      task->refuse(Error(ErrorKind::Invalid, "the node is closed"));
    });
  }
  {
    auto roster = roster_.lock();
    const auto others_ended = [&] {
      return std::all_of(roster->hands.begin(), roster->hands.end(),
                         [](const Hand& hand) { return hand.id == std::this_thread::get_id(); });
    };
    all_ended = ended_.wait_until(roster, deadline, others_ended);
    // Whoever still polls looks at `stopping` in every round. What handlers have lent is stolen.
    ended_.wait(roster, [&] {
      return roster->seat_closed || seat_.take(me, Seat::State::HandPolls) ||
             seat_.steal(me, Seat::State::HandPolls);
    });
    roster->seat_closed = true;
    wakes_.wake();
    finished.swap(roster->finished);
    for (Hand& hand : roster->hands) {
      if (hand.thread.joinable()) hand.thread.detach();
    }
  }
  for (std::thread& thread : finished) thread.join();
  return stop_beside(deadline) && all_ended;
}

// ------------------------------------------------------------------------------- beside the hands

void Crew::post_beside(UniqueFunction<void()> task) {
  {
    auto beside = beside_.lock();
    if (!beside->stopping) {
      try {
        if (!beside->thread.joinable()) {
          const SignalsBlocked here;
          beside->thread = std::thread([self = shared_from_this()] {
            ::pthread_setname_np(::pthread_self(), "hawser-beside");
            self->work_beside();
          });
          beside->id = beside->thread.get_id();
        }
        beside->tasks.push_back(std::move(task));
        beside_changed_.notify_all();
        return;
      } catch (const std::system_error& refused) {
        log::Line(log::Level::Warning, "agent") << "cannot start a thread: " << refused.what();
      }
    }
  }
  task();
}

void Crew::work_beside() {
  auto beside = beside_.lock();
  for (;;) {
    beside_changed_.wait(beside, [&] { return beside->stopping || !beside->tasks.empty(); });
    if (beside->tasks.empty()) break;
    UniqueFunction<void()> task = std::move(beside->tasks.front());
    beside->tasks.pop_front();
    beside.unlock();
    try {
      task();
    } catch (...) {
      log_thrown();
    }
    task = nullptr;
    beside.lock();
  }
  beside->ended = true;
  beside_changed_.notify_all();
}

// False when something was still running at the deadline; it is left behind then.
bool Crew::stop_beside(Deadline deadline) {
  std::thread thread;
  bool ended = true;
  {
    auto beside = beside_.lock();
    beside->stopping = true;
    beside_changed_.notify_all();
    if (beside->id == std::thread::id()) return true;
    const bool is_itself = beside->id == std::this_thread::get_id();
    if (!is_itself) {
      ended = beside_changed_.wait_until(beside, deadline, [&] { return beside->ended; });
    }
    thread = std::move(beside->thread);
    if (thread.joinable() && (is_itself || !ended)) thread.detach();
  }
  if (thread.joinable()) thread.join();
  return ended;
}

// ------------------------------------------------------------------------------- hands

// False when the system has no thread to give.
bool Crew::spawn(Roster& roster) {
  Hand& hand = roster.hands.emplace_back();
  try {
    const SignalsBlocked here;
    hand.thread = std::thread([self = shared_from_this(), &hand] {
      ::pthread_setname_np(::pthread_self(), "hawser-hand");
      self->work(hand);
    });
  } catch (const std::system_error& refused) {
    roster.hands.pop_back();
    no_more_threads_.store(true, std::memory_order_seq_cst);
    log::Line(log::Level::Warning, "agent")
        << "cannot start thread " << roster.hands.size() + 1 << ": " << refused.what();
    return false;
  }
  hand.id = hand.thread.get_id();
  lookouts_.fetch_add(1, std::memory_order_seq_cst);
  threads_.fetch_add(1, std::memory_order_seq_cst);
  return true;
}

void Crew::work(Hand& hand) {
  const auto me = CrewThread::here().sitter();
  bool just_served = false;
  while (!stopping_.load(std::memory_order_seq_cst)) {
    if (run_queued(hand)) {
      just_served = true;
    } else if (just_served && sit_down(me)) {
      lead(hand, true);
      just_served = false;
    } else if (anchor_or_park(hand)) {
      break;
    } else {
      just_served = false;
    }
  }
  if (stopping_.load(std::memory_order_relaxed)) bell_->ring();  // one ring wakes one anchor
  std::vector<std::thread> ended_before;
  {
    auto roster = roster_.lock();
    ended_before.swap(roster->finished);
    if (hand.thread.joinable()) roster->finished.push_back(std::move(hand.thread));
    roster->hands.remove_if([&hand](const Hand& one) { return &one == &hand; });
    ended_.notify_all();
  }
  for (std::thread& thread : ended_before) thread.join();
}

bool Crew::no_thread_free() const {
  return lookouts_.load(std::memory_order_seq_cst) < 2 &&
         (threads_.load(std::memory_order_seq_cst) >= options_.max_threads ||
          no_more_threads_.load(std::memory_order_seq_cst));
}

// Never takes the last one.
bool Crew::one_lookout_fewer() {
  std::size_t lookouts = lookouts_.load(std::memory_order_seq_cst);
  while (lookouts >= 2) {
    if (lookouts_.compare_exchange_weak(lookouts, lookouts - 1, std::memory_order_seq_cst)) {
      return true;
    }
  }
  return false;
}

// CREW-1. Called by a lookout before it goes into user code; run_task() makes it one again. False
// when it has to stay.
bool Crew::step_away() {
  const bool replaced = one_lookout_fewer();
  if (replaced && anchors_.load(std::memory_order_seq_cst) != 0) return true;
  HAWSER_STEP();
  auto roster = roster_.lock();
  return step_away(*roster, replaced);
}

bool Crew::step_away(Roster& roster, bool replaced) {
  while (!replaced && !(replaced = one_lookout_fewer())) {
    const bool may_spawn = !roster.stopping && threads_.load() < options_.max_threads;
    if (!may_spawn || !spawn(roster)) return false;
  }
  // If there is no anchor and every lookout that remains is parked, one has to get up. Any other
  // one is awake, and will not sleep elsewhere than on the bell.
  const std::size_t lying = roster.parked - roster.summoned;
  if (roster.anchors == 0 && lying > 0 && lookouts_.load(std::memory_order_seq_cst) <= lying) {
    ++roster.summoned;
    summons_.notify_one();
  }
  return true;
}

// After step_away(). What the task owns dies before the hand is a lookout again.
void Crew::run_task(Hand& hand, std::shared_ptr<Task> task) {
  hand.running.store(true, std::memory_order_relaxed);
  run_in(hand, std::move(task));
  while (!hand.left_behind.empty()) {
    for (auto& left : std::exchange(hand.left_behind, {})) run_in(hand, std::move(left));
  }
  hand.running.store(false, std::memory_order_relaxed);
  hand.chain.store(0, std::memory_order_relaxed);
  tasks_run_.fetch_add(1, std::memory_order_relaxed);
  if (no_more_threads_.load(std::memory_order_relaxed)) no_more_threads_.store(false);
  lookouts_.fetch_add(1, std::memory_order_seq_cst);
}

void Crew::run_in(Hand& hand, std::shared_ptr<Task> task) {
  hand.chain.store(number(task->chain()), std::memory_order_seq_cst);
  // enqueue() looks the other way round: at the threads, after it has queued the task.
  if (queued_.load(std::memory_order_seq_cst) != 0 && no_thread_free()) {
    refuse_what_waits_for_itself();
  }
  CrewThread& thread = CrewThread::here();
  const CrewThread::Serving before = std::exchange(thread.serving, {this, &hand});
  try {
    task->run();
  } catch (...) {
    log_thrown();
  }
  task.reset();
  thread.serving = before;
}

Crew::Hand* Crew::this_hand() const {
  const CrewThread::Serving& serving = CrewThread::here().serving;
  return serving.crew == this ? static_cast<Hand*>(serving.hand) : nullptr;
}

// ------------------------------------------------------------------------------- the poll seat

// Sits on the seat (HandPolls) until nothing has come for a while, or a handler took the seat's
// time.
void Crew::lead(Hand& hand, bool just_served) {
  const auto me = CrewThread::here().sitter();
  set_->disarm();
  spinner_.wake_up();
  wakes_.wake();  // the seat may have been stolen from somebody who meant to
  bool served = just_served;
  while (!stopping_.load(std::memory_order_relaxed)) {
    flush();
    std::shared_ptr<Task> task;
    transport::PollSet::Arrival arrival;
    if (queued_.load(std::memory_order_relaxed) != 0 && (task = take_queued())) {
      served = true;
      if (!run_seated(hand, std::move(task))) return;
      spinner_.restart();
      continue;
    }
    if (set_->next(arrival)) {
      // Whoever waits for replies reads them sooner himself: a hand looks on for requests only.
      served = arrival.frame.kind == wire::Kind::Call ||
               (served && had_request_within(kRequestsAreComingNs));
      if (take_in(arrival, task)) {
        served = true;
        if (!step_away()) {
          enqueue(std::move(task), /*announce=*/false);  // CREW-2
        } else if (!run_seated(hand, std::move(task))) {
          return;
        }
      }
      spinner_.restart();
      continue;
    }
    wakes_.wake();
    const bool more_is_coming = expectations_.load(std::memory_order_relaxed) > 0;
    const bool wanted_by_waiter = seat_wanted_.load(std::memory_order_relaxed) > 0;
    if (wanted_by_waiter || !(served || more_is_coming) ||
        !spinner_.look_on(more_is_coming, attentive_until())) {
      if (try_leave(me, Seat::State::HandPolls)) return;
      set_->disarm();
    }
  }
  vacate();
}

// True when the frame is a request, to be run.
bool Crew::take_in(transport::PollSet::Arrival& arrival, std::shared_ptr<Task>& task) {
  const Wakes::Collecting together(wakes_);
  const TakingIn here(this);
  if (arrival.closed) {
    std::exchange(arrival.closed, nullptr)->on_closed();
    return false;
  }
  task = arrival.resumed ? std::move(arrival.resumed)
                         : arrival.sink->on_frame(std::move(arrival.frame));
  if (!task) return false;
  last_request_ns_.store(now_ns(), std::memory_order_relaxed);
  return true;
}

bool Crew::had_request_within(std::int64_t ns) const {
  return now_ns() - last_request_ns_.load(std::memory_order_relaxed) < ns;
}

// This thread takes in a frame, and will run what it queues meanwhile itself.
bool Crew::looks_at_queue_next() const {
  return seat_.is_with(CrewThread::here().sitter(), Seat::State::HandPolls);
}

// After step_away(). False when the seat is no longer this hand's.
bool Crew::run_seated(Hand& hand, std::shared_ptr<Task> task) {
  const auto me = CrewThread::here().sitter();
  hand.lends_seat = task->brief();
  if (hand.lends_seat) {
    lend_seat();
  } else {
    vacate();
  }
  run_task(hand, std::move(task));
  if (std::exchange(hand.lends_seat, false) && seat_.reclaim(me, Seat::State::HandPolls)) {
    return true;
  }
  if (!sit_down(me)) return false;
  set_->disarm();
  return true;
}

void Crew::lend_seat() {
  seat_.lend();
  HAWSER_STEP();
  set_->start_tick();
}

// A handler that has waited may have lent the seat, and not come back to it.
bool Crew::sit_down(Seat::Sitter me) {
  return seat_.reclaim(me, Seat::State::HandPolls) || seat_.take(me, Seat::State::HandPolls);
}

// SEAT-1: arm, look, leave.
bool Crew::try_leave(Seat::Sitter me, Seat::State polls) {
  wakes_.wake();
  flush();
  if (set_->arm_and_look()) return false;
  if (polls == Seat::State::HandPolls && queue_can_be_served()) return false;
  HAWSER_STEP();
  return seat_.leave(me, polls);
}

bool Crew::held_back(std::shared_ptr<transport::Link> link) {
  if (!awaits_many_replies() || !holding_.allowed()) return false;
  set_->note_held_back(std::move(link));
  HAWSER_STEP();
  if (seat_.nudge() != Seat::State::Asleep) return true;
  if (now_ns() - CrewThread::here().last_wait_ns > kWaitsAgainWithinNs) return false;
  set_->start_tick();  // should it not come back
  return true;
}

void Crew::flush() {
  const Duration waited = set_->flush();
  if (waited > Duration::zero()) holding_.flushed(waited);
}

// Leaves although there may be something to do, and sees that another hand does it. A mark on the
// seat is not enough for the queue: an attempt to leave may have taken it back.
void Crew::vacate() {
  wakes_.wake();
  flush();
  const bool something_there = set_->arm_and_look();
  const bool knocked = seat_.vacate();
  if (knocked || something_there || queue_can_be_served()) bell_->ring();
}

// ------------------------------------------------------------------------------- the anchor

// True when the hand is to end.
bool Crew::anchor_or_park(Hand& hand) {
  auto roster = roster_.lock();
  if (roster->stopping || queue_can_be_served()) return false;
  if (roster->anchors >= kMostAnchors) return park(roster);
  anchors_.store(++roster->anchors, std::memory_order_seq_cst);
  roster.unlock();
  anchor(hand);
  return false;
}

void Crew::anchor(Hand& hand) {
  const auto me = CrewThread::here().sitter();
  bool news = false;
  bool seated = false;
  while (!news && !seated) {
    const auto wakeup = set_->sleep(Deadline::never());
    news = wakeup.news || (wakeup.tick && set_->holds_back());
    seated = wakeup.tick && on_tick(me);
  }
  {
    auto roster = roster_.lock();
    anchors_.store(--roster->anchors, std::memory_order_seq_cst);
  }
  HAWSER_STEP();
  if (seated || seat_.knock(me)) lead(hand, false);
}

// True when the seat had been away for a whole tick and is now this hand's.
bool Crew::on_tick(Seat::Sitter me) {
  auto ticking = ticking_.lock();
  const std::uint64_t lends = seat_.lends();
  const auto state = seat_.state();
  const bool away = state == Seat::State::HandAway || state == Seat::State::WaiterAway;
  if (std::exchange(ticking->lends, lends) != lends) {
    ticking->idle = 0;
    return false;
  }
  if (away) return seat_.steal(me, Seat::State::HandPolls);
  if (++ticking->idle < kIdleTicks) return false;
  set_->stop_tick();
  if (seat_.lends() != lends || set_->holds_back()) set_->start_tick();
  return false;
}

// True when nobody needed the hand for long.
bool Crew::park(Guarded<Roster>::Held& roster) {
  ++roster->parked;
  const bool needed =
      summons_.wait_until(roster, Deadline(std::chrono::steady_clock::now() + kParkedFor),
                          [&] { return roster->summoned > 0 || roster->stopping; });
  --roster->parked;
  if (roster->summoned > 0) --roster->summoned;
  if (needed || threads_.load() <= kFewestHands) return false;
  threads_.fetch_sub(1, std::memory_order_seq_cst);
  if (one_lookout_fewer()) return true;
  threads_.fetch_add(1, std::memory_order_seq_cst);
  return false;
}

CrewStats Crew::stats() const {
  auto roster = roster_.lock();
  CrewStats stats;
  stats.threads = roster->hands.size();
  for (const Hand& hand : roster->hands) {
    stats.running += hand.running.load(std::memory_order_relaxed) ? 1 : 0;
  }
  stats.parked = roster->parked;
  stats.queued = roster->queue.size();
  stats.tasks_run = tasks_run_.load(std::memory_order_relaxed);
  stats.refused = refused_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace hawser::agent
