#pragma once

#include <Python.h>

namespace hawser::bindings {

// Objects of other modules that the native one uses, imported once and kept for ever.
//
// Not function-local statics: importing lets other threads have the interpreter lock, and one that
// then waited for the static with the lock held would wait for ever.
struct Imports {
  unsigned long main_thread;
  PyObject* default_pickler;     // hawser.pickling
  PyObject* describe_exception;  // hawser.errors
  PyObject* make_exception;
  PyObject* run_coroutine;    // hawser.coroutines
  PyObject* emit_log;         // hawser.logs
  PyObject* script_function;  // torch.jit.ScriptFunction
  PyObject* qualified_name;   // torch._jit_internal._qualified_name
  PyObject* script_class;     // torch.jit._state._get_script_class
  PyObject* size_of;          // sys.getsizeof
  PyObject* current_node;     // hawser.references
  PyObject* find_builtin;     // torch.jit._builtins._find_builtin
};

// With the interpreter lock. The first call imports, and throws PythonErrorSet if that fails; it is
// made before there is a node, so that no thread of one imports anything.
const Imports& imports();

}  // namespace hawser::bindings
