#include "hawser/bindings/py_value.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <complex>
#include <vector>

#include "hawser/bindings/node_core.h"
#include "hawser/bindings/reference.h"
#include "hawser/bindings/torch_bridge.h"
#include "hawser/script/program.h"
#include "hawser/tensor/value_codec.h"

namespace hawser::bindings {
namespace {

constexpr std::string_view kPickle = "py.pickle";
constexpr std::string_view kCustom = "py.custom";
constexpr std::size_t kTrustedCount = 4096;  // for more, memory is taken as elements arrive

class PlainWriter {
 public:
  explicit PlainWriter(PayloadWriter& out) : out_(out) {}

  bool write(PyObject* value) {
    if (value == Py_None) return out_.null(), true;
    PyTypeObject* const type = Py_TYPE(value);
    if (type == &PyLong_Type) return write_int(value);
    if (type == &PyFloat_Type) return out_.real(PyFloat_AS_DOUBLE(value)), true;
    if (type == &PyUnicode_Type) return write_text(value);
    if (type == &PyBool_Type) return out_.boolean(value == Py_True), true;
    if (reinterpret_cast<PyObject*>(type) == THPVariableClass) return write_tensor(value);
    if (type == &PyTuple_Type) return write_tuple(value);
    if (type == &PyList_Type) return write_list(value);
    if (type == &PyDict_Type) return write_dict(value);
    if (type == &PyBytes_Type) return write_bytes(value);
    if (auto handle = handle_of(value)) return out_.reference(std::move(handle)), true;
    if (type == &PyComplex_Type) {
      const Py_complex number = PyComplex_AsCComplex(value);
      return out_.complex({number.real, number.imag}), true;
    }
    return false;
  }

 private:
  bool write_int(PyObject* value) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
    return out_.integer(number), true;
  }

  bool write_text(PyObject* value) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(value, &size);
    if (!text) {  // lone surrogates
      PyErr_Clear();
      return false;
    }
    return out_.string(std::string_view(text, static_cast<std::size_t>(size))), true;
  }

  bool write_bytes(PyObject* value) {
    const auto* const data = reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(value));
    return out_.bytes(std::span(data, static_cast<std::size_t>(PyBytes_GET_SIZE(value)))), true;
  }

  bool write_tensor(PyObject* value) {
    at::Tensor tensor = THPVariable_Unpack(value);
    return out_.tensor(std::move(tensor)), true;
  }

  bool write_tuple(PyObject* value) {
    const auto inside = out_.nest();
    const Py_ssize_t size = PyTuple_GET_SIZE(value);
    out_.tuple(static_cast<std::size_t>(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!write(PyTuple_GET_ITEM(value, i))) return false;
    }
    return true;
  }

  bool write_list(PyObject* value) {
    if (!first_time(value)) return false;
    const auto inside = out_.nest();
    const Py_ssize_t size = PyList_GET_SIZE(value);
    out_.list(static_cast<std::size_t>(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!write(PyList_GET_ITEM(value, i))) return false;
    }
    return true;
  }

  bool write_dict(PyObject* value) {
    if (!first_time(value)) return false;
    const auto inside = out_.nest();
    out_.dict(static_cast<std::size_t>(PyDict_GET_SIZE(value)));
    PyObject *key = nullptr, *item = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &key, &item);) {
      if (!write(key) || !write(item)) return false;
    }
    return true;
  }

  // A container that only its parent knows cannot occur twice.
  bool first_time(PyObject* container) {
    if (Py_REFCNT(container) == 1) return true;
    const auto at = std::lower_bound(seen_.begin(), seen_.end(), container);
    if (at != seen_.end() && *at == container) return false;
    seen_.insert(at, container);
    return true;
  }

  PayloadWriter& out_;
  std::vector<PyObject*> seen_;  // sorted
};

Object read_elements(PayloadReader& in, const Picklers& picklers, std::size_t count) {
  Object list = Object::taken(PyList_New(0));
  for (std::size_t i = 0; i < count; ++i) {
    const Object element = read_value(in, picklers);
    if (PyList_Append(list.get(), element.get()) != 0) throw PythonErrorSet{};
  }
  return list;
}

Object read_tuple(PayloadReader& in, const Picklers& picklers, std::size_t count) {
  Object tuple = Object::taken(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), read_value(in, picklers).release());
  }
  return tuple;
}

Object read_pickle(PayloadReader& in, const Picklers& picklers,
                   const wire::ValueReader::Record& record) {
  if (!picklers.may_read) {
    throw Error(ErrorKind::Refused, "this node reads no pickles (trust=\"functions\")");
  }
  if (record.count != 2 && record.count != 3)
    throw Error(ErrorKind::Invalid, "malformed value: a pickle of other shape");
  const bool custom = record.type == kCustom && picklers.custom;
  const auto data = in.bytes();
  const Object bytes = Object::taken(PyBytes_FromStringAndSize(
      reinterpret_cast<const char*>(data.data()), static_cast<Py_ssize_t>(data.size())));
  Object tensors;
  {
    const auto inside = in.nest();
    tensors = read_elements(in, picklers, in.list());
  }
  ReceivedReferences references;
  if (record.count == 3) {
    const auto inside = in.nest();
    for (std::size_t i = 0, count = in.list(); i < count; ++i) {
      references.add(read_value(in, picklers));
    }
  }
  static PyObject* const deserialize = PyUnicode_InternFromString("deserialize");
  return Object::taken(never_unwound([&] {
    return PyObject_CallMethodObjArgs(custom ? picklers.custom : picklers.own, deserialize,
                                      bytes.get(), tensors.get(), nullptr);
  }));
}

}  // namespace

