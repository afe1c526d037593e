#include "hawser/tensor/storage_memory.h"

#include <c10/core/CPUAllocator.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

namespace hawser::tensor {
namespace {

struct AdoptedMemory {
  Buffer buffer;
};

// Its address is also how lend() knows a storage that adopt() made.
void drop_adopted(void* context) { delete static_cast<AdoptedMemory*>(context); }

c10::Storage storage_over(at::DataPtr memory, std::size_t size) {
  return c10::Storage(c10::Storage::use_byte_size_t(), size, std::move(memory),
                      c10::GetCPUAllocator(), /*resizable=*/true);
}

bool aligned_for_every_dtype(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data) % alignof(std::max_align_t) == 0;
}

}  // namespace

c10::Storage adopt(Buffer buffer) {
  const std::size_t size = buffer.size();
  if (!aligned_for_every_dtype(buffer.data())) {
    at::DataPtr copy = c10::GetCPUAllocator()->allocate(size);
    std::memcpy(copy.mutable_get(), buffer.data(), size);
    return storage_over(std::move(copy), size);
  }
  std::byte* const data = buffer.data();
  auto context = std::make_unique<AdoptedMemory>(AdoptedMemory{std::move(buffer)});
  at::DataPtr memory(data, context.get(), &drop_adopted, c10::Device(c10::kCPU));
  context.release();
  return storage_over(std::move(memory), size);
}

Buffer lend(const c10::Storage& storage) {
  // Buffers are not const because received ones become tensors; sending only reads.
  auto* const data = static_cast<std::byte*>(const_cast<void*>(storage.data()));
  const auto* adopted = storage.data_ptr().cast_context<AdoptedMemory>(&drop_adopted);
  if (adopted) return Buffer(data, storage.nbytes(), adopted->buffer.owner());
  return Buffer(data, storage.nbytes(), std::make_shared<c10::Storage>(storage));
}

}  // namespace hawser::tensor
