#include "hawser/node/script_reference.h"

#include <ATen/core/jit_type.h>

#include "hawser/node/node.h"
#include "hawser/node/scripts.h"
#include "hawser/tensor/operators.h"

namespace hawser {
namespace {

namespace rpc = torch::distributed::rpc;

constexpr rpc::worker_id_t kUnknownRank = -1;

rpc::GloballyUniqueId global_id(const refs::RefId& id) {
  return {static_cast<rpc::worker_id_t>(refs::rank_of(id.on)),
          static_cast<rpc::local_id_t>(id.local)};
}

// A value of another type than the script declares would be found out where the script uses it, by
// an error that says nothing of a reference. The value itself is left as it is: scripts on its
// owner share it. Numbers pass for tensors, because programs for the original rely on that.
bool fits(const c10::IValue& value, const c10::Type& declared) {
  if (declared.kind() == c10::TypeKind::TensorType) return value.isTensor() || value.isScalar();
  return value.type()->isSubtypeOf(declared);
}
void check_fits(const c10::IValue& value, const c10::TypePtr& declared, const std::string& owner) {
  if (!declared || fits(value, *declared)) return;
  if (tensor::converted(value, declared)) return;  // what has lost its element type on the way
  throw Error(ErrorKind::Invalid, "a reference that the script takes for RRef[" +
                                      declared->annotation_str() + "] leads to a value of type " +
                                      value.type()->annotation_str() + " of '" + owner + "'");
}

}  // namespace

c10::intrusive_ptr<c10::RRefInterface> RefHandle::as_rref(std::shared_ptr<ScriptableReference> self,
                                                          c10::TypePtr element) const {
  return c10::make_intrusive<ScriptReference>(std::static_pointer_cast<RefHandle>(std::move(self)),
                                              std::move(element));
}

ScriptReference::ScriptReference(std::shared_ptr<RefHandle> handle, c10::TypePtr element)
    : script::Reference(kUnknownRank, global_id(handle->id()), c10::PyObjectType::get()),
      handle_(std::move(handle)),
      element_(std::move(element)) {}

bool ScriptReference::confirmedByOwner() const {
  References& references = handle_->references();
  if (handle_->received()) {
    if (const auto answered = references.answer_of_owner(*handle_)) {
      Node& node = references.node();
      node.scheduler()->wait(*answered, Deadline::after(SteadyClock(), node.call_timeout()));
    }
  }
  return handle_->confirmed();
}

rpc::worker_id_t ScriptReference::owner() const {
  return static_cast<rpc::worker_id_t>(handle_->references().node().rank_of(handle_->owner()));
}

const c10::TypePtr ScriptReference::type() const {
  std::call_once(type_asked_, [this] {
    if (!element_) element_ = found_type();
  });
  return element_;
}

c10::TypePtr ScriptReference::found_type() const {
  try {
    Node& node = handle_->references().node();
    const auto& program = node.scripts().shared_program();
    const auto parsed = program ? program->parse_type(handle_->type()) : nullptr;
    if (parsed) return parsed;
    if (handle_->is_owner()) {
      constexpr Duration kNow(1);
      return node.find_local(*handle_, kNow).value->script_value(nullptr).type();
    }
  } catch (const std::exception&) {
    // Not there yet, or nothing that scripts know.
  }
  return c10::PyObjectType::get();
}

c10::IValue ScriptReference::to_here(std::optional<Duration> timeout,
                                     const c10::TypePtr& declared) {
  if (handle_->is_owner()) return local_value(declared);
  try {
    Node& node = handle_->references().node();
    if (handle_->released()) {
      throw Error(ErrorKind::Invalid,
                  "the reference has been deleted. Cannot call to_here() on it after deletion.");
    }
    PayloadWriter request;
    request.boolean(kAsScriptsSeeIt);
    c10::IValue value = node.scripts().wait_for_answer(
        {.to = handle_->owner(), .timeout = timeout},
        {wire::TargetKind::Method, {}, request.finish(), handle_}, declared);
    check_fits(value, declared, handle_->owner());
    return value;
  } catch (const Error& error) {
    throw as_call_error(error);
  }
}

c10::IValue ScriptReference::local_value(const c10::TypePtr& declared) {
  try {
    Node& node = handle_->references().node();
    c10::IValue value = node.find_local(*handle_, kForever).value->script_value(declared);
    check_fits(value, declared, handle_->owner());
    return value;
  } catch (const Error& error) {
    throw as_call_error(error);
  }
}

}  // namespace hawser
