#include "hawser/bindings/imports.h"

#include "hawser/bindings/py_object.h"

namespace hawser::bindings {
namespace {

PyObject* attribute(const char* module, const char* name) {
  const Object imported = Object::taken(PyImport_ImportModule(module));
  return Object::taken(PyObject_GetAttrString(imported.get(), name)).release();
}

unsigned long main_thread() {
  const Object threading = Object::taken(PyImport_ImportModule("threading"));
  const Object main = Object::taken(PyObject_CallMethod(threading.get(), "main_thread", nullptr));
  const Object ident = Object::taken(PyObject_GetAttrString(main.get(), "ident"));
  return PyLong_AsUnsignedLong(ident.get());
}

const Imports* done = nullptr;  // read and set with the interpreter lock

}  // namespace

const Imports& imports() {
  if (done) return *done;
  const auto* const made = new Imports{
      .main_thread = main_thread(),
      .default_pickler = attribute("hawser.pickling", "default_pickler"),
      .describe_exception = attribute("hawser.errors", "describe_exception"),
      .make_exception = attribute("hawser.errors", "make_exception"),
      .run_coroutine = attribute("hawser.coroutines", "run"),
      .emit_log = attribute("hawser.logs", "emit"),
      .script_function = attribute("torch.jit", "ScriptFunction"),
      .qualified_name = attribute("torch._jit_internal", "_qualified_name"),
      .script_class = attribute("torch.jit._state", "_get_script_class"),
      .size_of = attribute("sys", "getsizeof"),
      .current_node = attribute("hawser.references", "current_node"),
      .find_builtin = attribute("torch.jit._builtins", "_find_builtin"),
  };
  if (!done) done = made;  // else another thread was quicker; what it made is the same
  return *done;
}

}  // namespace hawser::bindings
