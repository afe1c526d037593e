#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>

#include <memory>
#include <string>

#include "hawser/tensor/payload.h"

namespace hawser {

// ------ references in IValues ------

// A reference as a node holds it that TorchScript can hold, too.
class ScriptableReference : public wire::HeldReference {
 public:
  // `self` is this very object. `element` is the type of the value as far as it is known, or null.
  virtual c10::intrusive_ptr<c10::RRefInterface> as_rref(std::shared_ptr<ScriptableReference> self,
                                                         c10::TypePtr element) const = 0;
};

// What the objects made by as_rref() are, besides.
class CarriedReference {
 public:
  virtual std::shared_ptr<ScriptableReference> carried() const = 0;

 protected:
  ~CarriedReference() = default;
};

// Null for a reference that is not hawser's.
std::shared_ptr<ScriptableReference> carried_by(const c10::RRefInterface& rref);

// ------ values ------

// None, bool, int, float, complex, string, tensor, device, references, enums, instances of classes
// (by what __getstate__ returns, else by their attributes), and lists, tuples and dicts of these.
// Anything else (futures, generators, capsules ...) is Error(Invalid), naming its kind.
// A container or object that occurs twice becomes two; one that contains itself is nested too deep.
void write_ivalue(PayloadWriter& out, const c10::IValue& value);
// Takes the tensors out of the value where it can, so that they may be handed back (pack.h).
void write_ivalue(PayloadWriter& out, c10::IValue&& value);

// The classes that received values may be instances of.
class NamedTypes {
 public:
  virtual ~NamedTypes() = default;
  virtual c10::NamedTypePtr find_type(const std::string& qualified_name) const = 0;  // or null
};

// What typed C++ or Python wrote can be read as well: bytes become a string, a struct a tuple.
// Element types of lists, dicts and references do not travel: they are what all elements have in
// common, else Any. An enum is read as the names of its class and its member. What is to become the
// argument of an operator or script function is converted to the type that it declares (see
// operators.h).
// Without `types` instances of classes are refused.
c10::IValue read_ivalue(PayloadReader& in, const NamedTypes* types = nullptr);

// Of a Record whose head has been read: whether it is one of the kinds that write_ivalue() makes,
// and the rest of it.
bool is_ivalue_record(std::string_view type);
c10::IValue read_ivalue_record(PayloadReader& in, wire::ValueReader::Record record,
                               const NamedTypes* types);

}  // namespace hawser
