#include "hawser/bindings/target.h"

#include <optional>
#include <unordered_map>
#include <vector>

#include "hawser/base/name_map.h"
#include "hawser/bindings/imports.h"

namespace hawser::bindings {
namespace {

constexpr std::size_t kMostRemembered = 4096;

// The attribute as text; nothing if it is missing or not a str.
std::optional<std::string> text_of(PyObject* object, const char* attribute) {
  const Object value = [&] {
    PyObject* const found = PyObject_GetAttrString(object, attribute);
    if (!found) PyErr_Clear();
    return found ? Object::taken(found) : Object();
  }();
  if (!value || !PyUnicode_Check(value.get())) return std::nullopt;
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(value.get(), &size);
  if (!text) throw PythonErrorSet{};
  return std::string(text, static_cast<std::size_t>(size));
}

Object module_named(const std::string& name) {
  const Object key =
      Object::taken(PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
  if (PyObject* const loaded = PyImport_GetModule(key.get())) return Object::taken(loaded);
  if (PyErr_Occurred()) throw PythonErrorSet{};
  return Object::taken(PyImport_Import(key.get()));
}

Object attribute_at(Object from, std::string_view path) {
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    const std::string name(path.substr(0, dot));
    from = Object::taken(PyObject_GetAttrString(from.get(), name.c_str()));
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return from;
}

// Whether the name leads back to the function, as pickle asks too.
bool found_by_name(PyObject* function, const std::string& module, const std::string& path) {
  if (path.find('<') != std::string::npos) return false;  // <lambda>, <locals>
  try {
    const Object found = attribute_at(module_named(module), path);
    // A class method is made anew each time it is looked up, and is equal to itself.
    const int same = PyMethod_Check(function)
                         ? PyObject_RichCompareBool(found.get(), function, Py_EQ)
                         : found.get() == function;
    if (same < 0) throw PythonErrorSet{};
    return same != 0;
  } catch (const PythonErrorSet&) {
    PyErr_Clear();
    return false;
  }
}

std::optional<Target> as_script(PyObject* function) {
  Target target{.kind = wire::TargetKind::Script, .name = {}, .async_script = false};
  Object wrapped = Object::shared(function);
  if (PyObject* const inner = PyObject_GetAttrString(function, "_wrapped_async_rpc_function")) {
    wrapped = Object::taken(inner);
    target.async_script = true;
  } else {
    PyErr_Clear();
  }
  const int is_script = PyObject_IsInstance(wrapped.get(), imports().script_function);
  if (is_script < 0) throw PythonErrorSet{};
  if (is_script == 0) return std::nullopt;
  const Object name = Object::taken(PyObject_CallOneArg(imports().qualified_name, wrapped.get()));
  const char* const text = PyUnicode_AsUTF8(name.get());
  if (!text) throw PythonErrorSet{};
  target.name = text;
  return target;
}

std::optional<Target> as_operator(PyObject* function) {
  const Object name = Object::taken(PyObject_CallOneArg(imports().find_builtin, function));
  if (name.get() == Py_None) return std::nullopt;
  const char* const text = PyUnicode_AsUTF8(name.get());
  if (!text) throw PythonErrorSet{};
  return Target{.kind = wire::TargetKind::Operator, .name = text, .async_script = false};
}

Target judge(PyObject* function) {
  if (auto target = as_operator(function)) return *target;
  if (auto target = as_script(function)) return *target;
  const auto module = text_of(function, "__module__");
  const auto path = text_of(function, "__qualname__");
  if (module && path && module->size() + path->size() < wire::kMaxFunctionBytes &&
      module->find(':') == std::string::npos && found_by_name(function, *module, *path)) {
    return {.kind = wire::TargetKind::Python, .name = *module + ":" + *path, .async_script = false};
  }
  return {.kind = wire::TargetKind::Python, .name = std::string(kByValue), .async_script = false};
}

// Objects that are made for one call: what they mean is not worth remembering, and they may be
// many.
bool is_passing(PyObject* function) {
  return PyMethod_Check(function) || (!PyFunction_Check(function) && !PyCFunction_Check(function) &&
                                      !PyType_Check(function) && Py_REFCNT(function) <= 2);
}

}  // namespace

const Target& target_of(PyObject* function) {
  // The keys are owned. Under the interpreter lock; never destroyed.
  static auto* const known = new std::unordered_map<PyObject*, Target>;
  const auto found = known->find(function);
  if (found != known->end()) return found->second;
  static thread_local Target passing;
  if (PyUnicode_Check(function)) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(function, &size);
    if (!text) throw PythonErrorSet{};
    passing = {.kind = wire::TargetKind::Function,
               .name = std::string(text, static_cast<std::size_t>(size)),
               .async_script = false};
    if (passing.name.find("::") != std::string::npos) passing.kind = wire::TargetKind::Operator;
    return passing;
  }
  Target target = judge(function);
  if (is_passing(function) ||
      (target.kind == wire::TargetKind::Python && target.name == kByValue) ||
      known->size() >= kMostRemembered) {
    passing = std::move(target);
    return passing;
  }
  Py_INCREF(function);
  return known->emplace(function, std::move(target)).first->second;
}

std::string shown_name(PyObject* function) {
  if (auto name = text_of(function, "__qualname__")) return *name;
  return Py_TYPE(function)->tp_name;
}

namespace {

// How a function was found by its name: each step a str whose hash is known.
struct Way {
  Object module_name;
  Object module;  // completely imported, and of the usual class
  std::vector<Object> path;
};

// Under the interpreter lock; never destroyed.
auto& known_ways() {
  static auto* const known = new NameMap<Way>;
  return *known;
}

// Where the way leads now; null, and nothing raised, if it must be found anew.
Object follow(const Way& way) {
  PyObject* const module = PyDict_GetItemWithError(PyImport_GetModuleDict(), way.module_name.get());
  if (!module || module != way.module.get()) return {};
  Object at =
      Object::shared(PyDict_GetItemWithError(PyModule_GetDict(module), way.path.front().get()));
  for (std::size_t i = 1; at && i < way.path.size(); ++i) {
    PyObject* const next = PyObject_GetAttr(at.get(), way.path[i].get());
    if (!next) PyErr_Clear();
    at = next ? Object::taken(next) : Object();
  }
  return at;
}

Object interned(std::string_view text) {
  PyObject* made = as_text(text).release();
  PyUnicode_InternInPlace(&made);
  return Object::taken(made);
}

void remember_way(std::string_view name, std::string_view module_name, Object module,
                  std::string_view path) {
  if (!PyModule_CheckExact(module.get()) || known_ways().size() >= kMostRemembered) return;
  Way way{interned(module_name), std::move(module), {}};
  for (bool last = false; !last;) {
    const std::size_t dot = path.find('.');
    last = dot == std::string_view::npos;
    way.path.push_back(interned(path.substr(0, dot)));
    if (!last) path.remove_prefix(dot + 1);
  }
  known_ways().insert_or_assign(std::string(name), std::move(way));
}

}  // namespace

Object find_python_function(std::string_view name) {
  if (const auto known = known_ways().find(name); known != known_ways().end()) {
    if (Object found = follow(known->second)) return found;
  }
  const std::size_t colon = name.find(':');
  const std::string module(name.substr(0, colon));
  const std::string_view path = colon == std::string_view::npos ? "" : name.substr(colon + 1);
  if (module.empty() || path.empty()) {
    PyErr_Format(PyExc_ValueError, "malformed function name");
    throw PythonErrorSet{};
  }
  const Object from = module_named(module);
  try {
    Object found = attribute_at(from, path);
    remember_way(name, module, from, path);
    return found;
  } catch (const PythonErrorSet&) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw;
    PyErr_Clear();
    PyErr_Format(
        PyExc_AttributeError,
        "module '%s' has no '%s' here. The default RPC pickler does not serialize function "
        "code: define the function at both ends, or send it by value (hawser.by_value)",
        module.c_str(), std::string(path).c_str());
    throw;
  }
}

}  // namespace hawser::bindings
