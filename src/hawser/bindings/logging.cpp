#include "hawser/bindings/logging.h"

#include <string>
#include <utility>
#include <vector>

#include "hawser/base/guarded.h"
#include "hawser/base/log.h"
#include "hawser/bindings/imports.h"
#include "hawser/bindings/py_object.h"

namespace hawser::bindings {
namespace {

constexpr std::size_t kMostLines = 10'000;  // while nobody passes them on

struct Line {
  log::Level level;
  std::string layer;
  std::string text;
};
struct Waiting {
  std::vector<Line> lines;
  std::size_t lost = 0;
  bool main_thread_asked = false;
};

// Never destroyed: lines are logged while the process exits, too.
Guarded<Waiting>& waiting() {
  static auto* const lines = new Guarded<Waiting>;
  return *lines;
}

int pass_on(void*) {
  waiting().lock()->main_thread_asked = false;
  pass_on_log();
  return 0;
}

void put_down(log::Level level, std::string_view layer, std::string_view text) {
  auto lines = waiting().lock();
  if (lines->lines.size() < kMostLines) {
    lines->lines.push_back({level, std::string(layer), std::string(text)});
  } else {
    ++lines->lost;
  }
  if (lines->main_thread_asked) return;
  // Its list may be full: then with the next line, or when it waits for a call.
  lines->main_thread_asked = Py_AddPendingCall(pass_on, nullptr) == 0;
}

}  // namespace

void log_to_python() { log::set_sink(put_down); }

void pass_on_log() {
  std::vector<Line> taken;
  std::size_t lost = 0;
  {
    auto lines = waiting().lock();
    taken.swap(lines->lines);
    lost = std::exchange(lines->lost, 0);
  }
  const auto report = [](const Line& line) {
    const Object level = Object::taken(PyLong_FromLong(static_cast<long>(line.level)));
    const Object layer = as_text(line.layer);
    const Object text = as_text(line.text);
    const Object done = Object::taken(PyObject_CallFunctionObjArgs(
        imports().emit_log, level.get(), layer.get(), text.get(), nullptr));
  };
  try {
    for (const Line& line : taken) report(line);
    if (lost != 0) {
      report({log::Level::Warning, "log", std::to_string(lost) + " lines were lost"});
    }
  } catch (const PythonErrorSet&) {
    PyErr_WriteUnraisable(nullptr);  // a handler of the user's raised: it must not stop anything
  }
}

}  // namespace hawser::bindings
