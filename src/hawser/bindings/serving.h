#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "hawser/bindings/bind_optim.h"
#include "hawser/bindings/node_core.h"
#include "hawser/node/kept.h"

// Calls that Python answers.
namespace hawser::bindings {

// `served`: under a name of its own; null for a call that names the Python function. Without the
// interpreter lock.
void run_python(const std::shared_ptr<NodeCore>& core, PyObject* served,
                const CallContext& context);

// Calls a method of a value that a script or an operator has left behind a reference.
void run_method(const std::shared_ptr<NodeCore>& core, const CallContext& context,
                const c10::IValue& value, std::string_view method);

// A Python object behind references.
class KeptObject final : public Kept {
 public:
  // `script_type` is the qualified name of what scripts take the object to be, or empty. With the
  // interpreter lock.
  KeptObject(const std::shared_ptr<NodeCore>& core, Object object, std::string script_type = {});

  PyObject* object() const { return object_.get(); }  // borrowed

  std::string type_name() const override;
  std::size_t bytes() const override;
  wire::Payload copy() override;
  std::span<const std::byte> constant_copy() const override {
    return std::as_bytes(std::span(constant_));
  }
  c10::IValue script_value(const c10::TypePtr& declared) override;
  void call(const CallContext& context, std::string_view method) override;

 private:
  void call_script(const NodeCore& core, const CallContext& context, std::string_view method);

  const std::weak_ptr<NodeCore> core_;
  const std::string constant_;
  const AnywhereObject object_;
  const std::string script_type_;
  OptimizerShare* const share_;  // the object itself, if it is one
};

}  // namespace hawser::bindings
