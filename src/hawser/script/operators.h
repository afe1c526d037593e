#pragma once

#include <ATen/core/alias_info.h>
#include <ATen/core/dispatch/OperatorOptions.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>

#include "hawser/script/host.h"

namespace torch::jit {
struct Node;
}

// TorchScript's operators for remote calls and references: rpc_async, rpc_sync and remote,
// to_here, local_value, owner and the like.
namespace hawser::script {

using torch::jit::Operation;

// One operator, and what it is to become.
struct Replacement {
  std::string schema;  // only a name where the operator takes anything: "prim::rpc_async"
  c10::AliasAnalysisKind alias_analysis;
  // Makes what runs one use of the operator in a script; `stock` is what torch would run.
  std::function<Operation(const torch::jit::Node* use, Operation stock)> make;
};

// For scripts that are run from now on: what a script has been compiled to when it ran is kept. For
// the whole process, and for good. The operator must have no overloads; where
// libtorch has none of that name (that is so without Python), it is added.
void replace_operator(Replacement replacement);

// The node that a script on this thread belongs to; null where there is none, and then torch's own
// operators run.
using FindHost = Host* (*)();

// Replaces all of them. No effect but the first time.
void replace_operators(FindHost find);

}  // namespace hawser::script
