#pragma once

#include <Python.h>
#include <cxxabi.h>

#include <chrono>
#include <cstdint>
#include <optional>

// The interpreter lock, and Python objects on threads that do not hold it.
//
//   GIL-1  A thread that reads the network does not wait for the interpreter lock: it neither runs
//          Python nor drops the last reference to a Python object (drop_later()).
namespace hawser::bindings {

[[noreturn]] void sleep_for_ever();

// Runs what may want the interpreter lock back. When the interpreter ends, a thread that does is
// ended by unwinding its stack, which no C++ frame may see: it would run destructors that need the
// lock, and end the process if one stood in the way. Such a thread sleeps until the process is
// gone.
template <class F>
auto never_unwound(F function) {
  try {
    return function();
  } catch (abi::__forced_unwind&) {
    sleep_for_ever();
  }
}

// Holds the interpreter lock for a scope. A thread of hawser's own keeps its Python thread state
// from the first use until it ends: making one takes longer than a call.
class WithGil {
 public:
  WithGil();
  ~WithGil();
  WithGil(const WithGil&) = delete;

 private:
  const bool had_it_;
};

// How often threads of hawser took the lock and how long they waited for it, since measuring was
// switched on. Nothing while it is off.
struct GilWaits {
  std::int64_t count;
  std::chrono::nanoseconds average;
};
void measure_gil_waits(bool enabled);
std::optional<GilWaits> measured_gil_waits();

// Lets go of it for a scope. Must hold it.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    never_unwound([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Gives away a reference, on any thread, with or without the lock. It is dropped soon, by a thread
// that holds it.
void drop_later(PyObject* object);

}  // namespace hawser::bindings
