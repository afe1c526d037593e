// The wake-up protocol of doorbell.h, poll_seat.h and the crew, run through every interleaving: an
// explicit-state search over a model whose seat is the real PollSeat. Each step of a thread in the
// model is one atomic operation, or one critical section, of the real one.
//
// SEAT-1 is checked in every state that is reached: when all that could still happen depends on user
// code, which may never do it, then no frame and no task that could be run lies unattended. So is
// "one holder", and CREW-1, "there is a lookout, and it does not lie parked".

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "hawser/transport/poll_seat.h"

namespace hawser::transport {
namespace {

using State = PollSeat::State;

// Ways to get it wrong that the search has to find.
enum class Fault {
  None,
  LeaveWithoutLooking,       // arms and leaves
  LookBeforeArming,          // looks and then arms
  ForgetKnocks,              // a knock on a taken seat leaves no mark
  SilenceALaterSleep,        // a producer clears whatever it finds, not the sleep it has rung for
  ClearBeforeRinging,        // ... before it rings, and is stopped in between
  VacateWithTasksQueued,     // trusts the mark, which an attempt to leave has taken back
  WaiterInheritsQuietly,     // does not ring for tasks left to the hand whose seat it gets
  StopTickWithoutAsking,     // does not compare lends after stopping the tick
  TrustTheAnchorOnceSeen,    // goes into user code because somebody else was awake a moment ago
};

struct Settings {
  Fault fault = Fault::None;
  std::uint8_t hands = 2;
  std::uint8_t max_threads = 2;
  std::uint8_t replies = 0;   // frames for the waiter
  std::uint8_t requests = 0;  // frames for a hand to run
  std::uint8_t tasks = 0;     // posted by others
  std::uint8_t waits = 0;
  std::uint8_t nested = 0;    // waits inside handlers
  bool freezing = false;      // the producer of replies may be stopped for good at any point
};

enum class At : std::uint8_t {
  // A producer.
  Publish, CheckSleeping, Ring, ClearSleeping, Frozen,
  // Whoever posts a task.
  Enqueue, Nudge, RingForTask, Done,
  // A hand.
  Work, Stepping, StepSlowly, Dequeue, AnchorOrPark, Parked, Asleep, Ticked, Steal, StopTimer,
  StopTick, AskLends, RestartTick, Unanchor, Knock, Lead, LookForTasks, LookForReplies,
  LookForRequests, LendForTask, TickA, TickB, BriefUserCode, UserCode, SitAgain,
  // Leaving, vacating: hands and waiters.
  Arm, ArmedReplies, ArmedRequests, ArmedTasks, Leave, VacateArm, VacateReplies, VacateRequests,
  Vacate, VacateRing,
  // A waiter, also a hand in user code.
  Idle, Reclaim, SeeAway, StealToWait, Take, InheritTasks, WaitDisarm, WaitReplies, WaitRequests,
  HandOver, HandOverNudge, HandOverRing, Lend, SleepOnEvent,
};

struct Sender {
  At at = At::Publish;
  std::uint8_t left = 0;
  bool stale = false;  // the sleep it has seen is over
};

struct Thread {
  At at = At::Idle;
  At after_task = At::Work;   // where a hand goes on when user code returns
  At after_wait = At::Idle;   // where the waiter's user code goes on
  std::uint8_t needs = 0;     // replies that must have come before it stops waiting
  bool flag = false;          // something was there while vacating; the seat was stolen in a tick
  bool brief = false;
};

constexpr std::size_t kHands = 3;
constexpr std::size_t kWaiter = kHands;

struct World {
  std::uint64_t seat = 0;
  bool sleeping = false;
  bool bell = false;
  std::uint8_t replies = 0, requests = 0, tasks = 0, received = 0;
  std::uint8_t anchored = 0, parked = 0, summoned = 0, lookouts = 0;
  bool timer = false, tick = false;
  bool lent_since_tick = false, lent_since_asked = false;  // what counting lends() tells the anchor
  std::uint8_t waits_left = 0, nested_left = 0;
  Sender reply_sender, request_sender;
  Sender poster;
  std::array<Thread, kHands + 1> threads;
  std::array<std::uint8_t, 7> padding{};  // worlds are compared and hashed as bytes

