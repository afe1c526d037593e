#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#include "hawser/transport/poll_seat.h"

// A model of the wake-up protocol of doorbell.h, poll_seat.h and the crew: producers, somebody who
// posts tasks, hands, and a waiter. The seat is the real PollSeat. Each step of a thread in the
// model is one atomic operation, or one critical section, of the real one. poll_seat_model_test.cpp
// runs it through every interleaving.
//
// What changes nothing that others see is not in it: a waiter that asks a hand for the seat
// (Crew::ask_for_seat) is one that tries to take it later, and a hand that looks on for longer
// (Crew::Expectation) one that is slow to leave; it may leave at any time here.
namespace hawser::transport::model {

using State = PollSeat::State;

// Ways to get it wrong that the search has to find.
enum class Fault {
  None,
  LeaveWithoutLooking,     // arms and leaves
  LookBeforeArming,        // looks and then arms
  ForgetKnocks,            // a knock on a taken seat leaves no mark
  SilenceALaterSleep,      // a producer clears whatever it finds, not the sleep it has rung for
  ClearBeforeRinging,      // ... before it rings, and is stopped in between
  VacateWithTasksQueued,   // trusts the mark, which an attempt to leave has taken back
  WaiterInheritsQuietly,   // does not ring for tasks left to the hand whose seat it gets
  StopTickWithoutAsking,   // does not compare lends after stopping the tick
  TrustTheAnchorOnceSeen,  // goes into user code because somebody else was awake a moment ago
  GiveBackQuietly,         // does not ring for tasks left to the hand whose seat it gives back
  SleepWithWorkLeft,       // a helper sleeps although it has read work of its own
  MissTheTheft,            // a helper polls on after its work, whether or not it still has the seat
};

struct Settings {
  Fault fault = Fault::None;
  std::uint8_t hands = 2;  // to begin with
  std::uint8_t max_threads = 2;
  std::uint8_t replies = 0;   // frames for the waiter
  std::uint8_t requests = 0;  // frames for a hand to run
  std::uint8_t tasks = 0;     // posted by others
  std::uint8_t waits = 0;
  std::uint8_t nested = 0;  // waits inside handlers
  bool freezing = false;    // the producer of replies may be stopped for good at any point
  bool sleeping = false;    // waits may be Crew::sleep(), which gives back a seat that was lent
  bool helping = false;     // the waiter is a helper: a reply that it reads is work for it
};

// clang-format off
enum class At : std::uint8_t {
  // A producer.
  Publish, CheckSleeping, Ring, ClearSleeping, Frozen,
  // Whoever posts a task.
  Enqueue, Nudge, RingForTask,
  // A hand that does not have the seat, or is on its way to run a task.
  Work, Stepping, StepSlowly, Dequeue, AnchorOrPark, Parked, Asleep, Ticked, Steal, StopTimer,
  StopTick, AskLends, RestartTick, Unanchor, Knock,
  // A hand on the seat, and after that.
  Lead, LookForTasks, LookForReplies, LookForRequests, LendForTask, TickA, TickB, BriefUserCode,
  UserCode, SitAgain,
  // Leaving, vacating: hands and waiters.
  Arm, ArmedReplies, ArmedRequests, ArmedTasks, Leave, VacateArm, VacateReplies, VacateRequests,
  Vacate, VacateRing,
  // A waiter, also a hand in user code.
  Idle, GiveBack, Reclaim, SeeAway, StealToWait, Take, WaitDisarm, InheritTasks, GiveBackTasks,
  StayDisarm, WaitReplies, WaitRequests, HandOver, HandOverNudge, HandOverRing, HelpLend, Lend,
  SleepOnEvent, Help,
};
// clang-format on

struct Sender {
  At at = At::Publish;
  std::uint8_t left = 0;
  bool stale = false;  // the sleep it has seen is over
};

struct Thread {
  At at = At::Idle;
  At after_task = At::Work;  // where a hand goes on when user code returns
  At after_wait = At::Idle;  // where the waiter's user code goes on
  std::uint8_t needs = 0;    // replies that must have come before it stops waiting
  bool flag = false;         // something was there while vacating; the seat was stolen in a tick
  bool brief = false;        // what it runs, the work of a helper too
};

constexpr std::size_t kHands = 3;
constexpr std::size_t kWaiter = kHands;
constexpr std::uint8_t kMostAnchors = 2;

struct World {
  std::uint64_t seat = 0;
  bool sleeping = false;
  bool bell = false;
  std::uint8_t replies = 0, requests = 0, tasks = 0, received = 0;
  std::uint8_t anchored = 0, parked = 0, summoned = 0, lookouts = 0;
  bool timer = false, tick = false;
  bool lent_since_tick = false, lent_since_asked = false;  // what counting lends() tells the anchor
  std::uint8_t waits_left = 0, nested_left = 0, hands = 0;
  std::uint8_t work = 0;  // that the helper has read and not yet done
  Sender reply_sender, request_sender;
  Sender poster;
  std::array<Thread, kHands + 1> threads;
  std::array<std::uint8_t, 5> padding{};  // worlds are compared and hashed as bytes

