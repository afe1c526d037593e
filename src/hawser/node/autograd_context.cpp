#include "hawser/node/autograd_context.h"

#include "hawser/engine/current_context.h"
#include "hawser/node/autograd.h"

namespace hawser::autograd {
namespace {

Node& without_context(Node& node) {
  if (engine::current_context()) {
    throw Error(ErrorKind::Invalid, "Already have an autograd context id for this thread.");
  }
  return node;
}

}  // namespace

Context::Context(Node& node) : node_(without_context(node)), id_(node.autograd().create()) {
  engine::set_current_context(id_);
}

Context::~Context() {
  engine::set_current_context(std::nullopt);
  if (!node_.closed()) node_.autograd().release(id_);
}

hawser::Gradients gradients(const Node& node, ContextId context) {
  return node.autograd().gradients(context);
}

}  // namespace hawser::autograd
