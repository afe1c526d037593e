#include "hawser/node/references.h"

#include <algorithm>
#include <utility>

#include "hawser/agent/crew.h"
#include "hawser/base/log.h"
#include "hawser/refs/ticket.h"
#include "hawser/refs/wire_form.h"
#include "hawser/transport/doorbell.h"

namespace hawser {
namespace {

Error closed_error() { return Error(ErrorKind::Invalid, "the node is closed"); }

}  // namespace

// ------------------------------------------------------------------------------- handles

RefHandle::RefHandle(std::shared_ptr<References> references, std::string owner, refs::RefId id,
                     std::optional<refs::ForkId> fork, std::string type)
    : references_(std::move(references)),
      owner_(std::move(owner)),
      id_(id),
      fork_(fork),
      type_(std::move(type)) {}

RefHandle::~RefHandle() {
  if (!released()) references_->ended(*this);
}

bool RefHandle::confirmed() const {
  if (is_owner()) return true;
  bool confirmed = false;
  references_->tell(
      [&](References::State& state, TimePoint) { confirmed = state.ledger.confirmed(*fork_); });
  return confirmed;
}

std::optional<Error> RefHandle::error() const {
  if (released()) return Error(ErrorKind::Invalid, "the reference has been released");
  std::optional<Error> error;
  const bool open = references_->tell([&](References::State& state, TimePoint) {
    if (fork_) {
      error = state.ledger.error(*fork_);
    } else if (const auto known = state.values.find(id_);
               known != state.values.end() && known->second.not_created) {
      error = known->second.failure->error;
    }
  });
  return open ? error : closed_error();
}

void RefHandle::release() {
  if (released_.exchange(true, std::memory_order_acq_rel)) return;
  references_->ended(*this);
  references_->tell([](References::State&, TimePoint) {});
}

// Lock-free: see HANDLE-1.
void References::leave_slip(Slip slip) {
  auto* const one = new Slip(slip);
  one->next = slips_.load(std::memory_order_relaxed);
  while (!slips_.compare_exchange_weak(one->next, one, std::memory_order_release,
                                       std::memory_order_relaxed)) {
  }
}

void References::ended(const RefHandle& handle) { leave_slip({handle.id_, handle.fork_}); }

void References::read_slips(State& state, TimePoint now) {
  Slip* latest = slips_.exchange(nullptr, std::memory_order_acquire);
  Slip* next = nullptr;
  while (latest) {  // the oldest first
    Slip* const before = std::exchange(latest->next, next);
    next = std::exchange(latest, before);
  }
  while (next) {
    const std::unique_ptr<Slip> slip(next);
    next = slip->next;
    if (slip->created_by) {
      --state.creating;
      state.ledger.created(*slip->fork, *slip->created_by, now);
      continue;
    }
    handles_alive_.fetch_sub(1, std::memory_order_relaxed);
    if (!slip->fork) {
      state.ledger.let_go(slip->id, now);
      continue;
    }
    const auto known = state.handles.find(*slip->fork);
    // A copy of the ticket may have come since, and with it another handle.
    if (known != state.handles.end() && known->second.handle.expired()) state.handles.erase(known);
    state.ledger.drop(*slip->fork, now);
  }
}

std::shared_ptr<RefHandle> References::new_handle(State& state, std::string owner, refs::RefId id,
                                                  std::optional<refs::ForkId> fork,
                                                  std::string type) {
  auto handle =
      std::make_shared<RefHandle>(shared_from_this(), std::move(owner), id, fork, std::move(type));
  if (fork) state.handles[*fork].handle = handle;
  handles_alive_.fetch_add(1, std::memory_order_relaxed);
  return handle;
}

// ------------------------------------------------------------------------------- the ledger

References::References(refs::Self self, Surroundings surroundings)
    : out_(std::move(surroundings)),
      self_(self.name),
      rank_(refs::rank_of(self.origin)),
      state_(std::in_place, std::move(self)) {}

References::~References() {
  for (Slip* next = slips_.load(std::memory_order_acquire); next;) {
    const std::unique_ptr<Slip> one(next);
    next = one->next;
  }
}

bool References::tell(Happening event, Manner manner) {
  const auto alive = out_.alive.lock();
  if (!alive) return false;
  const TimePoint now = out_.clock.now();
  refs::Actions actions;
  std::optional<TimePoint> timer;
  {
    auto state = state_.lock();
    if (state->closed) return false;
    if (manner.slips_first) read_slips(*state, now);
    event(*state, now);
    const bool post_now = manner.post == Post::Now || state->ledger.has_plenty_to_say();
    actions = post_now ? state->ledger.take_actions(now) : state->ledger.take_actions_here();
    timer = next_timer(*state, now);
  }
  if (timer) {
    out_.timers.schedule(*timer, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->timer_fired();
    });
  }
  perform(std::move(actions), manner.at_the_end);
  return true;
}

