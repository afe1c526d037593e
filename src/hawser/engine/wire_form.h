#pragma once

#include <string_view>
#include <vector>

#include "hawser/autograd/messages.h"
#include "hawser/engine/functions.h"
#include "hawser/wire/message.h"

// Messages between conductors as calls: the name of the message is the function, its fields are a
// tuple, and gradients travel as tensors do. What is read is not believed: Error(Invalid).
namespace hawser::engine {

std::string_view name_of(const autograd::Message& message);

// `gradients` are those of a Gradients message, and are moved from.
wire::Payload write_message(const autograd::Message& message, Tensors&& gradients);

struct ReadMessage {
  autograd::Message message;
  Tensors gradients;  // of a Gradients message, whose handle is left for the reader to give
};
ReadMessage read_message(std::string_view name, wire::ReceivedPayload& payload);

wire::Payload write_reply(const autograd::Reply& reply);
autograd::Reply read_reply(wire::ReceivedPayload& payload);

// The note of a call or reply; `sender` where it names nobody else as the creator.
wire::AutogradNote to_wire(const autograd::Note& note, const autograd::Party& sender);
autograd::Note from_wire(const wire::AutogradNote& note, const autograd::Party& sender);

}  // namespace hawser::engine
