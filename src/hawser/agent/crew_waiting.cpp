// How threads wait for the crew: those of the program and hands in the middle of a task. They look
// after the links meanwhile (CALL-1), and helpers run tasks of the work that they wait for
// (CREW-5).

#include <algorithm>
#include <utility>

#include "hawser/agent/crew.h"
#include "hawser/agent/crew_thread.h"

namespace hawser::agent {
namespace {

constexpr int kDrainAtOnce = 64;
// A node that got a request this recently is a server too: a waiter does not keep the seat from it.
constexpr std::int64_t kServedLatelyNs = 100'000'000;
constexpr Duration kAttentiveFor = std::chrono::milliseconds(2);
constexpr int kLooksForSeat = 64;  // a few microseconds
constexpr int kWaiterYields = 4;
constexpr int kWaitsWithoutYield = 4096;

}  // namespace

bool Crew::wait(Event& event, Deadline deadline) {
  refuse_if_inherited();
  const WaitingHere here;
  const Helper* const helper = this_helper();
  bool happened = false;
  do {
    happened = look_on(event, deadline);
  } while (!happened && helper && !helper->tasks_.empty());  // read while it left the seat
  if (!happened) happened = event.sleep_until(deadline);
  if (awaits_many_replies()) CrewThread::here().last_wait_ns = now_ns();
  return happened;
}

bool Crew::look_on(Event& event, Deadline deadline) {
  if (Helper* const helper = this_helper()) run_tasks_of(*helper);
  if (event.happened()) return true;
  flush();
  const auto me = CrewThread::here().sitter();
  if (sit_down_to_wait(me)) {
    poll_while_waiting(event, deadline, me);
    tell_who_waits_for_seat();
  }
  return event.happened() || (waiter_may_yield() && yield_to_pollers(event));
}

bool Crew::sleep(Event& event, Deadline deadline) {
  refuse_if_inherited();
  if (event.happened()) return true;
  flush();
  give_back_lent_seat();
  return event.sleep_until(deadline);
}

void Crew::give_back_lent_seat() {
  const auto me = CrewThread::here().sitter();
  if (!seat_.reclaim(me, Seat::State::WaiterPolls)) return;
  if (queue_can_be_served()) bell_->ring();
  leave_waiting(me);
  tell_who_waits_for_seat();
}

Crew::Expectation::Expectation(std::shared_ptr<Crew> crew) : crew_(std::move(crew)) {
  if (crew_->expectations_.fetch_add(1, std::memory_order_relaxed) != 0) return;
  if (crew_->this_helper()) return;  // polls itself
  crew_->give_back_lent_seat();
  crew_->call_hand();
}

Crew::Expectation::~Expectation() { crew_->expectations_.fetch_sub(1, std::memory_order_relaxed); }

void Crew::attend(TimePoint now) {
  attentive_until_.store(now + kAttentiveFor, std::memory_order_relaxed);
}

// stop() does.
void Crew::tell_who_waits_for_seat() {
  if (!stopping_.load(std::memory_order_seq_cst)) return;
  auto roster = roster_.lock();
  ended_.notify_all();
}

// A hand polls, and wants the core that this thread has: let it work through what is there instead
// of being woken for the first of it. Beside compute-bound threads a yield costs a time slice; then
// waiters do not yield for a while.
bool Crew::yield_to_pollers(Event& event) {
  for (int attempt = 0; attempt < kWaiterYields && !event.happened(); ++attempt) {
    const Yielded yielded = yield_core();
    if (yielded == Yielded::TimeSlice) {
      waits_without_yield_.store(kWaitsWithoutYield, std::memory_order_relaxed);
    }
    if (yielded == Yielded::TimeSlice || yielded == Yielded::Empty) break;
  }
  return event.happened();
}

bool Crew::waiter_may_yield() {
  if (options_.spin_limit <= Duration::zero()) return false;
  const int left = waits_without_yield_.load(std::memory_order_relaxed);
  if (left <= 0) return true;
  waits_without_yield_.store(left - 1, std::memory_order_relaxed);
  return false;
}

bool Crew::sit_down_to_wait(Seat::Sitter me) {
  if (seat_.reclaim(me, Seat::State::WaiterPolls) ||
      (seat_.state() == Seat::State::WaiterAway && seat_.steal(me, Seat::State::WaiterPolls))) {
    return true;  // the bell is not armed while the seat is lent
  }
  // A handler that left the seat to a hand would have its reply after two wake-ups, not none.
  if (!this_hand() && had_request_within(kRequestsAreComingNs)) return false;
  if (!seat_.take(me, Seat::State::WaiterPolls) && !ask_for_seat(me)) return false;
  set_->disarm();
  return true;
}

// Of a hand that does nothing but look on, which takes it a microsecond to notice. Being woken by
// it takes longer.
bool Crew::ask_for_seat(Seat::Sitter me) {
  if (seat_.state() != Seat::State::HandPolls) return false;
  seat_wanted_.fetch_add(1, std::memory_order_relaxed);
  bool taken = false;
  for (int look = 0; look < kLooksForSeat && !taken; ++look) {
    pause_briefly();
    taken = seat_.take(me, Seat::State::WaiterPolls);
  }
  seat_wanted_.fetch_sub(1, std::memory_order_relaxed);
  return taken;
}

void Crew::poll_while_waiting(Event& event, Deadline deadline, Seat::Sitter me) {
  // Whoever queued something while a hand had the seat has left it to that hand.
  if (queue_can_be_served()) bell_->ring();
  wakes_.wake();
  spinner_.restart();
  Helper* const helper = this_helper();
  bool handed_over = false;
  while (!event.happened() && !handed_over && !stopping_.load(std::memory_order_relaxed)) {
    flush();
    transport::PollSet::Arrival arrival;
    if (set_->next(arrival)) {
      std::shared_ptr<Task> request;
      handed_over = take_in(arrival, request);
      if (handed_over) submit(std::move(request));
      if (helper && !helper->tasks_.empty() && !help_seated(*helper, me)) return;
      spinner_.restart();
      continue;
    }
    wakes_.wake();
    if (!spinner_.look_on(/*more_is_coming=*/helper != nullptr, attentive_until())) break;
    if (!deadline.is_never() && deadline.passed(std::chrono::steady_clock::now())) break;
  }
  // Replies that are here already spare their waiters the whole way to the seat.
  const bool all_replies =
      handed_over || replies_expected_.load(std::memory_order_relaxed) <= 0 || drain(kDrainAtOnce);
  wakes_.wake();
  // Who waits once waits again, or is a hand that comes back to the seat. If not, an anchor has the
  // seat after a tick.
  const Hand* const hand = this_hand();
  const bool comes_back = (hand && hand->lends_seat) || !had_request_within(kServedLatelyNs);
  if (event.happened() && all_replies && comes_back &&
      queued_.load(std::memory_order_seq_cst) == 0) {
    return lend_seat();
  }
  leave_waiting(me);
}

// ------------------------------------------------------------------------------- helping

Crew::Helper::Helper(std::shared_ptr<Crew> crew)
    : crew_(std::move(crew)), before_(std::exchange(CrewThread::here().helping, this)) {}

Crew::Helper::~Helper() {
  CrewThread::here().helping = before_;
  for (auto& task : tasks_) crew_->submit(std::move(task));
}

bool Crew::runs_task() const {
  const CrewThread& thread = CrewThread::here();
  return thread.taking_in != this && (thread.serving.crew == this || this_helper());
}

Crew::Helper* Crew::this_helper() const {
  Helper* const helping = CrewThread::here().helping;
  return helping && helping->crew_.get() == this ? helping : nullptr;
}

// What they wait for inside is their own affair: this thread is no helper then.
void Crew::run_tasks_of(Helper& helper) {
  CrewThread& thread = CrewThread::here();
  thread.helping = nullptr;
  const CrewThread::Serving before = std::exchange(thread.serving, {this, nullptr});
  while (!helper.tasks_.empty()) {
    for (auto& task : std::exchange(helper.tasks_, {})) {
      task->run();
      task.reset();
    }
  }
  thread.serving = before;
  thread.helping = &helper;
}

// As run_seated(). False when the seat is no longer this thread's.
bool Crew::help_seated(Helper& helper, Seat::Sitter me) {
  const bool brief = std::all_of(helper.tasks_.begin(), helper.tasks_.end(),
                                 [](const auto& task) { return task->brief(); });
  if (brief) {
    wakes_.wake();
    lend_seat();
    run_tasks_of(helper);
    return seat_.reclaim(me, Seat::State::WaiterPolls);
  }
  vacate();
  run_tasks_of(helper);
  return sit_down_to_wait(me);
}

void Crew::leave_waiting(Seat::Sitter me) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (try_leave(me, Seat::State::WaiterPolls)) return;
    set_->disarm();
    if (!drain(kDrainAtOnce)) break;  // a request came: let a hand have the seat
  }
  vacate();
}

// Takes in what is there. False when that included a request, which has been handed over.
bool Crew::drain(int at_most) {
  transport::PollSet::Arrival arrival;
  while (at_most-- > 0 && set_->next(arrival)) {
    std::shared_ptr<Task> request;
    if (!take_in(arrival, request)) continue;
    submit(std::move(request));
    return false;
  }
  return true;
}

}  // namespace hawser::agent
