#pragma once

#include <memory>
#include <string>

#include "hawser/node/call_context.h"
#include "hawser/node/node.h"
#include "hawser/script/host.h"
#include "hawser/script/program.h"

// TorchScript on a node.
namespace hawser {

// What scripts that run on a node can do with it.
class ScriptHost final : public script::Host {
 public:
  // `program` may be null: then scripts here know no functions to call. `call_method` too.
  ScriptHost(Node& node, std::shared_ptr<const script::Program> program,
             NodeOptions::CallMethod call_method)
      : node_(node), program_(std::move(program)), call_method_(std::move(call_method)) {}

  const script::Program& program() const override;  // throws Error(Invalid) when there is none
  const std::shared_ptr<const script::Program>& shared_program() const { return program_; }
  const NodeOptions::CallMethod& call_method() const { return call_method_; }
  c10::intrusive_ptr<c10::ivalue::Future> call(script::OutgoingCall&& call) override;
  c10::IValue call_and_wait(script::OutgoingCall&& call) override;
  c10::intrusive_ptr<c10::RRefInterface> create(script::OutgoingCall&& call) override;
  c10::Dict<at::Tensor, at::Tensor> gradients(std::int64_t context) override;
  void backward(std::int64_t context, const std::vector<at::Tensor>& roots,
                bool retain_graph) override;
  // The answer to any call, as a script declares it. Throws CallError.
  c10::IValue wait_for_answer(const CallOptions& options, WrittenCall&& call,
                              const c10::TypePtr& declared);

 private:
  Node& node_;
  const std::shared_ptr<const script::Program> program_;
  const NodeOptions::CallMethod call_method_;
};

// What a script says when it asks for a copy of a value: it is then written as scripts see it, not
// as Python does.
inline constexpr bool kAsScriptsSeeIt = true;

// The same failure, in the words that programs written for torch.distributed.rpc look for.
script::CallError as_call_error(const Error& error);

// Answers a call of a script function, or of an operator that the rule allows. For whoever serves
// them: throws detail::BadRequest for what is wrong with the request.
void run_script(const script::Program& program, const tensor::OperatorRule& rule,
                const CallContext& context);
// Answers with the value, or when it is a future, with what that will be.
void answer_script(const CallContext& context, c10::IValue value);

// Lets scripts of this process call through its nodes. No effect but the first time. Python does it
// when hawser is imported, and a node that has scripts when it starts; a C++ program before it
// compiles scripts that use references (script/operators.h).
void replace_script_operators();

}  // namespace hawser