void References::ask(Happening event, Manner manner) {
  if (!tell(event, manner)) throw closed_error();
}

// When tell() is wanted next, if nobody has seen to that yet.
std::optional<TimePoint> References::next_timer(State& state, TimePoint now) {
  const Deadline due = state.ledger.next_due();
  TimePoint at = due.is_never() ? TimePoint::max() : due.at();
  if (handles_alive_.load(std::memory_order_relaxed) > 0) at = std::min(at, now + kTidyInterval);
  if (state.ledger.has_something_to_say()) at = std::min(at, now + kPostInterval);
  const bool looks_soon = state.creating > 0 && now - state.last_creation < kQuickCreation;
  if (looks_soon) at = std::min(at, now + kLookInterval);
  if (at >= state.timer_due) return std::nullopt;
  state.timer_due = at;
  return at;
}

void References::timer_fired() {
  bool creating = false;
  tell(
      [&](State& state, TimePoint now) {
        if (state.timer_due <= now) state.timer_due = TimePoint::max();
        state.ledger.tick(now);
        creating = state.creating > 0;
      },
      {.post = Post::Now});
  if (creating) out_.bell->ring_if_asleep();  // LEISURE-1
}

// Those who wait for what has just happened to the fork.
References::Watchers References::take_watchers(const refs::ForkId& fork) {
  std::unique_ptr<Watchers> taken;
  {
    auto state = state_.lock();
    const auto known = state->handles.find(fork);
    if (known != state->handles.end()) taken = std::move(known->second.watchers);
  }
  return taken ? std::move(*taken) : Watchers{};
}

// Those who only want a copy of the value get it from the hand that has made it, if there is one:
// waking another would take longer. Methods may take any time, and wait for each other.
void References::wake(const refs::Wake& wake, bool at_the_end) {
  Waiting waiting;
  {
    auto state = state_.lock();
    const auto known = state->waiting.find(static_cast<std::uint64_t>(wake.waiter));
    if (known == state->waiting.end()) return;
    waiting = std::move(known->second);
    state->waiting.erase(known);
  }
  const bool here = at_the_end && waiting.brief;
  auto task = [self = shared_from_this(), finding = wake.finding,
               waiting = std::move(waiting)]() mutable {
    Found what;
    {
      auto state = self->state_.lock();
      what = self->found(*state, waiting.id, finding);
    }
    waiting.then(std::move(what));
  };
  if (here) {
    out_.crew->post_last(std::move(task));
  } else {
    out_.crew->post(std::move(task));
  }
}

void References::perform(refs::Actions&& actions, bool at_the_end) {
  std::vector<refs::RefId> dropped;
  for (refs::Action& action : actions) {
    if (auto* send = std::get_if<refs::Send>(&action)) {
      // What is not sent is sent again when there is a connection. One that is just ending is
      // reported by the agent.
      const bool sent =
          out_.agent.send_to(send->to.name, send->to.incarnation, refs::to_wire(send->message));
      if (!sent && !out_.agent.reach(send->to.name)) disconnected(send->to.name);
    } else if (auto* reach = std::get_if<refs::Reach>(&action)) {
      if (const auto there = out_.agent.reach(reach->peer)) connected(reach->peer, *there);
    } else if (auto* told = std::get_if<refs::TellLost>(&action)) {
      out_.agent.tell_lost(told->party.name, told->party.incarnation);
    } else if (auto* drop = std::get_if<refs::DropValue>(&action)) {
      dropped.push_back(drop->ref);
    } else if (auto* woken = std::get_if<refs::Wake>(&action)) {
      wake(*woken, at_the_end);
    } else if (auto* confirmed = std::get_if<refs::Confirmed>(&action)) {
      for (const auto& event : take_watchers(confirmed->fork).waiting) event->set();
    } else if (auto* failed = std::get_if<refs::Failed>(&action)) {
      const Watchers watchers = take_watchers(failed->fork);
      for (const auto& event : watchers.waiting) event->set();
      for (const auto& [use, call] : watchers.uses) agent::Agent::cancel(call, failed->why);
    }
  }
  if (dropped.empty()) return;
  auto values = std::make_shared<std::vector<Value>>();
  {
    auto state = state_.lock();
    for (const refs::RefId& id : dropped) {
      const auto known = state->values.find(id);
      if (known == state->values.end()) continue;
      values->push_back(std::move(known->second));
      state->values.erase(known);
    }
  }
  // Destructors of values are user code.
  if (!values->empty()) out_.crew->post([values = std::move(values)]() mutable { values.reset(); });
}

