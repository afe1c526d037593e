#include "hawser/transport/sim/sim_world.h"

#include <cstring>

namespace hawser::transport::sim {
namespace {

constexpr std::uint64_t kHashStart = 0xcbf29ce484222325;
constexpr std::uint64_t kHashFactor = 0x100000001b3;

std::uint64_t hash_of(std::string_view text, std::uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kHashFactor;
  return hash;
}

}  // namespace

// ---------------------------------------------------------------------------------- chance

// SplitMix64: a counter, well stirred. Any seed will do, 0 included.
std::uint64_t SeededRandom::draw() {
  state_ += 0x9e3779b97f4a7c15;
  std::uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

void SeededRandom::fill(std::span<std::byte> out) {
  while (!out.empty()) {
    const std::uint64_t word = draw();
    const std::size_t size = std::min(out.size(), sizeof word);
    std::memcpy(out.data(), &word, size);
    out = out.subspan(size);
  }
}

Duration SeededRandom::between(Duration shortest, Duration longest) {
  const auto span = static_cast<std::uint64_t>((longest - shortest).count());
  return shortest + Duration(static_cast<std::int64_t>(below(span + 1)));
}

// ---------------------------------------------------------------------------------- processes

Timers::Id SimProcess::schedule(TimePoint at, UniqueFunction<void()> task) {
  return Id{world_.at(at, std::move(task), shared_from_this())};
}

Timers::Id SimProcess::schedule_after(Duration delay, UniqueFunction<void()> task) {
  return Id{world_.after(delay, std::move(task), shared_from_this())};
}

void SimProcess::cancel(Id id) {
  const auto number = static_cast<std::uint64_t>(id);
  std::erase_if(held_, [&](const auto& held) { return held.first == number; });
  world_.cancel(number);
}

// In order, whatever order the events that announce them are drawn in.
void SimProcess::post(UniqueFunction<void()> task) {
  posted_.push_back(std::move(task));
  schedule_after(Duration::zero(), [this] { run_posted(); });
}

void SimProcess::run_posted() {
  UniqueFunction<void()> task = std::move(posted_.front());
  posted_.pop_front();
  task();
}

void SimProcess::stop() {
  if (state_ == State::Running) state_ = State::Stopped;
}

void SimProcess::resume() {
  if (state_ != State::Stopped) return;
  state_ = State::Running;
  auto agenda = world_.agenda_.lock();
  for (auto& [id, task] : held_) {
    world_.add(*agenda, id, world_.now(), {shared_from_this(), std::move(task)});
  }
  held_.clear();
}

// What its events hold dies with it, and may look at the process while it does.
void SimProcess::kill() {
  state_ = State::Dead;
  std::exchange(held_, {}).clear();
  std::exchange(posted_, {}).clear();
}

// ---------------------------------------------------------------------------------- the world

SimWorld::SimWorld(std::uint64_t seed)
    : seed_(seed),
      start_(clock_.now()),
      agenda_(Agenda(stream("ties").draw())),
      history_(kHashStart) {}

SeededRandom SimWorld::stream(std::string_view purpose) const {
  return SeededRandom(SeededRandom(hash_of(purpose, kHashStart) ^ seed_).draw());
}

std::shared_ptr<SimProcess> SimWorld::start_process(std::string name) {
  return std::make_shared<SimProcess>(*this, std::move(name));
}

void SimWorld::add(Agenda& agenda, EventId id, TimePoint when, Event event) {
  const Key key{std::max(when, clock_.now()), agenda.ties.draw(), id};
  agenda.events.emplace(key, std::move(event));
  agenda.keys.emplace(id, key);
}

SimWorld::EventId SimWorld::at(TimePoint when, UniqueFunction<void()> task,
                               std::shared_ptr<SimProcess> process) {
  auto agenda = agenda_.lock();
  const EventId id = agenda->next_id++;
  add(*agenda, id, when, {std::move(process), std::move(task)});
  return id;
}

SimWorld::EventId SimWorld::after(Duration delay, UniqueFunction<void()> task,
                                  std::shared_ptr<SimProcess> process) {
  auto agenda = agenda_.lock();
  const EventId id = agenda->next_id++;
  add(*agenda, id, clock_.now() + delay, {std::move(process), std::move(task)});
  return id;
}

void SimWorld::cancel(EventId id) {
  Event cancelled;  // dies after the lock is released
  auto agenda = agenda_.lock();
  const auto found = agenda->keys.find(id);
  if (found == agenda->keys.end()) return;
  const auto event = agenda->events.find(found->second);
  cancelled = std::move(event->second);
  agenda->events.erase(event);
  agenda->keys.erase(found);
  agenda.unlock();
}

bool SimWorld::step() {
  Event event;
  EventId id = 0;
  {
    auto agenda = agenda_.lock();
    if (agenda->events.empty()) return false;
    const auto next = agenda->events.begin();
    clock_.advance_to(next->first.when);
    id = next->first.id;
    agenda->keys.erase(id);
    event = std::move(next->second);
    agenda->events.erase(next);
  }
  ++events_run_;
  if (!event.process || event.process->state() == SimProcess::State::Running) {
    event.task();
  } else if (event.process->state() == SimProcess::State::Stopped) {
    event.process->held_.emplace_back(id, std::move(event.task));
  }
  return true;
}

void SimWorld::run_until(TimePoint when) {
  const auto more = [&] {
    auto agenda = agenda_.lock();
    return !agenda->events.empty() && agenda->events.begin()->first.when <= when;
  };
  while (more()) step();
  auto agenda = agenda_.lock();
  clock_.advance_to(when);
}

// What an event holds may schedule others when it dies.
void SimWorld::clear() {
  for (;;) {
    std::map<Key, Event> dropped;
    {
      auto agenda = agenda_.lock();
      dropped.swap(agenda->events);
      agenda->keys.clear();
    }
    if (dropped.empty()) return;
  }
}

void SimWorld::mix(std::uint64_t number) {
  for (int byte = 0; byte < 8; ++byte) {
    history_ = (history_ ^ ((number >> (8 * byte)) & 0xff)) * kHashFactor;
  }
}

void SimWorld::mix(std::string_view text) { history_ = hash_of(text, history_); }

}  // namespace hawser::transport::sim
