#include "hawser/node/scripts.h"

#include <ATen/core/function.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <sstream>
#include <utility>

#include "hawser/engine/functions.h"
#include "hawser/node/autograd.h"
#include "hawser/node/function.h"
#include "hawser/node/references.h"
#include "hawser/node/script_reference.h"
#include "hawser/script/operators.h"
#include "hawser/tensor/operators.h"

namespace hawser {
namespace {

using TorchFuture = c10::ivalue::Future;

// The call's answer, and what reads it. Shared by who waits and who is told.
struct AwaitedAnswer {
  Event there;
  agent::Answer answer;
};

c10::IValue value_of(agent::Answer& answer, const script::Program* program,
                     const c10::TypePtr& declared) {
  if (answer.error) throw as_call_error(*answer.error);
  if (program) return program->read_result(answer.payload, declared);
  PayloadReader in(answer.payload);
  c10::IValue value = read_ivalue(in);
  in.finish();
  return value;
}

script::Host* current_host() {
  Node* const node = Node::find_current();
  return node ? &node->scripts() : nullptr;
}

WrittenCall written(script::OutgoingCall& call) {
  WrittenCall made{wire::TargetKind::Script, std::move(call.function), std::move(call.payload)};
  made.style = trace::CallStyle::AsyncScript;
  return made;
}

// A script goes on, and what it forks runs, on the node's threads and as part of the call.
script::Launcher launcher_for(const CallContext& context) {
  return [context, scheduler = context.node().scheduler()](std::function<void()> task) {
    scheduler->post([context, task = std::move(task)] {
      const ServingCall serving(&context);
      task();
    });
  };
}

}  // namespace

// ------------------------------------------------------------------------------- errors

script::CallError as_call_error(const Error& error) {
  const std::string& message = error.message();
  const bool timed_out = error.kind() == ErrorKind::Timeout;
  std::ostringstream text;
  if (message.starts_with(kNotCreated)) {
    text << "RRef creation via rpc.remote() ";
    if (timed_out) {
      text << "timed out";
    } else {
      text << "failed (" << message.substr(kNotCreated.size()) << ")";
    }
    text << ", and it is possible that the RRef on the owner node does not exist.";
  } else if (timed_out && error.details().budget) {
    text << "RPC ran for more than set timeout ("
         << static_cast<double>(error.details().budget->count()) / 1000
         << " ms) and will now be marked with an error (" << error.details().function << " on "
         << error.details().node << ")";
  } else {
    text << message;
  }
  return script::CallError(text.str(), error);
}

// ------------------------------------------------------------------------------- calling

const script::Program& ScriptHost::program() const {
  if (program_) return *program_;
  throw Error(ErrorKind::Invalid,
              "the node '" + node_.name() + "' has no scripts (NodeOptions::scripts)");
}

c10::intrusive_ptr<TorchFuture> ScriptHost::call(script::OutgoingCall&& call) {
  auto future = c10::make_intrusive<TorchFuture>(call.returns);
  // The one who learns the answer reads the network; who waits for the future may be anything.
  auto on_answer = [future, program = program_, declared = call.returns,
                    scheduler = node_.scheduler()](agent::Answer&& answer) {
    scheduler->post([future, program, declared, answer = std::move(answer)]() mutable {
      try {
        future->markCompleted(value_of(answer, program.get(), declared));
      } catch (...) {
        future->setErrorIfNeeded(std::current_exception());
      }
    });
  };
  try {
    node_.call_written({.to = call.to, .timeout = call.timeout}, written(call),
                       std::move(on_answer));
  } catch (const Error& error) {
    throw as_call_error(error);
  }
  return future;
}

c10::IValue ScriptHost::call_and_wait(script::OutgoingCall&& call) {
  return wait_for_answer({.to = call.to, .timeout = call.timeout}, written(call), call.returns);
}

c10::IValue ScriptHost::wait_for_answer(const CallOptions& options, WrittenCall&& call,
                                        const c10::TypePtr& declared) {
  const auto awaited = std::make_shared<AwaitedAnswer>();
  try {
    node_.call_written(options, std::move(call), [awaited](agent::Answer&& answer) {
      awaited->answer = std::move(answer);
      awaited->there.set();
    });
  } catch (const Error& error) {
    throw as_call_error(error);
  }
  node_.scheduler()->wait(awaited->there, Deadline::never());
  return value_of(awaited->answer, program_.get(), declared);
}

c10::Dict<at::Tensor, at::Tensor> ScriptHost::gradients(std::int64_t context) {
  try {
    return node_.autograd().gradients(autograd::ContextId{static_cast<std::uint64_t>(context)});
  } catch (const Error& error) {
    throw as_call_error(error);
  }
}

void ScriptHost::backward(std::int64_t context, const std::vector<at::Tensor>& roots,
                          bool retain_graph) {
  try {
    node_.run_backward(autograd::ContextId{static_cast<std::uint64_t>(context)}, roots,
                       {.retain_graph = retain_graph});
  } catch (const Error& error) {
    throw as_call_error(error);
  }
}

c10::intrusive_ptr<c10::RRefInterface> ScriptHost::create(script::OutgoingCall&& call) {
  try {
    auto handle = node_.create_written({.to = call.to, .timeout = call.timeout}, written(call),
                                       call.returns->annotation_str());
    return c10::make_intrusive<ScriptReference>(std::move(handle), std::move(call.returns));
  } catch (const Error& error) {
    throw as_call_error(error);
  }
}

// ------------------------------------------------------------------------------- serving

void answer_script(const CallContext& context, c10::IValue value) {
  if (!value.isFuture()) return detail::answer(context, std::move(value));
  const auto future = value.toFuture();
  future->addCallback([context](TorchFuture& done) {
    try {
      if (done.hasError()) std::rethrow_exception(done.exception_ptr());
      answer_script(context, done.value());
    } catch (...) {
      context.fail(remote_error(std::current_exception()));
    }
  });
}

void run_script(const script::Program& program, const tensor::OperatorRule& rule,
                const CallContext& context) {
  script::Invocation invocation;
  try {
    invocation = program.read(context.call()->call().function, context.call()->payload(), rule);
  } catch (const Error& error) {
    throw detail::BadRequest{error};
  }
  answer_script(context, script::start(std::move(invocation), launcher_for(context)));
}

// ------------------------------------------------------------------------------- kept values

namespace {

std::size_t bytes_of(const c10::IValue& value) {
  std::size_t bytes = sizeof(c10::IValue);
  const auto add_tensor = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.layout() == c10::kStrided) bytes += tensor.nbytes();
  };
  value.visit([&](const c10::IValue& part) {
    if (part.isTensor()) add_tensor(part.toTensor());
    return false;
  });
  return bytes;
}

