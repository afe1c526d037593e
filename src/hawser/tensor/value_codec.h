#pragma once

#include <ATen/core/ivalue.h>

#include "hawser/tensor/payload.h"

namespace hawser {

// None, bool, int, float, complex, string, tensor, device, and lists, tuples and dicts of these.
// Anything else (objects, futures, generators, capsules ...) is Error(Invalid), naming its kind.
// A container that occurs twice becomes two; one that contains itself is nested too deep.
void write_ivalue(PayloadWriter& out, const c10::IValue& value);
// Takes the tensors out of the value where it can, so that they may be handed back (pack.h).
void write_ivalue(PayloadWriter& out, c10::IValue&& value);

// What typed C++ or Python wrote can be read as well: bytes become a string, a struct a tuple.
// Element types of lists and dicts do not travel: they are what all elements have in common, else
// Any. What is to become the argument of an operator or script function is converted to the type
// that it declares (see operators.h).
c10::IValue read_ivalue(PayloadReader& in);

}  // namespace hawser
