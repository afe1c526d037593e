#pragma once

// Everything a program needs to serve functions and call those of other processes.
#include <ATen/TensorOperators.h>  // x * 2.0 and the like

#include "hawser/node/autograd_context.h"
#include "hawser/node/c10d_store.h"
#include "hawser/node/coroutine.h"
#include "hawser/node/node.h"
#include "hawser/node/ref.h"