  bool operator==(const World& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(std::has_unique_object_representations_v<World>);

struct WorldHash {
  std::size_t operator()(const World& world) const {
    return std::hash<std::string_view>()(
        {reinterpret_cast<const char*>(&world), sizeof world});
  }
};

// All steps that some thread can take in a world.
class Steps {
 public:
  // A step that must come if nothing else happens, or one that is up to user code and chance.
  enum class Kind { Must, May };
  using Emit = std::function<void(const World&, Kind)>;

  Steps(const Settings& settings, const World& world, const Emit& emit)
      : settings_(settings), world_(world), emit_(emit) {}

  void all() {
    produce(&World::reply_sender, &World::replies, settings_.freezing);
    produce(&World::request_sender, &World::requests, false);
    post();
    for (std::size_t i = 0; i < settings_.hands; ++i) step(i);
    step(kWaiter);
  }

 private:
  bool faulty(Fault fault) const { return settings_.fault == fault; }

  // ---- the shared state, one atomic operation each ----
  template <class Operation>
  auto on_seat(World& world, Operation operation) {
    PollSeat seat({world.seat, 0});
    auto result = operation(seat);
    world.seat = seat.snapshot().word;
    if (seat.lends() != 0) {
      world.lent_since_tick = true;
      for (const Thread& thread : world.threads) {
        world.lent_since_asked |= thread.at >= At::Steal && thread.at <= At::AskLends;
      }
    }
    return result;
  }
  void arm(World& world) {
    world.sleeping = true;
    for (Sender* sender : {&world.reply_sender, &world.request_sender}) sender->stale = true;
  }
  bool no_thread_free(const World& world) const {
    return world.lookouts < 2 && settings_.hands >= settings_.max_threads;
  }
  bool can_serve(const World& world) const { return world.tasks > 0 && !no_thread_free(world); }

  void go(World next, std::size_t who, At at, Kind kind = Kind::Must) {
    Thread& me = next.threads[who];
    me.at = at;
    if (at == At::Work || at == At::AnchorOrPark) me.after_task = At::Work;
    if (at == At::Work) me.brief = false;
    emit_(next, kind);
  }
  static PollSeat::Sitter sitter(std::size_t who) { return static_cast<PollSeat::Sitter>(who + 1); }

  // ---- producers and posters ----
  void produce(Sender World::*which, std::uint8_t World::*ring, bool may_freeze) {
    World next = world_;
    Sender& sender = next.*which;
    const auto become = [&](At at) {
      sender.at = at;
      emit_(next, Kind::Must);
    };
    switch (sender.at) {
      case At::Publish:
        if (sender.left == 0) return;
        --sender.left;
        ++(next.*ring);
        become(At::CheckSleeping);
        break;
      case At::CheckSleeping:
        if (!next.sleeping) {
          become(At::Publish);
        } else {
          sender.stale = false;
          become(faulty(Fault::ClearBeforeRinging) ? At::ClearSleeping : At::Ring);
        }
        break;
      case At::Ring:
        next.bell = true;
        become(faulty(Fault::ClearBeforeRinging) ? At::Publish : At::ClearSleeping);
        break;
      case At::ClearSleeping:
        if (faulty(Fault::ClearBeforeRinging)) {  // by exchange: whoever got it rings
          const bool got = std::exchange(next.sleeping, false);
          become(got ? At::Ring : At::Publish);
        } else {
          if (!sender.stale || faulty(Fault::SilenceALaterSleep)) next.sleeping = false;
          sender.stale = false;
          become(At::Publish);
        }
        break;
      default:
        return;
    }
    if (may_freeze) {
      next = world_;
      (next.*which).at = At::Frozen;
      emit_(next, Kind::May);
    }
  }

  // True when a parked hand was told.
  bool enqueue(World& next) {
    ++next.tasks;
    if (next.parked <= next.summoned) return false;
    ++next.summoned;
    return true;
  }
  static bool must_ring(State found) { return found != State::HandPolls && found != State::HandAway; }

  void post() {
    World next = world_;
    Sender& poster = next.poster;
    switch (poster.at) {
      case At::Enqueue:
        if (poster.left == 0) return;
        --poster.left;
        poster.at = enqueue(next) ? At::Enqueue : At::Nudge;
        break;
      case At::Nudge:
        poster.at = must_ring(on_seat(next, [](auto& seat) { return seat.nudge(); }))
                        ? At::RingForTask
                        : At::Enqueue;
        break;
      case At::RingForTask:
        next.bell = true;
        poster.at = At::Enqueue;
        break;
      default:
        return;
    }
    emit_(next, Kind::Must);
  }

  // ---- hands and waiters ----
  void step(std::size_t who) {
    const At at = world_.threads[who].at;
    if (at >= At::Idle) {
      wait(who);
    } else if (at >= At::Arm) {
      leave(who);
    } else if (at >= At::Lead) {
      lead(who);
    } else {
      rest(who);
    }
  }

  // A hand that does not have the seat.
  void rest(std::size_t who) {
    World next = world_;
    Thread& me = next.threads[who];
    switch (me.at) {
      case At::Work:
        me.after_task = At::Work;
        return go(next, who, can_serve(next) ? At::Stepping : At::AnchorOrPark);
      case At::Stepping:
        return step_away(who);
      case At::StepSlowly: {
        const std::uint8_t lying = next.parked - next.summoned;
        if (next.anchored == 0 && lying > 0 && next.lookouts <= lying) ++next.summoned;
        return go(next, who, At::Dequeue);
      }
      case At::Dequeue:
        return dequeue(who);
      case At::AnchorOrPark:
        if (can_serve(next)) return go(next, who, At::Work);
        if (next.anchored != 0) {
          ++next.parked;
          return go(next, who, At::Parked);
        }
        next.anchored = 1;
        return go(next, who, At::Asleep);
      case At::Parked:
        if (next.summoned == 0) return;
        --next.summoned;
        --next.parked;
        return go(next, who, At::Work);
      case At::Asleep:
        return sleep(who);
      case At::Ticked:
      case At::Steal:
      case At::StopTimer:
      case At::StopTick:
      case At::AskLends:
      case At::RestartTick:
        return tick(who);
      case At::Unanchor:
        next.anchored = 0;
        return go(next, who, std::exchange(me.flag, false) ? At::Lead : At::Knock);
      case At::Knock: {
        if (faulty(Fault::ForgetKnocks) && PollSeat({next.seat, 0}).state() != State::Asleep) {
          return go(next, who, At::Work);
        }
        const bool mine = on_seat(next, [&](auto& seat) { return seat.knock(sitter(who)); });
        return go(next, who, mine ? At::Lead : At::Work);
      }
      default:
        return;
    }
  }

  void step_away(std::size_t who) {
    World next = world_;
    const Thread& me = next.threads[who];
    if (faulty(Fault::TrustTheAnchorOnceSeen)) {
      const bool polled = PollSeat({next.seat, 0}).state() == State::HandPolls;
      if (next.anchored == 0 && !polled) return go(next, who, me.after_task);
      if (next.lookouts > 0) --next.lookouts;
      return go(next, who, At::Dequeue);
    }
    if (next.lookouts < 2) return go(next, who, me.after_task);
    --next.lookouts;
    go(next, who, next.anchored != 0 ? At::Dequeue : At::StepSlowly);
  }

  void dequeue(std::size_t who) {
    World next = world_;
    const Thread& me = next.threads[who];
    if (next.tasks == 0) {
      ++next.lookouts;
      return go(next, who, me.after_task);
    }
    --next.tasks;
    if (me.after_task == At::Work) return go(next, who, At::UserCode);
    run_seated(next, who);
  }

  void run_seated(World next, std::size_t who) {
    next.threads[who].brief = true;
    go(next, who, At::LendForTask);
    next.threads[who].brief = false;
    next.threads[who].after_task = At::SitAgain;
    go(next, who, At::VacateArm);
  }

  void sleep(std::size_t who) {
    if (world_.bell) {
      World next = world_;
      next.bell = false;
      go(next, who, At::Unanchor);
    }
    if (world_.timer) go(world_, who, At::Ticked);
  }

  void tick(std::size_t who) {
    World next = world_;
    Thread& me = next.threads[who];
    const State state = PollSeat({next.seat, 0}).state();
    const bool away = state == State::HandAway || state == State::WaiterAway;
    switch (me.at) {
      case At::Ticked:
        if (std::exchange(next.lent_since_tick, false)) return go(next, who, At::Asleep);
        return go(next, who, away ? At::Steal : At::StopTimer);
      case At::Steal:
        next.lent_since_asked = false;
        me.flag = on_seat(
            next, [&](auto& seat) { return seat.steal(sitter(who), State::HandPolls); });
        return go(next, who, me.flag ? At::Unanchor : At::Asleep);
      case At::StopTimer:
        next.timer = false;
        return go(next, who, At::StopTick);
      case At::StopTick:
        next.tick = false;
        return go(next, who, At::AskLends);
      case At::AskLends: {
        const bool lent = std::exchange(next.lent_since_asked, false) &&
                          !faulty(Fault::StopTickWithoutAsking);
        if (!lent || next.tick) return go(next, who, At::Asleep);
        next.tick = true;
        return go(next, who, At::RestartTick);
      }
      default:
        next.timer = true;
        return go(next, who, At::Asleep);
    }
  }

  // A hand on the seat, and in user code.
  void lead(std::size_t who) {
    World next = world_;
    Thread& me = next.threads[who];
    switch (me.at) {
      case At::Lead:
        next.sleeping = false;
        return go(next, who, At::LookForTasks);
      case At::LookForTasks:
        me.after_task = At::LookForReplies;
        return go(next, who, can_serve(next) ? At::Stepping : At::LookForReplies);
      case At::LookForReplies:
        if (next.replies == 0) return go(next, who, At::LookForRequests);
        --next.replies;
        ++next.received;
        return go(next, who, At::LookForTasks);
      case At::LookForRequests:
        return look_for_requests(who);
      case At::LendForTask:
        on_seat(next, [](auto& seat) { return seat.lend(), 0; });
        return go(next, who, At::TickA);
      case At::TickA:
        if (std::exchange(next.tick, true)) return start_user_code(next, who);
        return go(next, who, At::TickB);
      case At::TickB:
        next.timer = true;
        return start_user_code(next, who);
      case At::BriefUserCode:
      case At::UserCode:
        return in_user_code(who);
      default:
        return sit_again(who);
    }
  }

  void look_for_requests(std::size_t who) {
    World next = world_;
    if (next.requests == 0) return go(next, who, At::Arm);
    --next.requests;
    if (next.lookouts < 2) {
      ++next.tasks;
      return go(next, who, At::LookForTasks);
    }
    // step_away(), its slow path included: nobody else looks at what it changes in between.
    --next.lookouts;
    const std::uint8_t lying = next.parked - next.summoned;
    if (next.anchored == 0 && lying > 0 && next.lookouts <= lying) ++next.summoned;
    run_seated(next, who);
  }

  // After the seat was lent.
  void start_user_code(World next, std::size_t who) {
    if (next.threads[who].needs != 0) return end_wait(next, who);
    go(next, who, At::BriefUserCode);
  }

  void in_user_code(std::size_t who) {
    World next = world_;
    Thread& me = next.threads[who];
    if (next.nested_left > 0) {
      World nesting = next;
      --nesting.nested_left;
      nesting.threads[who].after_wait = me.at;
      nesting.threads[who].needs = settings_.replies;
      go(nesting, who, begin_wait(who), Kind::May);
    }
    ++next.lookouts;
    go(next, who, me.at == At::BriefUserCode || me.after_task == At::SitAgain ? At::SitAgain
                                                                               : At::Work,
       Kind::May);
  }

  void sit_again(std::size_t who) {
    World next = world_;
    const bool reclaimed = on_seat(
        next, [&](auto& seat) { return seat.reclaim(sitter(who), State::HandPolls); });
    if (reclaimed) return go(next, who, At::Lead);
    if (!next.threads[who].brief &&
        on_seat(next, [&](auto& seat) { return seat.take(sitter(who), State::HandPolls); })) {
      return go(next, who, At::Lead);
    }
    go(next, who, At::Work);
  }

  // Arm, look, leave or vacate.
  void leave(std::size_t who) {
    World next = world_;
    Thread& me = next.threads[who];
    const bool waits = me.needs != 0;
    switch (me.at) {
      case At::Arm:
        if (!faulty(Fault::LookBeforeArming)) arm(next);
        return go(next, who,
                  faulty(Fault::LeaveWithoutLooking) ? At::Leave : At::ArmedReplies);
      case At::ArmedReplies:
        return next.replies > 0 ? stay(next, who) : go(next, who, At::ArmedRequests);
      case At::ArmedRequests:
        return next.requests > 0 ? stay(next, who) : go(next, who, At::ArmedTasks);
      case At::ArmedTasks:
        if (faulty(Fault::LookBeforeArming)) arm(next);
        return !waits && can_serve(next) ? stay(next, who) : go(next, who, At::Leave);
      case At::Leave: {
        const State polls = waits ? State::WaiterPolls : State::HandPolls;
        const bool left =
            on_seat(next, [&](auto& seat) { return seat.leave(sitter(who), polls); });
        if (!left) return stay(next, who);
        return go(next, who, waits ? At::SleepOnEvent : At::Work);
      }
      case At::VacateArm:
        arm(next);
        return go(next, who, At::VacateReplies);
      case At::VacateReplies:
        me.flag |= next.replies > 0;
        return go(next, who, At::VacateRequests);
      case At::VacateRequests:
        me.flag |= next.requests > 0;
        return go(next, who, At::Vacate);
      case At::Vacate:
        me.flag |= on_seat(next, [](auto& seat) { return seat.vacate(); });
        return go(next, who, At::VacateRing);
      default:
        if (can_serve(next) && !faulty(Fault::VacateWithTasksQueued)) me.flag = true;
        if (std::exchange(me.flag, false)) next.bell = true;
        return go(next, who, waits ? At::SleepOnEvent : At::UserCode);
    }
  }

  // There was something, so the sitter goes on; a waiter may also leave it to a hand.
  void stay(const World& next, std::size_t who) {
    if (next.threads[who].needs == 0) return go(next, who, At::Lead);
    go(next, who, At::WaitDisarm);
    go(next, who, At::VacateArm);
  }

  void wait(std::size_t who) {
    World next = world_;
    Thread& me = next.threads[who];
    const bool happened = next.received >= me.needs;
    switch (me.at) {
      case At::Idle:
        if (next.waits_left == 0) return;
        me.needs = static_cast<std::uint8_t>(settings_.waits - --next.waits_left);
        if (next.received >= me.needs) me.needs = 0;
        return go(next, who, me.needs == 0 ? At::Idle : begin_wait(who), Kind::May);
      case At::Reclaim:
      case At::SeeAway:
      case At::StealToWait:
      case At::Take:
        return sit_down_to_wait(who);
      case At::InheritTasks:
        if (can_serve(next) && !faulty(Fault::WaiterInheritsQuietly)) next.bell = true;
        return go(next, who, At::WaitDisarm);
      case At::WaitDisarm:
        next.sleeping = false;
        return go(next, who, At::WaitReplies);
      case At::WaitReplies:
        if (happened) get_up(who);
        if (next.replies == 0) return go(next, who, At::WaitRequests);
        --next.replies;
        ++next.received;
        return go(next, who, At::WaitReplies);
      case At::WaitRequests:
        if (next.requests == 0) return get_up(who);
        --next.requests;
        return go(next, who, At::HandOver);
      case At::HandOver:
        return go(next, who, enqueue(next) ? At::Arm : At::HandOverNudge);
      case At::HandOverNudge: {
        const State found = on_seat(next, [](auto& seat) { return seat.nudge(); });
        return go(next, who, must_ring(found) ? At::HandOverRing : At::Arm);
      }
      case At::HandOverRing:
        next.bell = true;
        return go(next, who, At::Arm);
      case At::Lend:
        on_seat(next, [](auto& seat) { return seat.lend(), 0; });
        return go(next, who, At::TickA);
      default:
        if (happened) end_wait(next, who);
    }
  }

  // Only its own lend() can make reclaim() succeed, so that no other step can change its outcome.
  At begin_wait(std::size_t who) const {
    return world_.seat >> 32 == sitter(who) ? At::Reclaim : At::SeeAway;
  }

  void sit_down_to_wait(std::size_t who) {
    World next = world_;
    const At at = next.threads[who].at;
    const auto try_to = [&](auto operation, At otherwise) {
      const bool seated = on_seat(next, operation);
      go(next, who, seated ? At::InheritTasks : otherwise);
    };
    const auto me = sitter(who);
    if (at == At::Reclaim) {
      try_to([&](auto& seat) { return seat.reclaim(me, State::WaiterPolls); }, At::SeeAway);
    } else if (at == At::SeeAway) {
      const bool away = PollSeat({next.seat, 0}).state() == State::WaiterAway;
      go(next, who, away ? At::StealToWait : At::Take);
    } else if (at == At::StealToWait) {
      try_to([&](auto& seat) { return seat.steal(me, State::WaiterPolls); }, At::Take);
    } else {
      go(next, who, At::SleepOnEvent);  // requests are coming: a hand is the better poller
      try_to([&](auto& seat) { return seat.take(me, State::WaiterPolls); }, At::SleepOnEvent);
    }
  }

  void get_up(std::size_t who) {
    go(world_, who, At::Arm);
    const bool happened = world_.received >= world_.threads[who].needs;
    if (happened && world_.tasks == 0) go(world_, who, At::Lend);
  }

  void end_wait(World next, std::size_t who) {
    next.threads[who].needs = 0;
    go(next, who, std::exchange(next.threads[who].after_wait, At::Idle));
  }

  const Settings& settings_;
  const World& world_;
  const Emit& emit_;
};

// ---- what must hold ----

bool has_seat(const Thread& thread) {
  const At at = thread.at;
  if (at == At::Unanchor) return thread.flag;
  if (at == At::Stepping || at == At::StepSlowly || at == At::Dequeue) {
    return thread.after_task == At::LookForReplies;
  }
  return (at >= At::Lead && at <= At::LendForTask) || (at >= At::Arm && at <= At::Vacate) ||
         (at >= At::InheritTasks && at <= At::Lend);
}

std::optional<std::string> complaint(const Settings& settings, const World& world, bool all_rest) {
  std::size_t holders = 0;
  bool stepping = false;
  for (std::size_t who = 0; who < world.threads.size(); ++who) {
    const Thread& thread = world.threads[who];
    stepping |= thread.at == At::StepSlowly;
    if (!has_seat(thread)) continue;
    ++holders;
    if (world.seat >> 32 != who + 1) return "a thread acts on a seat that is not its own";
  }
  if (holders > 1) return "two threads have the seat";
  if (world.lookouts == 0) return "CREW-1: all hands are in user code";
  const int lying = world.parked - world.summoned;
  if (world.anchored == 0 && world.lookouts <= lying && !stepping) {
    return "CREW-1: the only lookouts lie parked";
  }
  if (!all_rest) return std::nullopt;
  const bool thread_free = world.lookouts >= 2 || settings.hands < settings.max_threads;
  if (world.tasks > 0 && thread_free) return "SEAT-1: a task lies in the queue";
  if (world.requests > 0) return "SEAT-1: a request lies in its ring";
  if (world.replies > 0 && world.reply_sender.at != At::Frozen) {
    return "SEAT-1: a reply lies in its ring";
  }
  return std::nullopt;
}

struct Findings {
  std::size_t states = 0;
  std::size_t at_rest = 0;
  std::optional<std::string> complaint;
};

World first_world(const Settings& settings) {
  World world;
  world.bell = true;  // links have just been added: nobody has armed the bell yet
  world.lookouts = settings.hands;
  world.waits_left = settings.waits;
  world.nested_left = settings.nested;
  world.reply_sender.left = settings.replies;
  world.request_sender.left = settings.requests;
  world.poster.at = At::Enqueue;
  world.poster.left = settings.tasks;
  for (std::size_t i = 0; i < settings.hands; ++i) world.threads[i].at = At::Work;
  return world;
}

// Hands are alike: of the worlds that differ in their names only, one is enough.
World canonical(World world, std::uint8_t hands) {
  const auto bytes = [&](std::size_t i) {
    return std::string_view(reinterpret_cast<const char*>(&world.threads[i]), sizeof(Thread));
  };
  const auto swap_hands = [&](std::size_t a, std::size_t b) {
    std::swap(world.threads[a], world.threads[b]);
    const std::uint64_t sitter = world.seat >> 32;
    const std::uint64_t other = sitter == a + 1 ? b + 1 : sitter == b + 1 ? a + 1 : sitter;
    world.seat = (world.seat & 0xffffffff) | (other << 32);
  };
  for (std::size_t i = 0; i + 1 < hands; ++i) {
    for (std::size_t k = i + 1; k < hands; ++k) {
      if (bytes(k) < bytes(i)) swap_hands(i, k);
    }
  }
  return world;
}

// Breadth first, until something is wrong or all has been seen.
Findings explore(const Settings& settings) {
  Findings findings;
  std::unordered_set<World, WorldHash> seen{first_world(settings)};
  std::deque<World> open{first_world(settings)};
  while (!open.empty() && !findings.complaint) {
    const World world = open.front();
    open.pop_front();
    bool all_rest = true;
    Steps(settings, world, [&](const World& step, Steps::Kind kind) {
      const World next = canonical(step, settings.hands);
      if (kind == Steps::Kind::Must && !(next == world)) all_rest = false;
      if (seen.insert(next).second) open.push_back(next);
    }).all();
    findings.at_rest += all_rest ? 1 : 0;
    findings.complaint = complaint(settings, world, all_rest);
  }
  findings.states = seen.size();
  return findings;
}

// ---- the searches ----

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

void expect_sound(const Settings& settings) {
  const Findings findings = explore(settings);
  EXPECT_FALSE(findings.complaint) << *findings.complaint;
  EXPECT_GT(findings.at_rest, 0u);
  ::testing::Test::RecordProperty("states", static_cast<int>(findings.states));
}

TEST(PollSeatModel, FramesOfTwoProducers) {
  expect_sound({.replies = 1, .requests = 1});
  expect_sound({.requests = 2});
}

TEST(PollSeatModel, FramesAndTasks) {
  expect_sound({.requests = 1, .tasks = 1});
  expect_sound({.tasks = 2});
}

TEST(PollSeatModel, FramesAndAWaiter) {
  expect_sound({.replies = 1, .waits = 1});
  expect_sound({.replies = 2, .waits = 2});
}

TEST(PollSeatModel, TasksAndAWaiter) {
  if (kSlow) GTEST_SKIP() << "a million states";
  expect_sound({.replies = 1, .tasks = 1, .waits = 1});
}

TEST(PollSeatModel, RequestsAndAWaiter) {
  if (kSlow) GTEST_SKIP() << "three million states";
  expect_sound({.replies = 1, .requests = 1, .waits = 1});
}

TEST(PollSeatModel, AHandlerThatWaits) { expect_sound({.replies = 1, .tasks = 1, .nested = 1}); }

TEST(PollSeatModel, MoreHandsThanNeeded) {
  expect_sound({.hands = 3, .max_threads = 3, .tasks = 2});
  if (kSlow) GTEST_SKIP() << "a million states more";
  expect_sound({.hands = 3, .max_threads = 3, .requests = 1, .tasks = 1});
}

TEST(PollSeatModel, AProducerThatIsStopped) {
  expect_sound({.replies = 1, .requests = 1, .freezing = true});
}

// The search is worth something only if it finds what is wrong.
void expect_found(const Settings& settings, std::string_view what) {
  const Findings findings = explore(settings);
  ASSERT_TRUE(findings.complaint) << "not found in " << findings.states << " states";
  EXPECT_NE(findings.complaint->find(what), std::string::npos) << *findings.complaint;
}

TEST(PollSeatModelFaults, LeavingWithoutLooking) {
  expect_found({.fault = Fault::LeaveWithoutLooking, .replies = 1}, "a reply lies");
}
TEST(PollSeatModelFaults, LookingBeforeArming) {
  expect_found({.fault = Fault::LookBeforeArming, .replies = 1}, "a reply lies");
}
TEST(PollSeatModelFaults, ForgettingKnocks) {
  expect_found({.fault = Fault::ForgetKnocks, .replies = 2}, "a reply lies");
}
TEST(PollSeatModelFaults, SilencingALaterSleep) {
  expect_found({.fault = Fault::SilenceALaterSleep, .replies = 1, .requests = 1}, "lies in its ring");
}
TEST(PollSeatModelFaults, ClearingBeforeRinging) {
  expect_found({.fault = Fault::ClearBeforeRinging, .replies = 1, .requests = 1, .freezing = true},
               "a request lies");
}
TEST(PollSeatModelFaults, VacatingWithTasksQueued) {
  expect_found({.fault = Fault::VacateWithTasksQueued, .hands = 3, .max_threads = 3, .tasks = 2},
               "a task lies");
}
TEST(PollSeatModelFaults, InheritingTasksQuietly) {
  expect_found({.fault = Fault::WaiterInheritsQuietly,
                .hands = 3,
                .max_threads = 3,
                .replies = 1,
                .tasks = 2,
                .nested = 1},
               "a task lies");
}
TEST(PollSeatModelFaults, StoppingTheTickWithoutAsking) {
  expect_found({.fault = Fault::StopTickWithoutAsking, .replies = 2, .waits = 2}, "lies in its ring");
}
TEST(PollSeatModelFaults, TrustingAnAnchorThatWasThereAMomentAgo) {
  expect_found({.fault = Fault::TrustTheAnchorOnceSeen, .tasks = 2}, "CREW-1");
}

}  // namespace
}  // namespace hawser::transport