  bool operator==(const World& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(std::has_unique_object_representations_v<World>);

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
    for (std::size_t i = 0; i < world_.hands; ++i) step(i);
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
    return world.lookouts < 2 && world.hands >= settings_.max_threads;
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
  static bool must_ring(State found) {
    return found != State::HandPolls && found != State::HandAway;
  }

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
        if (next.anchored >= kMostAnchors) {
          ++next.parked;
          return go(next, who, At::Parked);
        }
        ++next.anchored;
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
        --next.anchored;
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

  // Never takes the last lookout; gets a new one if it may.
  bool one_lookout_fewer(World& next) {
    if (next.lookouts < 2) {
      if (next.hands >= settings_.max_threads) return false;
      next.threads[next.hands].at = At::Work;
      ++next.hands;
      ++next.lookouts;
    }
    --next.lookouts;
    return true;
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
    if (!one_lookout_fewer(next)) return go(next, who, me.after_task);
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
    // One at a time: there is a lock.
    const bool ticking = std::any_of(
        world_.threads.begin(), world_.threads.end(),
        [](const Thread& one) { return one.at >= At::Ticked && one.at <= At::RestartTick; });
    if (world_.timer && !ticking) go(world_, who, At::Ticked);
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
        me.flag =
            on_seat(next, [&](auto& seat) { return seat.steal(sitter(who), State::HandPolls); });
        return go(next, who, me.flag ? At::Unanchor : At::Asleep);
      case At::StopTimer:
        next.timer = false;
        return go(next, who, At::StopTick);
      case At::StopTick:
        next.tick = false;
        return go(next, who, At::AskLends);
      case At::AskLends: {
        const bool lent =
            std::exchange(next.lent_since_asked, false) && !faulty(Fault::StopTickWithoutAsking);
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
    if (!one_lookout_fewer(next)) {
      ++next.tasks;
      return go(next, who, At::LookForTasks);
    }
    // The slow path of step_away() at once: nobody else looks at what it changes in between.
    const std::uint8_t lying = next.parked - next.summoned;
    if (next.anchored == 0 && lying > 0 && next.lookouts <= lying) ++next.summoned;
    run_seated(next, who);
  }

  // After the seat was lent.
  void start_user_code(World next, std::size_t who) {
    const Thread& me = next.threads[who];
    if (me.needs == 0) return go(next, who, At::BriefUserCode);
    if (me.brief && who == kWaiter) return go(next, who, At::Help);
    end_wait(next, who);
  }

  void in_user_code(std::size_t who) {
    World next = world_;
    Thread& me = next.threads[who];
    if (next.nested_left > 0) {
      World nesting = next;
      --nesting.nested_left;
      nesting.threads[who].after_wait = me.at;
      nesting.threads[who].needs = settings_.replies;
      begin_wait(nesting, who);
    }
    ++next.lookouts;
    go(next, who,
       me.at == At::BriefUserCode || me.after_task == At::SitAgain ? At::SitAgain : At::Work,
       Kind::May);
  }

  void sit_again(std::size_t who) {
    World next = world_;
    const bool reclaimed =
        on_seat(next, [&](auto& seat) { return seat.reclaim(sitter(who), State::HandPolls); });
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
        return go(next, who, faulty(Fault::LeaveWithoutLooking) ? At::Leave : At::ArmedReplies);
      case At::ArmedReplies:
        return next.replies > 0 ? stay(next, who) : go(next, who, At::ArmedRequests);
      case At::ArmedRequests:
        return next.requests > 0 ? stay(next, who) : go(next, who, At::ArmedTasks);
      case At::ArmedTasks:
        if (faulty(Fault::LookBeforeArming)) arm(next);
        return !waits && can_serve(next) ? stay(next, who) : go(next, who, At::Leave);
      case At::Leave: {
        const State polls = waits ? State::WaiterPolls : State::HandPolls;
        const bool left = on_seat(next, [&](auto& seat) { return seat.leave(sitter(who), polls); });
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
    go(next, who, At::StayDisarm);
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
        if (next.received < me.needs) return begin_wait(next, who);
        me.needs = 0;
        return go(next, who, At::Idle, Kind::May);
      case At::GiveBack: {
        const bool mine = on_seat(
            next, [&](auto& seat) { return seat.reclaim(sitter(who), State::WaiterPolls); });
        return go(next, who, mine ? At::GiveBackTasks : At::SleepOnEvent);
      }
      case At::GiveBackTasks:
        if (can_serve(next) && !faulty(Fault::GiveBackQuietly)) next.bell = true;
        return go(next, who, At::Arm);
      case At::Reclaim:
      case At::SeeAway:
      case At::StealToWait:
      case At::Take:
        return sit_down_to_wait(who);
      case At::WaitDisarm:
        next.sleeping = false;
        return go(next, who, At::InheritTasks);
      case At::InheritTasks:
        if (can_serve(next) && !faulty(Fault::WaiterInheritsQuietly)) next.bell = true;
        return go(next, who, At::WaitReplies);
      case At::StayDisarm:
        next.sleeping = false;
        return go(next, who, At::WaitReplies);
      case At::WaitReplies:
        if (happened) get_up(who);
        if (is_helper(who) && next.work > 0) start_to_help(who);
        if (next.replies == 0) return go(next, who, At::WaitRequests);
        --next.replies;
        ++(is_helper(who) ? next.work : next.received);
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
      case At::HelpLend:
      case At::Lend:
        if (me.at == At::HelpLend) me.brief = true;
        on_seat(next, [](auto& seat) { return seat.lend(), 0; });
        return go(next, who, At::TickA);
      case At::Help:
        next.received += std::exchange(next.work, 0);
        if (std::exchange(me.brief, false) && faulty(Fault::MissTheTheft)) {
          return go(next, who, At::WaitReplies, Kind::May);
        }
        return go(next, who, sits_down_by(who), Kind::May);
      default:
        if (happened) return end_wait(next, who);
        if (is_helper(who) && next.work > 0 && !faulty(Fault::SleepWithWorkLeft)) {
          go(next, who, At::Help);
        }
    }
  }

  bool is_helper(std::size_t who) const { return settings_.helping && who == kWaiter; }

  // Lends the seat meanwhile, or vacates it first; or has read it when it was about to leave.
  void start_to_help(std::size_t who) {
    go(world_, who, At::HelpLend);
    go(world_, who, At::VacateArm);
    go(world_, who, At::Arm);
  }

  void begin_wait(const World& next, std::size_t who) {
    go(next, who, sits_down_by(who), Kind::May);
    if (settings_.sleeping) go(next, who, At::GiveBack, Kind::May);
  }

  // Only its own lend() can make reclaim() succeed, so that no other step can change its outcome.
  At sits_down_by(std::size_t who) const {
    return world_.seat >> 32 == sitter(who) ? At::Reclaim : At::SeeAway;
  }

  void sit_down_to_wait(std::size_t who) {
    World next = world_;
    const At at = next.threads[who].at;
    const auto try_to = [&](auto operation, At otherwise) {
      const bool seated = on_seat(next, operation);
      const At seat_taken = at == At::Take ? At::WaitDisarm : At::InheritTasks;
      go(next, who, seated ? seat_taken : otherwise);
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

}  // namespace hawser::transport::model