// ------------------------------------------------------------------------------- the program

Node& References::node() {
  ask([](State&, TimePoint) {});
  return out_.node;
}

std::shared_ptr<RefHandle> References::keep(std::shared_ptr<Kept> value, std::string origin) {
  std::shared_ptr<RefHandle> handle;
  std::string type = value->type_name();
  ask([&](State& state, TimePoint now) {
    const refs::RefId id = state.ledger.make(true, now);
    state.values.emplace(id, Value{.value = std::move(value), .origin = origin});
    handle = new_handle(state, self_, id, std::nullopt, std::move(type));
    handle->origin_ = std::move(origin);
  });
  return handle;
}

References::Creation References::create(const std::string& owner, std::string_view function,
                                        std::string type, std::string origin) {
  Creation creation;
  const auto event = [&](State& state, TimePoint now) {
    std::optional<refs::ForkId> fork;
    if (owner == self_) {
      const refs::RefId id = state.ledger.make(false, now);
      state.values.emplace(id, Value{.made_by = std::string(function), .origin = origin});
      creation.note.ref = {id.on, id.local};
      creating_own_.fetch_add(1, std::memory_order_relaxed);
    } else {
      creation.note = state.ledger.create(owner, now);
      ++state.creating;
      state.last_creation = now;
      out_.crew->attend(now);
      fork = refs::fork_of(creation.note);
    }
    creation.handle = new_handle(state, owner, refs::ref_of(creation.note), fork, std::move(type));
    creation.handle->origin_ = std::move(origin);
  };
  ask(event, {.slips_first = false});
  return creation;
}

void References::creation_ended(const RefHandle& handle, const agent::Answer& answer) {
  const auto why = [&] {
    return Error(answer.error->kind(), std::string(kNotCreated) + answer.error->message(),
                 answer.error->details());
  };
  if (handle.is_owner()) {
    if (answer.error) {
      // It never ran, or nobody knows how it ended.
      settle(handle.id(), Found{.failure = KeptFailure{why(), {}}}, /*at_the_end=*/false);
      tell([&](State& state, TimePoint) {
        const auto known = state.values.find(handle.id());
        if (known == state.values.end()) return;
        known->second.not_created = known->second.failure != nullptr;
      });
    }
    creating_own_.fetch_sub(1, std::memory_order_release);
    return;
  }
  if (!answer.error) return leave_slip({handle.id_, handle.fork_, answer.sent_to});
  tell([&](State& state, TimePoint now) {
    --state.creating;
    state.ledger.creation_failed(*handle.fork(), why(), answer.sent_to, now);
  });
}

std::shared_ptr<Event> References::answer_of_owner(const RefHandle& handle) {
  std::shared_ptr<Event> event;
  if (handle.is_owner()) return event;
  tell([&](State& state, TimePoint) {
    if (state.ledger.confirmed(*handle.fork()) || state.ledger.error(*handle.fork())) return;
    event = std::make_shared<Event>();
    state.handles[*handle.fork()].watched().waiting.push_back(event);
  });
  return event;
}

References::Use References::begin_use(const RefHandle& handle) {
  if (handle.released()) throw Error(ErrorKind::Invalid, "the reference has been released");
  if (handle.is_owner()) return Use::Safe;
  Use use = Use::Safe;
  std::optional<Error> refusal;
  ask([&](State& state, TimePoint) {
    const auto owner = state.ledger.begin_use(*handle.fork());
    if (!owner.ok()) {
      refusal = owner.error();
    } else if (!state.ledger.confirmed(*handle.fork())) {
      use = Use{state.next_number++};
      state.handles[*handle.fork()].watched().uses.emplace(static_cast<std::uint64_t>(use),
                                                           agent::CallHandle{});
    }
  });
  if (refusal) throw *refusal;
  return use;
}

