#pragma once

#include <Python.h>

#include <string_view>
#include <utility>

#include "hawser/bindings/gil.h"

namespace hawser::bindings {

// A Python error is set; whoever calls from Python lets it through.
struct PythonErrorSet {};

// An owned reference. Must be dropped with the interpreter lock held; see SharedObject.
class Object {
 public:
  Object() = default;
  // Takes over a new reference; throws PythonErrorSet if there is none.
  static Object taken(PyObject* object) {
    if (!object) throw PythonErrorSet{};
    return Object(object);
  }
  // May be null.
  static Object shared(PyObject* object) {
    Py_XINCREF(object);
    return Object(object);
  }
  Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Object(const Object& other) : object_(other.object_) { Py_XINCREF(object_); }
  Object& operator=(Object other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Object() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit Object(PyObject* object) : object_(object) {}
  PyObject* object_ = nullptr;
};

// A str. What is not UTF-8 is shown as it is, escaped.
inline Object as_text(std::string_view text) {
  return Object::taken(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

// The Python error that is set, which is no longer set then.
inline Object take_raised() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Object::taken(value);
}

// An owned reference that may be dropped on any thread. Read with the lock held.
class AnywhereObject {
 public:
  AnywhereObject() = default;
  explicit AnywhereObject(Object object) : object_(object.release()) {}
  AnywhereObject(AnywhereObject&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)) {}
  AnywhereObject& operator=(AnywhereObject&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~AnywhereObject() {
    if (!object_) return;
    if (PyGILState_Check()) {
      Py_DECREF(object_);
    } else {
      drop_later(object_);
    }
  }

  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

}  // namespace hawser::bindings
