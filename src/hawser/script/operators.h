#pragma once

#include "hawser/script/host.h"

// TorchScript's operators for remote calls, references and distributed autograd: rpc_async,
// rpc_sync and remote, to_here, local_value, owner and the like, get_gradients and backward.
namespace hawser::script {

// The node that a script on this thread belongs to; null where there is none, and then torch's own
// operators run.
using FindHost = Host* (*)();

// Replaces all of them, for scripts that are run from now on: what a script has been compiled to
// when it ran is kept. For the whole process, and for good. Where libtorch has no operator of a
// name (that is so without Python), it is added. No effect but the first time.
void replace_operators(FindHost find);

}  // namespace hawser::script
