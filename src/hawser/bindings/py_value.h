#pragma once

#include "hawser/bindings/py_object.h"
#include "hawser/tensor/payload.h"

// Python values as they travel. Plain data (None, bool, int, float, complex, str, bytes, tensors,
// and lists, tuples and dicts of these; exactly these types) is written as the value tree that C++
// and scripts use. Anything else goes through a pickler, whole:
//
//   Record "py.pickle"   [bytes, list of tensors, list of references]   by hawser's own pickler
//   Record "py.custom"   the same                                       by the one the user has set
//
// The last list may be absent.
//
// All functions need the interpreter lock.
namespace hawser::bindings {

class NodeCore;

// Turns values into (bytes, tensors) and back: an object with serialize() and deserialize().
struct Picklers {
  PyObject* own = nullptr;         // borrowed
  PyObject* custom = nullptr;      // borrowed; null if there is none
  bool may_read = true;            // false: pickles are refused unread
  const NodeCore* core = nullptr;  // whose references are read
};

// False when the value is not plain data; what was written is then of no use. A container that
// occurs twice is not plain either: pickles preserve that it is the same.
bool write_plain(PayloadWriter& out, PyObject* value);

// Any value. Throws PythonErrorSet if the pickler raises.
wire::Payload write_value(PyObject* value, const Picklers& picklers);
// The same, through the pickler even if it is plain.
wire::Payload write_pickled(PyObject* value, const Picklers& picklers);

// The bytes of a contiguous buffer as a tensor that keeps them alive. Unlike torch.frombuffer's it
// may end on any thread (GIL-1).
Object tensor_over(PyObject* buffer);

// Throws PythonErrorSet, Error(Invalid) for malformed bytes, Error(Refused) for a pickle that may
// not be read.
Object read_value(PayloadReader& in, const Picklers& picklers);

}  // namespace hawser::bindings
