#pragma once

#include <string>
#include <string_view>

#include "hawser/bindings/py_object.h"
#include "hawser/wire/message.h"

// Which function a call means, at both ends. All functions need the interpreter lock.
namespace hawser::bindings {

struct Target {
  wire::TargetKind kind = wire::TargetKind::Python;
  // Function: as it is served. Operator: without the overload. Script: qualified. Python:
  // "module:qualified.name", or kByValue.
  std::string name;
  bool async_script = false;  // a script function that returns a future
};

// A Python function that cannot be found by its name: it travels with its arguments.
inline constexpr std::string_view kByValue = ":";

// A str is the name of a function that the callee serves, or of an operator if it has "::" in it.
// What a function object means is remembered as long as the process lives.
const Target& target_of(PyObject* function);

// What a person would call a function, whatever it is.
std::string shown_name(PyObject* function);

// The Python function of that name here, imported if need be. Looked up each time, though by a way
// that is remembered, so that a replaced function is found. Throws PythonErrorSet.
Object find_python_function(std::string_view name);

}  // namespace hawser::bindings