void References::end_use(const RefHandle& handle, Use use) {
  if (handle.is_owner()) return;
  tell([&](State& state, TimePoint now) {
    if (use != Use::Safe) {
      const auto known = state.handles.find(*handle.fork());
      if (known != state.handles.end() && known->second.watchers) {
        known->second.watchers->uses.erase(static_cast<std::uint64_t>(use));
      }
    }
    state.ledger.end_use(*handle.fork(), now);
  });
}

void References::cancel_with(const RefHandle& handle, Use use, const agent::CallHandle& call) {
  if (use == Use::Safe) return;
  std::optional<Error> failed;
  tell([&](State& state, TimePoint) {
    failed = state.ledger.error(*handle.fork());
    const auto known = state.handles.find(*handle.fork());
    if (failed || known == state.handles.end() || !known->second.watchers) return;
    auto& uses = known->second.watchers->uses;
    const auto entry = uses.find(static_cast<std::uint64_t>(use));
    if (entry != uses.end()) entry->second = call;  // else it has ended already
  });
  if (failed) agent::Agent::cancel(call, *failed);
}

// ------------------------------------------------------------------------------- the world

void References::connected(const std::string& peer, Incarnation incarnation) {
  if (peer == self_) return;
  tell([&](State& state, TimePoint now) { state.ledger.met({peer, incarnation}, now); });
}

void References::disconnected(const std::string& peer) {
  if (peer == self_) return;
  tell([&](State& state, TimePoint now) { state.ledger.disconnected(peer, now); });
}

void References::barred(const std::string& peer, Incarnation incarnation) {
  tell([&](State& state, TimePoint now) { state.ledger.lost({peer, incarnation}, now); });
}

// Calls to a peer that cannot be reached fail, and that may pass. References cannot wait for it: to
// be able to go on without it, it must not come back as who it was.
void References::given_up(const std::string& peer) {
  bool concerned = false;
  Incarnation known{};  // by tickets, though it may never have been met
  tell([&](State& state, TimePoint) {
    concerned = state.ledger.concerns(peer);
    known = state.ledger.known_life(peer);
  });
  if (!concerned) return;
  const auto gone = out_.agent.bar(peer, known);
  if (!gone) return;  // it is there after all
  barred(peer, *gone);
  if (*gone != Incarnation{}) barred(peer, Incarnation{});  // nor is there any other
}

void References::rejoined(Incarnation incarnation) {
  tell([&](State& state, TimePoint now) {
    state.incarnation = incarnation;
    state.ledger.rejoined({self_, incarnation, refs::origin_of(rank_, incarnation)}, now);
  });
}

void References::received(const std::string& peer, Incarnation incarnation,
                          wire::References&& message) {
  tell([&](State& state, TimePoint now) {
    state.ledger.receive({peer, incarnation}, refs::from_wire(std::move(message)), now);
  });
}

// ------------------------------------------------------------------------------- the end

bool References::entangled() {
  bool holds = false;
  bool is_held = false;
  tell([&](State& state, TimePoint now) {
    const auto held = state.ledger.held(now);
    holds =
        std::any_of(held.begin(), held.end(), [](const auto& each) { return each.handles > 0; });
    if (!holds) return;
    const auto owned = state.ledger.owned(now);
    is_held = std::any_of(owned.begin(), owned.end(), [](const auto& each) {
      return each.local == 0 && !each.holders.empty();
    });
  });
  return holds && is_held;
}

void References::release_all() {
  tell([](State& state, TimePoint now) { state.ledger.release_all(now); }, {.post = Post::Now});
}

bool References::idle() {
  bool idle = true;
  tell([&](State& state, TimePoint) { idle = state.ledger.idle(); }, {.post = Post::Now});
  return idle;
}

void References::close() {
  decltype(State::values) values;
  decltype(State::waiting) waiting;
  decltype(State::handles) handles;
  {
    auto state = state_.lock();
    state->closed = true;
    values.swap(state->values);
    waiting.swap(state->waiting);
    handles.swap(state->handles);
  }
  // Nobody is left waiting for what will not come.
  for (auto& [number, somebody] : waiting) {
    Found nothing;
    {
      auto state = state_.lock();
      nothing = found(*state, somebody.id, refs::Finding::Gone);
    }
    somebody.then(std::move(nothing));
  }
  for (const auto& [fork, handle] : handles) {
    if (!handle.watchers) continue;
    for (const auto& event : handle.watchers->waiting) event->set();
  }
}

}  // namespace hawser
