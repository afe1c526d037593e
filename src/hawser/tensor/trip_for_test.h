#pragma once

#include <ATen/core/Tensor.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "hawser/tensor/pack.h"
#include "hawser/tensor/payload.h"
#include "hawser/tensor/unpack.h"

// What a network does to a payload: the receiver finds equal bytes in other memory.
namespace hawser::tensor {

inline Buffer copied(const Buffer& buffer) {
  const std::size_t rounded =
      (buffer.size() + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  std::shared_ptr<void> memory(std::aligned_alloc(kBufferAlignment, rounded + kBufferAlignment),
                               &std::free);
  if (buffer.size() > 0) std::memcpy(memory.get(), buffer.data(), buffer.size());
  return Buffer(static_cast<std::byte*>(memory.get()), buffer.size(), memory);
}

struct Trip {
  std::vector<at::Tensor> tensors;
  std::size_t segments = 0;
  std::size_t bytes = 0;  // that were sent in segments
};

inline Trip travel_together(std::vector<at::Tensor> tensors) {
  TensorPacker packer;
  std::vector<std::uint32_t> indices;
  for (at::Tensor& tensor : tensors) indices.push_back(packer.add(std::move(tensor)));
  auto [descs, segments, differentiable] = packer.finish();
  Trip trip;
  trip.segments = segments.size();
  for (Buffer& segment : segments) {
    trip.bytes += segment.size();
    segment = copied(segment);
  }
  TensorUnpacker unpacker(descs, segments);
  for (const std::uint32_t index : indices) trip.tensors.push_back(unpacker.tensor(index));
  return trip;
}

inline at::Tensor travel(at::Tensor tensor) {
  return travel_together({std::move(tensor)}).tensors[0];
}

// A payload as the receiver gets it. `sent` keeps the value bytes.
struct Delivery {
  explicit Delivery(wire::Payload payload) : sent(std::move(payload)) {
    received.value = {sent.value.data(), sent.value.size()};
    received.tensors = sent.tensors;
    received.references = sent.references;
    for (const Buffer& segment : sent.segments) received.segments.push_back(copied(segment));
  }
  wire::Payload sent;
  wire::ReceivedPayload received;
};

}  // namespace hawser::tensor
