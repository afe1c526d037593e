#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "hawser/base/error.h"
#include "hawser/wire/message.h"

namespace hawser {

class CallContext;

// What a value has become instead, if the function that should have made it failed.
struct KeptFailure {
  Error error;
  wire::Payload payload{};  // the exception itself, where it can be carried
};

// A value that stays on its node, and what others can do with it through a reference. Used by
// several threads at once; destroyed on a thread that may run user code.
class Kept {
 public:
  virtual ~Kept() = default;

  virtual std::string type_name() const = 0;
  // What it takes, roughly; for people who look for what fills the memory.
  virtual std::size_t bytes() const = 0;
  // What is sent to who asks for the value. Throws Error(Invalid), or KeptFailure, when it cannot
  // be sent.
  virtual wire::Payload copy() = 0;
  // What is sent to who asks for it, of a value that is small and never changes; else empty. As
  // long as the value lives, on any thread, without waiting.
  virtual std::span<const std::byte> constant_copy() const { return {}; }
  // The value as scripts see it; `declared` is what the script takes it to be, or null. Throws as
  // copy() does.
  virtual c10::IValue script_value(const c10::TypePtr& declared);
  // Answers a call of one of its methods. May throw; what is thrown answers the call.
  virtual void call(const CallContext& context, std::string_view method) = 0;
};

// A copy of what a script has left behind a reference. Throws Error(Invalid) when it cannot be
// sent.
wire::Payload write_kept(const c10::IValue& value);

// What a reference led to. One of them is set.
struct Found {
  std::shared_ptr<Kept> value{};
  std::optional<KeptFailure> failure{};
};

}  // namespace hawser