bool write_plain(PayloadWriter& out, PyObject* value) {
  try {
    return PlainWriter(out).write(value);
  } catch (const Error& error) {
    // Nested too deep for the tree, or a tensor that cannot be sent: the pickler knows, or says
    // why.
    if (error.kind() != ErrorKind::Invalid) throw;
    return false;
  }
}

wire::Payload write_value(PyObject* value, const Picklers& picklers) {
  if (!picklers.custom) {
    PayloadWriter out;
    if (write_plain(out, value)) return out.finish();
  }
  return write_pickled(value, picklers);
}

wire::Payload write_pickled(PyObject* value, const Picklers& picklers) {
  static PyObject* const serialize = PyUnicode_InternFromString("serialize");
  SentReferences references;
  const Object pickled = Object::taken(never_unwound([&] {
    return PyObject_CallMethodOneArg(picklers.custom ? picklers.custom : picklers.own, serialize,
                                     value);
  }));
  PyObject *bytes = nullptr, *tensors = nullptr;
  if (!PyArg_ParseTuple(pickled.get(), "SO", &bytes, &tensors)) throw PythonErrorSet{};
  const Object items =
      Object::taken(PySequence_Fast(tensors, "a pickler returns (bytes, tensors)"));
  PayloadWriter out;
  const auto inside = out.nest();
  out.record(picklers.custom ? kCustom : kPickle, references.handles().empty() ? 2 : 3);
  out.bytes(std::span(reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(bytes)),
                      static_cast<std::size_t>(PyBytes_GET_SIZE(bytes))));
  const auto within_list = out.nest();
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.get());
  out.list(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(items.get(), i);
    if (!THPVariable_Check(item)) {
      PyErr_SetString(PyExc_TypeError, "a pickler returns (bytes, list of tensors)");
      throw PythonErrorSet{};
    }
    out.tensor(THPVariable_Unpack(item));
  }
  if (references.handles().empty()) return out.finish();
  out.list(references.handles().size());
  for (const auto& handle : references.handles()) out.reference(handle);
  return out.finish();
}

Object tensor_over(PyObject* buffer) {
  Object view = Object::taken(PyMemoryView_FromObject(buffer));
  const Py_buffer bytes = *PyMemoryView_GET_BUFFER(view.get());
  const auto kept = std::make_shared<AnywhereObject>(std::move(view));
  return Object::taken(THPVariable_Wrap(at::from_blob(
      bytes.buf, {bytes.len}, [kept](void*) {}, at::kByte)));
}

Object read_value(PayloadReader& in, const Picklers& picklers) {
  if (in.at_end()) throw Error(ErrorKind::Invalid, "malformed value: it ends early");
  switch (in.peek()) {
    case wire::Tag::Null:
      in.null();
      return Object::shared(Py_None);
    case wire::Tag::False:
    case wire::Tag::True:
      return Object::taken(PyBool_FromLong(in.boolean()));
    case wire::Tag::Int:
      return Object::taken(PyLong_FromLongLong(in.integer()));
    case wire::Tag::Double:
      return Object::taken(PyFloat_FromDouble(in.real()));
    case wire::Tag::Complex: {
      const auto number = in.complex();
      return Object::taken(PyComplex_FromDoubles(number.real(), number.imag()));
    }
    case wire::Tag::String:
    case wire::Tag::Text: {
      const std::string_view text = in.string();
      return Object::taken(
          PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr));
    }
    case wire::Tag::Bytes:
    case wire::Tag::Blob: {
      const auto bytes = in.bytes();
      return Object::taken(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes.data()),
                                                     static_cast<Py_ssize_t>(bytes.size())));
    }
    case wire::Tag::Tensor:
      return Object::taken(THPVariable_Wrap(in.tensor()));
    case wire::Tag::List: {
      const auto inside = in.nest();
      return read_elements(in, picklers, in.list());
    }
    case wire::Tag::Tuple: {
      const auto inside = in.nest();
      const std::size_t count = in.tuple();
      if (count <= kTrustedCount) return read_tuple(in, picklers, count);
      const Object elements = read_elements(in, picklers, count);
      return Object::taken(PyList_AsTuple(elements.get()));
    }
    case wire::Tag::Dict: {
      const auto inside = in.nest();
      Object dict = Object::taken(PyDict_New());
      for (std::size_t i = 0, count = in.dict(); i < count; ++i) {
        const Object key = read_value(in, picklers);
        const Object item = read_value(in, picklers);
        if (PyDict_SetItem(dict.get(), key.get(), item.get()) != 0) throw PythonErrorSet{};
      }
      return dict;
    }
    case wire::Tag::Record: {
      const auto inside = in.nest();
      const auto record = in.record();
      if (record.type == kPickle || record.type == kCustom)
        return read_pickle(in, picklers, record);
      if (is_ivalue_record(record.type)) {
        return python_of(*picklers.core, read_ivalue_record(in, record, &picklers.core->scripts()));
      }
      const Object fields = read_elements(in, picklers, record.count);  // a struct of C++
      return Object::taken(PyList_AsTuple(fields.get()));
    }
    case wire::Tag::Reference:
      return wrap_reference(*picklers.core, std::static_pointer_cast<RefHandle>(in.reference()));
  }
  throw Error(ErrorKind::Invalid,
              "a " + std::string(wire::to_string(in.peek())) + " cannot be read as a Python value");
}

}  // namespace hawser::bindings
