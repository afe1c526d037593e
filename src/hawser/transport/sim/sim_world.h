#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/guarded.h"
#include "hawser/base/random.h"
#include "hawser/base/timers.h"
#include "hawser/base/unique_function.h"

// A world without threads, sockets and real time: everything that happens in it is an event, and
// one seed decides in which order events happen. The same seed gives the same history.
namespace hawser::transport::sim {

// A stream of chance that a seed decides.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed) {}

  void fill(std::span<std::byte> out) override;
  std::uint64_t draw();
  std::uint64_t below(std::uint64_t bound) { return draw() % bound; }
  bool per_mille(unsigned chance) { return below(1000) < chance; }
  Duration between(Duration shortest, Duration longest);
  template <class T>
  const T& one_of(const std::vector<T>& choices) {
    return choices[below(choices.size())];
  }

 private:
  std::uint64_t state_;
};

class SimWorld;

// The process that a node lives in: its events wait while it is stopped, and are gone when it is
// killed. Also its timers. Used by the simulator's thread, schedule() by any.
class SimProcess final : public Timers, public std::enable_shared_from_this<SimProcess> {
 public:
  enum class State { Running, Stopped, Dead };

  SimProcess(SimWorld& world, std::string name) : world_(world), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  SimWorld& world() const { return world_; }
  State state() const { return state_; }
  bool dead() const { return state_ == State::Dead; }

  Id schedule(TimePoint at, UniqueFunction<void()> task) override;
  Id schedule_after(Duration delay, UniqueFunction<void()> task);
  void cancel(Id id) override;
  void post(UniqueFunction<void()> task) override;

  void stop();  // SIGSTOP
  void resume();
  void kill();

 private:
  friend class SimWorld;
  void run_posted();

  SimWorld& world_;
  const std::string name_;
  State state_ = State::Running;
  // Events that came while it was stopped, by their ids.
  std::vector<std::pair<std::uint64_t, UniqueFunction<void()>>> held_;
  std::deque<UniqueFunction<void()>> posted_;
};

class SimWorld {
 public:
  using EventId = std::uint64_t;

  explicit SimWorld(std::uint64_t seed);
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  const Clock& clock() const { return clock_; }
  TimePoint now() const { return clock_.now(); }
  // A stream of its own for each purpose, so that one more draw here changes nothing there.
  SeededRandom stream(std::string_view purpose) const;

  std::shared_ptr<SimProcess> start_process(std::string name);

  // Events of the world itself, and of a process. Any thread.
  EventId at(TimePoint when, UniqueFunction<void()> task,
             std::shared_ptr<SimProcess> process = nullptr);
  EventId after(Duration delay, UniqueFunction<void()> task,
                std::shared_ptr<SimProcess> process = nullptr);
  void cancel(EventId id);

  // Runs the next event. False when there is none.
  bool step();
  // Runs all events up to then; the clock stands there afterwards.
  void run_until(TimePoint when);
  // Nothing that was to happen will: lets go of what the events hold.
  void clear();
  std::size_t events_run() const { return events_run_; }

  // The history: hashed always, told line by line while somebody listens. Parts are numbers and
  // texts.
  template <class... Parts>
  void note(const Parts&... parts) {
    mix(static_cast<std::uint64_t>(now().time_since_epoch().count()));
    (mix(parts), ...);
    if (listener_) tell(parts...);
  }
  std::uint64_t history() const { return history_; }
  void listen(std::function<void(const std::string& line)> listener) {
    listener_ = std::move(listener);
  }

 private:
  struct Event {
    std::shared_ptr<SimProcess> process;
    UniqueFunction<void()> task;
  };
  // Events of one moment happen in an order that the seed decides.
  struct Key {
    TimePoint when;
    std::uint64_t tie;
    EventId id;
    auto operator<=>(const Key&) const = default;
  };
  struct Agenda {
    explicit Agenda(std::uint64_t seed) : ties(seed) {}
    SeededRandom ties;
    EventId next_id = 1;
    std::map<Key, Event> events;
    std::unordered_map<EventId, Key> keys;
  };

  friend class SimProcess;
  void add(Agenda& agenda, EventId id, TimePoint when, Event event);
  void mix(std::uint64_t number);
  void mix(std::string_view text);
  template <class... Parts>
  void tell(const Parts&... parts) {
    std::ostringstream line;
    const auto since = now() - start_;
    line << std::chrono::duration_cast<std::chrono::microseconds>(since).count() << " us ";
    ((line << ' ' << parts), ...);
    listener_(line.str());
  }

  const std::uint64_t seed_;
  ManualClock clock_;  // moved under the agenda's lock, by the simulator's thread
  const TimePoint start_;
  Guarded<Agenda> agenda_;
  std::size_t events_run_ = 0;
  std::uint64_t history_;
  std::function<void(const std::string&)> listener_;
};

}  // namespace hawser::transport::sim
