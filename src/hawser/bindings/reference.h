#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hawser/bindings/node_core.h"
#include "hawser/node/references.h"

namespace pybind11 {
class module_;
}

// References in Python. The Python class derives from torch's own PyRRef, because TorchScript takes
// nothing else. All functions need the interpreter lock.
namespace hawser::bindings {

// How large what Kept::constant_copy() returns may be.
inline constexpr std::size_t kMostConstantBytes = 128;

// A new Python object; `core` is the node that holds the reference.
Object wrap_reference(const NodeCore& core, std::shared_ptr<RefHandle> handle);
// Null for what is no reference of hawser's.
std::shared_ptr<RefHandle> handle_of(PyObject* object);

// A method of a referenced value; what a call takes in place of a function. Without a name: the
// value itself.
struct BoundMethod {
  std::shared_ptr<RefHandle> on;
  std::string name;
};
// Null for anything else.
const BoundMethod* method_of(PyObject* function);

// Calls; the result stays there.
Object create_reference(NodeCore& core, const CallOptions& options, WrittenCall&& call);

// While it lives, references can be pickled by this thread: a pickle holds their index here.
class SentReferences {
 public:
  SentReferences();
  ~SentReferences();
  SentReferences(const SentReferences&) = delete;

  std::size_t add(std::shared_ptr<RefHandle> handle);
  const std::vector<std::shared_ptr<RefHandle>>& handles() const { return handles_; }
  static SentReferences* current();

 private:
  std::vector<std::shared_ptr<RefHandle>> handles_;
  SentReferences* const outer_;
};

// While it lives, those pickles can be read by this thread.
class ReceivedReferences {
 public:
  ReceivedReferences();
  ~ReceivedReferences();
  ReceivedReferences(const ReceivedReferences&) = delete;

  void add(Object reference) { references_.push_back(std::move(reference)); }
  // Throws Error(Invalid) when there is none.
  const Object& at(std::size_t index) const;
  static ReceivedReferences* current();

 private:
  std::vector<Object> references_;
  ReceivedReferences* const outer_;
};

void bind_reference(pybind11::module_& module);

}  // namespace hawser::bindings
