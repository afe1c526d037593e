#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>
#include <torch/csrc/distributed/rpc/rref_impl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/error.h"
#include "hawser/script/program.h"
#include "hawser/tensor/value_codec.h"
#include "hawser/wire/message.h"

// What scripts can do with the node that they run on. The layer above implements it.
namespace hawser::script {

// How a call that a script made has failed. Its text has the words that programs written for
// torch.distributed.rpc look for.
class CallError : public std::runtime_error {
 public:
  CallError(const std::string& text, Error error)
      : std::runtime_error(text), error_(std::move(error)) {}
  const Error& error() const { return error_; }

 private:
  Error error_;
};

// A call to a script function elsewhere.
struct OutgoingCall {
  std::string to;
  std::string function;
  wire::Payload payload;
  c10::TypePtr returns;
  std::optional<Duration> timeout;  // absent: that of the node
};

// All methods throw CallError.
class Host {
 public:
  virtual ~Host() = default;

  virtual const Program& program() const = 0;
  virtual c10::intrusive_ptr<c10::ivalue::Future> call(OutgoingCall&& call) = 0;
  virtual c10::IValue call_and_wait(OutgoingCall&& call) = 0;
  virtual c10::intrusive_ptr<c10::RRefInterface> create(OutgoingCall&& call) = 0;

  // Distributed autograd, in the context of that number.
  virtual c10::Dict<at::Tensor, at::Tensor> gradients(std::int64_t context) = 0;
  virtual void backward(std::int64_t context, const std::vector<at::Tensor>& roots,
                        bool retain_graph) = 0;
};

// A reference as TorchScript holds it. It derives from torch's own class because libtorch, where it
// hands one to Python, takes nothing else; nothing of torch's agent is behind it.
class Reference : public torch::distributed::rpc::RRef, public CarriedReference {
 public:
  using torch::distributed::rpc::RRef::RRef;

  // `declared` is what the script takes the value to be, or null. Both throw CallError.
  virtual c10::IValue to_here(std::optional<Duration> timeout, const c10::TypePtr& declared) = 0;
  virtual c10::IValue local_value(const c10::TypePtr& declared) = 0;
};

}  // namespace hawser::script
