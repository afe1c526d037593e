#pragma once

#include <memory>
#include <string>

#include "hawser/bindings/node_core.h"
#include "hawser/bindings/py_object.h"
#include "hawser/node/node.h"
#include "hawser/script/program.h"

// What needs libtorch's own Python bindings (their headers take twenty seconds to compile).
namespace hawser::bindings {

// Chooses the overload that fits and converts the arguments; throws what libtorch throws, before
// anything is sent, if none fits. With the interpreter lock.
WrittenCall write_operator_call(const std::string& name, PyObject* args, PyObject* kwargs);
WrittenCall write_script_call(const std::string& qualified_name, bool async_script, PyObject* args,
                              PyObject* kwargs);

// The script functions and classes of this process's Python. To be called with the interpreter
// lock; what is there needs it only to look up a name for the first time.
const std::shared_ptr<const script::Program>& python_scripts();
// The same, in an object of one's own.
std::shared_ptr<const script::Program> python_scripts(
    script::Program::RegisteredClasses registered);

// A value of TorchScript as Python sees it, and the other way round; with the interpreter lock.
// `declared` is what a script takes the object to be, or null. Throws Error(Invalid) when scripts
// know nothing like it.
Object python_of(const NodeCore& core, const c10::IValue& value);
c10::IValue script_value_of(PyObject* object, const c10::TypePtr& declared);
// None for what is no script module.
c10::IValue script_module_of(PyObject* object);

// A C++ exception that is in flight, as a Python one that is set: what pybind11 would do.
void translate_current_exception();

}  // namespace hawser::bindings
