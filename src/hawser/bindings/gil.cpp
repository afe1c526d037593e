#include "hawser/bindings/gil.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "hawser/base/guarded.h"

namespace hawser::bindings {
namespace {

std::atomic<bool> measuring{false};
std::atomic<std::int64_t> waits{0};
std::atomic<std::int64_t> waited_ns{0};

bool python_ends() { return !Py_IsInitialized() || _Py_IsFinalizing(); }

// Of a thread that Python did not start. Its thread state counts one user more than there is, so
// that nobody who acquires and releases the lock on this thread destroys it.
struct KeptState {
  PyThreadState* state = nullptr;

  void keep() {
    never_unwound([] { PyGILState_Ensure(); });
    state = PyEval_SaveThread();
  }
  ~KeptState() {
    if (!state || python_ends()) return;
    never_unwound([this] { PyEval_RestoreThread(state); });
    PyGILState_Release(PyGILState_UNLOCKED);
  }
};
thread_local KeptState kept;

struct Dropped {
  std::vector<PyObject*> objects;
  bool main_thread_asked = false;
};

// Never destroyed: objects are given away while the process exits, too.
Guarded<Dropped>& dropped() {
  static auto* const objects = new Guarded<Dropped>;
  return *objects;
}

// There are objects of which the main thread does not know.
std::atomic<bool> overdue{false};

int drop_now(void*) {
  Dropped taken;
  {
    auto waiting = dropped().lock();
    std::swap(taken, *waiting);
    overdue.store(false, std::memory_order_relaxed);
  }
  for (PyObject* object : taken.objects) Py_DECREF(object);
  return 0;
}

}  // namespace

void sleep_for_ever() {
  for (;;) ::pause();
}

WithGil::WithGil() : had_it_(PyGILState_Check() != 0) {
  if (had_it_) return;
  if (!PyGILState_GetThisThreadState()) kept.keep();
  if (!measuring.load(std::memory_order_relaxed)) {
    never_unwound([] { PyEval_RestoreThread(PyGILState_GetThisThreadState()); });
    return;
  }
  const auto started = std::chrono::steady_clock::now();
  never_unwound([] { PyEval_RestoreThread(PyGILState_GetThisThreadState()); });
  waited_ns.fetch_add((std::chrono::steady_clock::now() - started).count());
  waits.fetch_add(1);
}

void measure_gil_waits(bool enabled) {
  waits.store(0);
  waited_ns.store(0);
  measuring.store(enabled);
}

std::optional<GilWaits> measured_gil_waits() {
  if (!measuring.load()) return std::nullopt;
  const std::int64_t count = waits.load();
  const std::chrono::nanoseconds average(waited_ns.load() / std::max<std::int64_t>(count, 1));
  return GilWaits{count, average};
}

WithGil::~WithGil() {
  if (had_it_) return;
  if (overdue.load(std::memory_order_relaxed)) drop_now(nullptr);
  PyEval_SaveThread();
}

void drop_later(PyObject* object) {
  if (!object || python_ends()) return;
  auto waiting = dropped().lock();
  waiting->objects.push_back(object);
  if (waiting->main_thread_asked) return;
  // Run by the main thread at its next opportunity. When its list is full, by whoever has the lock
  // next, or asked for by who drops next: waiting for it here is out of the question (GIL-1).
  waiting->main_thread_asked = Py_AddPendingCall(drop_now, nullptr) == 0;
  overdue.store(!waiting->main_thread_asked, std::memory_order_relaxed);
}

}  // namespace hawser::bindings
