#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace hawser::tensor {

// How tensors of other devices than the CPU reach one peer: the device map, and the way between a
// device's memory and bytes that a transport can carry. Without one, only CPU tensors travel.
// Called on the threads that send and receive; must be thread-safe.
class DeviceStaging {
 public:
  virtual ~DeviceStaging() = default;

  // Where a tensor of this device of ours arrives at the peer. Throws Error(Invalid) when the
  // device map has no entry for it.
  virtual c10::Device device_at_peer(c10::Device ours) const = 0;

  // The same tensor on the CPU, complete on return: its bytes are sent at once.
  virtual at::Tensor to_cpu(const at::Tensor& tensor) const = 0;

  // The received CPU tensor, on this device of ours. Throws Error(Invalid) when there is no such.
  virtual at::Tensor from_cpu(at::Tensor tensor, c10::Device ours) const = 0;
};

// A device as wire::TensorDesc has it: the type in the high byte, the index in the low; 0 is the
// CPU. Throws Error(Invalid) for an index above 255.
std::uint16_t device_code(c10::Device device);
// Throws Error(Invalid) when there is no such type of device.
c10::Device device_from(std::uint16_t code);

}  // namespace hawser::tensor
