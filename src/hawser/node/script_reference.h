#pragma once

#include <ATen/core/jit_type_base.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "hawser/node/references.h"
#include "hawser/script/host.h"

namespace hawser {

// A reference of a node as TorchScript and libtorch's Python see it. Made by RefHandle::as_rref().
// Thread-safe. Methods that wait look after the network meanwhile.
class ScriptReference final : public script::Reference {
 public:
  // `element` may be null: then it is what the creator of the reference knew, or what the value is.
  ScriptReference(std::shared_ptr<RefHandle> handle, c10::TypePtr element);

  const std::shared_ptr<RefHandle>& handle() const { return handle_; }

  // Whoever receives a reference in a call of torch's own RPC finds it confirmed. Here the call
  // does not wait for that, so who asks does.
  bool confirmedByOwner() const override;
  bool isOwner() const override { return handle_->is_owner(); }
  std::string ownerName() const override { return handle_->owner(); }
  torch::distributed::rpc::worker_id_t owner() const override;  // asks the rendezvous if need be
  const c10::TypePtr type() const override;

  c10::IValue to_here(std::optional<Duration> timeout, const c10::TypePtr& declared) override;
  c10::IValue local_value(const c10::TypePtr& declared) override;
  std::shared_ptr<ScriptableReference> carried() const override { return handle_; }

 private:
  c10::TypePtr found_type() const;

  const std::shared_ptr<RefHandle> handle_;
  mutable std::once_flag type_asked_;
  mutable c10::TypePtr element_;
};

}  // namespace hawser
