#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>

namespace hawser::log {

enum class Level : std::uint8_t { Debug, Info, Warning, Error, Off };

// HAWSER_LOG=warning (the default) | debug | info | error | off, and per layer:
// HAWSER_LOG=info,transport=debug. Read when the first line is logged; `configure` overrides it.
// Throws Error(Invalid) on a word it does not know.
void configure(std::string_view specification);

// Where lines go; standard error unless set. Called from any thread, and from several at once,
// with whole lines without a trailing newline. Must not log.
using Sink = std::function<void(Level, std::string_view layer, std::string_view line)>;
void set_sink(Sink sink);

bool enabled(Level level, std::string_view layer);
void write(Level level, std::string_view layer, std::string_view line);

// log::Line(log::Level::Warning, "transport") << "refused " << address;
class Line {
 public:
  Line(Level level, std::string_view layer)
      : level_(level), layer_(layer), on_(enabled(level, layer)) {}
  Line(const Line&) = delete;
  ~Line() {
    if (on_) write(level_, layer_, text_.str());
  }
  template <class T>
  Line& operator<<(const T& part) {
    if (on_) text_ << part;
    return *this;
  }

 private:
  Level level_;
  std::string_view layer_;
  bool on_;
  std::ostringstream text_;
};

}  // namespace hawser::log
