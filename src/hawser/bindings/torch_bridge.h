#pragma once

#include <memory>
#include <string>

#include "hawser/bindings/py_object.h"
#include "hawser/node/node.h"

// What needs libtorch's own Python bindings (their headers take twenty seconds to compile).
namespace hawser::bindings {

// Chooses the overload that fits and converts the arguments; throws what libtorch throws, before
// anything is sent, if none fits. With the interpreter lock.
WrittenCall write_operator_call(const std::string& name, PyObject* args, PyObject* kwargs);
WrittenCall write_script_call(const std::string& qualified_name, bool async_script, PyObject* args,
                              PyObject* kwargs);

// Runs calls to the script functions of this process's Python, without the interpreter lock.
// To be called with it.
NodeOptions::FindFunction script_functions();

// A C++ exception that is in flight, as a Python one that is set: what pybind11 would do.
void translate_current_exception();

}  // namespace hawser::bindings