// The arguments of a method as they are written for any other: a tuple, and perhaps a dict.
script::Stack read_method_stack(const CallContext& context, const c10::IValue& self,
                                const c10::FunctionSchema& schema) {
  PayloadReader in(context.call()->payload());
  const script::Program* const program = context.node().scripts().shared_program().get();
  script::Stack stack{self};
  const c10::IValue positional = read_ivalue(in, program);
  for (const c10::IValue& value : positional.toTupleRef().elements()) stack.push_back(value);
  std::unordered_map<std::string, c10::IValue> keywords;
  if (!in.at_end()) {
    const c10::IValue named = read_ivalue(in, program);
    if (!named.isGenericDict()) throw Error(ErrorKind::Invalid, "malformed keywords");
    for (const auto& entry : named.toGenericDict()) {
      if (!entry.key().isString()) throw Error(ErrorKind::Invalid, "malformed keywords");
      keywords.emplace(entry.key().toStringRef(), entry.value());
    }
  }
  in.finish();
  for (std::size_t i = 1; i < stack.size() && i < schema.arguments().size(); ++i) {
    auto fitting = tensor::converted(stack[i], schema.arguments()[i].type());
    if (fitting) stack[i] = *std::move(fitting);
  }
  stack = script::complete_stack(schema, std::move(stack), keywords);
  schema.checkAndNormalizeInputs(stack);
  return stack;
}

// Of a script class. Null when there is none, or the arguments are not for scripts.
torch::jit::Function* find_script_method(const c10::IValue& value, const CallContext& context,
                                         std::string_view method) {
  if (!value.isObject()) return nullptr;
  const PayloadReader in(context.call()->payload());
  if (in.at_end() || in.peek() != wire::Tag::Tuple) return nullptr;
  return value.toObjectRef().type()->findMethod(std::string(method));
}

}  // namespace

template <>
std::string KeptValue<c10::IValue>::type_name() const {
  return value_->type()->annotation_str();
}

template <>
std::size_t KeptValue<c10::IValue>::bytes() const {
  return bytes_of(*value_);
}

template <>
wire::Payload KeptValue<c10::IValue>::copy() {
  return write_kept(*value_);
}

template <>
void KeptValue<c10::IValue>::call(const CallContext& context, std::string_view method) {
  torch::jit::Function* const function = find_script_method(*value_, context, method);
  if (!function) {
    const auto& otherwise = context.node().scripts().call_method();
    if (otherwise) return otherwise(context, *value_, method);
    return (*find_method(context, typeid(c10::IValue), method))(context, value_.get());
  }
  script::Invocation invocation{.function = function};
  try {
    invocation.stack = read_method_stack(context, *value_, function->getSchema());
  } catch (const Error& error) {
    throw detail::BadRequest{error};
  }
  answer_script(context, script::start(std::move(invocation), launcher_for(context)));
}

wire::Payload write_kept(const c10::IValue& value) {
  if (value.isModule()) {
    throw Error(ErrorKind::Invalid,
                "this is an RRef to a ScriptModule. It can't be sent through RPC from owner, to "
                "user: call its methods there (" +
                    value.type()->repr_str() + ")");
  }
  return write_result(nullptr, value);
}

c10::IValue Kept::script_value(const c10::TypePtr&) {
  const wire::Payload payload = copy();
  wire::ReceivedPayload local;
  local.value = {payload.value.data(), payload.value.size()};
  local.tensors = payload.tensors;
  local.segments = payload.segments;
  local.held = payload.held;
  local.tie = engine::continued_here(payload.tie);
  PayloadReader in(local);
  c10::IValue value = read_ivalue(in);
  in.finish();
  return value;
}

void replace_script_operators() { script::replace_operators(&current_host); }

}  // namespace hawser
