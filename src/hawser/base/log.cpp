#include "hawser/base/log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>

#include "hawser/base/error.h"

namespace hawser::log {
namespace {

Level parse_level(std::string_view word) {
  if (word == "debug") return Level::Debug;
  if (word == "info") return Level::Info;
  if (word == "warning") return Level::Warning;
  if (word == "error") return Level::Error;
  if (word == "off") return Level::Off;
  throw Error(ErrorKind::Invalid, "HAWSER_LOG: unknown level '" + std::string(word) +
                                      "' (debug, info, warning, error or off)");
}

struct Levels {
  Level fallback = Level::Warning;
  std::map<std::string, Level, std::less<>> by_layer;
};

Levels parse(std::string_view specification) {
  Levels levels;
  while (!specification.empty()) {
    const auto comma = specification.find(',');
    const auto item = specification.substr(0, comma);
    specification = comma == std::string_view::npos ? "" : specification.substr(comma + 1);
    if (item.empty()) continue;
    const auto equals = item.find('=');
    if (equals == std::string_view::npos) {
      levels.fallback = parse_level(item);
    } else {
      levels.by_layer[std::string(item.substr(0, equals))] = parse_level(item.substr(equals + 1));
    }
  }
  return levels;
}

// Logging must work in destructors at exit and in a forked child, so this state is never destroyed.
struct State {
  std::mutex mutex;
  std::shared_ptr<const Levels> levels;
  std::shared_ptr<const Sink> sink;
};
State& state() {
  static State* const state = new State;
  return *state;
}
std::atomic<Level> most_verbose{Level::Debug};

std::shared_ptr<const Levels> adopt(State& state, Levels parsed) {
  Level lowest = parsed.fallback;
  for (const auto& [layer, level] : parsed.by_layer) lowest = std::min(lowest, level);
  most_verbose.store(lowest, std::memory_order_relaxed);
  return state.levels = std::make_shared<const Levels>(std::move(parsed));
}

std::shared_ptr<const Levels> current_levels() {
  std::lock_guard lock(state().mutex);
  if (state().levels) return state().levels;
  const char* text = std::getenv("HAWSER_LOG");
  try {
    return adopt(state(), parse(text ? text : ""));
  } catch (const Error& error) {
    // A misspelt variable must not stop a program that only wants to log.
    ::dprintf(STDERR_FILENO, "hawser: %s\n", error.what());
    return adopt(state(), Levels{});
  }
}

void write_to_stderr(Level level, std::string_view layer, std::string_view line) {
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error", "off"};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  ::localtime_r(&now.tv_sec, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%H:%M:%S", &local);
  ::dprintf(STDERR_FILENO, "%s.%03ld hawser[%d] %s %.*s: %.*s\n", stamp, now.tv_nsec / 1'000'000,
            static_cast<int>(::getpid()), kNames[static_cast<int>(level)],
            static_cast<int>(layer.size()), layer.data(), static_cast<int>(line.size()),
            line.data());
}

}  // namespace

void configure(std::string_view specification) {
  Levels parsed = parse(specification);
  std::lock_guard lock(state().mutex);
  adopt(state(), std::move(parsed));
}

void set_sink(Sink sink) {
  auto replacement = sink ? std::make_shared<const Sink>(std::move(sink)) : nullptr;
  std::lock_guard lock(state().mutex);
  state().sink = std::move(replacement);
}

bool enabled(Level level, std::string_view layer) {
  if (level < most_verbose.load(std::memory_order_relaxed)) return false;
  const auto levels = current_levels();
  const auto found = levels->by_layer.find(layer);
  return level >= (found == levels->by_layer.end() ? levels->fallback : found->second);
}

void write(Level level, std::string_view layer, std::string_view line) {
  std::shared_ptr<const Sink> sink;
  {
    std::lock_guard lock(state().mutex);
    sink = state().sink;
  }
  if (sink) {
    (*sink)(level, layer, line);
  } else {
    write_to_stderr(level, layer, line);
  }
}

}  // namespace hawser::log
