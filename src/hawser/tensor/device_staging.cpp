#include "hawser/tensor/device_staging.h"

#include <string>

#include "hawser/base/error.h"

namespace hawser::tensor {

std::uint16_t device_code(c10::Device device) {
  if (device.is_cpu()) return 0;
  const int index = device.has_index() ? device.index() : 0;
  if (index < 0 || index > 0xFF) {
    throw Error(ErrorKind::Invalid, "device " + device.str() + " has no code on the wire");
  }
  return static_cast<std::uint16_t>(static_cast<int>(device.type()) << 8 | index);
}

c10::Device device_from(std::uint16_t code) {
  if (code == 0) return c10::Device(c10::kCPU);
  const int type = code >> 8;
  const int index = code & 0xFF;
  if (type == 0 || type >= c10::COMPILE_TIME_MAX_DEVICE_TYPES || index > 0x7F) {
    throw Error(ErrorKind::Invalid, "no device has the code " + std::to_string(code));
  }
  return c10::Device(static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index));
}

}  // namespace hawser::tensor
