#include "hawser/tensor/unpack.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_channel.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "hawser/base/error.h"
#include "hawser/tensor/storage_memory.h"
#include "hawser/tensor/trip_for_test.h"

namespace hawser::tensor {
namespace {

wire::TensorDesc floats(wire::TensorDesc desc) {
  desc.dtype = static_cast<std::uint8_t>(c10::ScalarType::Float);
  return desc;
}

wire::TensorDesc floats_in_segment(std::initializer_list<std::int64_t> sizes) {
  wire::TensorDesc desc;
  desc.sizes = sizes;
  desc.storage = 0;
  return floats(desc);
}

Buffer block(std::size_t size) {
  auto memory = std::shared_ptr<void>(std::aligned_alloc(kBufferAlignment, (size + 63) / 64 * 64),
                                      &std::free);
  std::memset(memory.get(), 0, size);
  return Buffer(static_cast<std::byte*>(memory.get()), size, memory);
}

// One received tensor over `buffer`, as a handler gets it: only the tensor holds the memory.
at::Tensor received(Buffer buffer) {
  const auto count = static_cast<std::int64_t>(buffer.size() / sizeof(float));
  std::vector<wire::TensorDesc> descs = {floats_in_segment({count})};
  std::vector<Buffer> segments;
  segments.push_back(std::move(buffer));
  return TensorUnpacker(descs, segments).tensor(0);
}

Buffer sent_back(at::Tensor tensor) {
  TensorPacker packer;
  packer.add(std::move(tensor));
  return packer.finish().segments.at(0);
}

TEST(Unpack, TheStorageIsTheReceivedMemory) {
  Buffer buffer = block(400);
  const auto* memory = buffer.data();
  std::weak_ptr<void> owner = buffer.owner();
  at::Tensor tensor = received(std::move(buffer));
  EXPECT_EQ(tensor.const_data_ptr(), static_cast<const void*>(memory));
  EXPECT_EQ(tensor.storage().nbytes(), 400u);
  EXPECT_EQ(owner.use_count(), 1);
  const at::Tensor view = tensor.slice(0, 5, 10);
  tensor.reset();
  EXPECT_FALSE(owner.expired());
  EXPECT_TRUE(at::equal(view, at::zeros({5})));
}

TEST(Unpack, MemoryIsLetGoWhenTheLastTensorDies) {
  Buffer buffer = block(400);
  std::weak_ptr<void> owner = buffer.owner();
  { const at::Tensor tensor = received(std::move(buffer)); }
  EXPECT_TRUE(owner.expired());
}

TEST(Unpack, ReceivedTensorsCanBeResizedLikeOthers) {
  Buffer buffer = block(400);
  std::weak_ptr<void> owner = buffer.owner();
  at::Tensor tensor = received(std::move(buffer));
  tensor.fill_(3);
  tensor.resize_({1000});
  EXPECT_TRUE(owner.expired());
  EXPECT_EQ(tensor.slice(0, 0, 100).sum().item<float>(), 300);
}

TEST(Unpack, MisalignedMemoryIsCopied) {
  const Buffer whole = block(404);
  const Buffer odd(whole.data() + 1, 400, whole.owner());
  const at::Tensor tensor = received(odd);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 16, 0u);
  EXPECT_TRUE(at::equal(tensor, at::zeros({100})));
}

// ---- other devices

// Pretends that the CPU is also cuda:1.
class PretendedDevice final : public DeviceStaging {
 public:
  c10::Device device_at_peer(c10::Device) const override { return c10::Device("cuda:1"); }
  at::Tensor to_cpu(const at::Tensor& tensor) const override { return tensor; }
  at::Tensor from_cpu(at::Tensor tensor, c10::Device ours) const override {
    EXPECT_EQ(ours, c10::Device("cuda:1"));
    return tensor.add(1);
  }
};

TEST(Unpack, OtherDevicesGoThroughTheStaging) {
  std::vector<wire::TensorDesc> descs = {floats_in_segment({4})};
  descs[0].device = device_code(c10::Device("cuda:1"));
  descs[0].flags = wire::kRequiresGrad;
  std::vector<Buffer> segments = {block(16)};
  const PretendedDevice staging;
  const at::Tensor tensor = TensorUnpacker(descs, segments, nullptr, &staging).tensor(0);
  EXPECT_TRUE(at::equal(tensor, at::ones({4})));
  EXPECT_TRUE(tensor.requires_grad());
  EXPECT_TRUE(tensor.is_leaf());
}

TEST(Unpack, DeviceCodes) {
  EXPECT_EQ(device_code(c10::Device("cpu")), 0);
  for (const char* name : {"cpu", "cuda:0", "cuda:7", "xpu:1"}) {
    EXPECT_EQ(device_from(device_code(c10::Device(name))), c10::Device(name));
  }
  EXPECT_THROW(device_from(0x0001), Error);
  EXPECT_THROW(device_from(0xFF00), Error);
}

// ---- hand-back: what a transport sees of a received tensor that is returned.

TEST(HandBack, ReturnedTensorIsTheReceivedBlockAlone) {
  Buffer buffer = block(400);
  const auto* memory = buffer.data();
  const auto* owner = buffer.owner().get();
  const Buffer back = sent_back(received(std::move(buffer)));
  EXPECT_EQ(back.owner().get(), owner);
  EXPECT_EQ(back.owner().use_count(), 1);
  EXPECT_EQ(back.data(), memory);
  EXPECT_EQ(back.size(), 400u);
}

TEST(HandBack, ReshapedAndReturnedIsTheSameBlock) {
  at::Tensor tensor = received(block(400));
  tensor.mul_(2);
  tensor = tensor.view({10, 10}).t();
  const Buffer back = sent_back(std::move(tensor));
  EXPECT_EQ(back.owner().use_count(), 1);
  EXPECT_EQ(back.size(), 400u);
}

TEST(HandBack, ReturnedTwiceInOneMessage) {
  at::Tensor tensor = received(block(400));
  TensorPacker packer;
  packer.add(tensor.slice(0, 50, 100));
  packer.add(std::move(tensor));
  const auto packed = packer.finish();
  ASSERT_EQ(packed.segments.size(), 1u);
  EXPECT_EQ(packed.segments[0].owner().use_count(), 1);
  EXPECT_EQ(packed.segments[0].size(), 400u);
}

TEST(HandBack, NotAloneIfTheTensorIsKept) {
  const at::Tensor kept = received(block(400));
  EXPECT_GT(sent_back(kept).owner().use_count(), 1);
}

TEST(HandBack, NotAloneIfAViewIsKept) {
  at::Tensor tensor = received(block(400));
  const at::Tensor view = tensor.select(0, 7);
  EXPECT_GT(sent_back(std::move(tensor)).owner().use_count(), 1);
}

TEST(HandBack, NotAloneIfTheStorageIsKept) {
  at::Tensor tensor = received(block(400));
  const c10::Storage storage = tensor.storage();
  EXPECT_GT(sent_back(std::move(tensor)).owner().use_count(), 1);
}

TEST(HandBack, NotAloneIfAGraphHoldsIt) {
  at::Tensor tensor = received(block(400)).set_requires_grad(true);
  const at::Tensor square = tensor.mul(tensor);
  EXPECT_GT(sent_back(std::move(tensor)).owner().use_count(), 1);
}

TEST(HandBack, AloneAgainWhenTheOtherHolderLetsGo) {
  at::Tensor kept = received(block(400));
  const Buffer back = sent_back(kept);
  kept.reset();
  EXPECT_EQ(back.owner().use_count(), 1);
}

TEST(HandBack, PartOfTheBlockIsNotTheWhole) {
  const Buffer back = sent_back(received(block(400)).slice(0, 0, 60));
  EXPECT_EQ(back.size(), 240u);
}

// ---- malformed descriptions

void expect_invalid(const std::vector<wire::TensorDesc>& descs, std::size_t segment_bytes = 64) {
  std::vector<Buffer> segments = {block(segment_bytes)};
  TensorUnpacker unpacker(descs, segments);
  try {
    unpacker.tensor(0);
    FAIL() << "should be refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
  }
}

wire::TensorDesc with(std::function<void(wire::TensorDesc&)> change) {
  wire::TensorDesc desc = floats_in_segment({4, 4});
  change(desc);
  return desc;
}

TEST(Unpack, MalformedIsInvalid) {
  expect_invalid({});
  expect_invalid({with([](auto& d) { d.sizes = {4, 5}; })});
  expect_invalid({with([](auto& d) { d.offset = 1; })});
  expect_invalid({with([](auto& d) { d.offset = ~std::uint64_t{0}; })});
  expect_invalid({with([](auto& d) { d.sizes = {-1, 4}; })});
  expect_invalid({with([](auto& d) { d.strides = {4, -1}; })});
  expect_invalid({with([](auto& d) { d.strides = {5, 1}; })});
  expect_invalid({with([](auto& d) { d.strides = {1}; })});
  expect_invalid({with([](auto& d) { d.sizes = {1L << 62, 1L << 62}; })});
  expect_invalid({with([](auto& d) { d.dtype = 46; })});
  expect_invalid({with([](auto& d) { d.dtype = 255; })});
  expect_invalid({with([](auto& d) { d.storage = 1; })});
  expect_invalid({with([](auto& d) { d.storage = wire::kNoSegment; })});
  expect_invalid({with([](auto& d) { d.flags = wire::kConjugate; })});
  expect_invalid({with([](auto& d) { d.flags = wire::kWrappedNumber; })});
  expect_invalid({with([](auto& d) { d.flags = wire::kPerTensorAffine; })});
  expect_invalid({with([](auto& d) { d.flags = wire::kCoalesced; })});
  expect_invalid({with([](auto& d) { d.device = 0x0100; })});
  expect_invalid({with([](auto& d) { d.device = 0xFFFF; })});
  expect_invalid({with([](auto& d) { d.layout = wire::TensorLayout::SparseCoo; })});
  expect_invalid({with([](auto& d) { d.layout = static_cast<wire::TensorLayout>(9); })});
  expect_invalid({with([](auto& d) {
    d.dtype = static_cast<std::uint8_t>(c10::ScalarType::Int);
    d.flags = wire::kRequiresGrad;
  })});
}

TEST(Unpack, SparseIndicesAreChecked) {
  wire::TensorDesc indices = with([](auto& d) {
    d.dtype = static_cast<std::uint8_t>(c10::ScalarType::Long);
    d.sizes = {1, 2};
  });
  wire::TensorDesc values = floats_in_segment({2});
  wire::TensorDesc sparse = floats({});
  sparse.layout = wire::TensorLayout::SparseCoo;
  sparse.sizes = {3};
  sparse.parts = {1, 2};
  std::vector<Buffer> segments = {block(64)};
  const std::int64_t out_of_range = 3;
  std::memcpy(segments[0].data(), &out_of_range, sizeof(out_of_range));
  const std::vector<wire::TensorDesc> descs = {sparse, indices, values};
  TensorUnpacker unpacker(descs, segments);
  EXPECT_THROW(unpacker.tensor(0), Error);
}

// Every field of every description gets values from these and from chance; what is accepted is then
// read from end to end, which a sanitizer or the memory manager would not let pass if it were
// wrong.
class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  void mutate(wire::TensorDesc& desc) {
    switch (random_() % 12) {
      case 0:
        desc.dtype = static_cast<std::uint8_t>(random_() % 50);
        break;
      case 1:
        desc.layout = static_cast<wire::TensorLayout>(random_() % 7);
        break;
      case 2:
        desc.flags ^= static_cast<std::uint8_t>(1U << random_() % 8);
        break;
      case 3:
        desc.device = random_() % 4 ? 0 : static_cast<std::uint16_t>(random_());
        break;
      case 4:
        desc.storage = static_cast<std::uint32_t>(number());
        break;
      case 5:
        desc.offset = static_cast<std::uint64_t>(number());
        break;
      case 6:
      case 7:
        mutate(desc.sizes);
        break;
      case 8:
        mutate(desc.strides);
        break;
      case 9:
        if (!desc.parts.empty()) desc.parts[random_() % desc.parts.size()] = random_() % 9;
        break;
      case 10:
        desc.axis = static_cast<std::int32_t>(number());
        break;
      default:
        desc.scale = static_cast<double>(number());
        desc.zero_point = number();
    }
  }

  void mutate(Buffer& buffer) {
    if (buffer.size() < 8) return;
    const std::int64_t value = number();
    std::memcpy(buffer.data() + random_() % (buffer.size() / 8) * 8, &value, sizeof(value));
  }

  std::uint32_t below(std::uint32_t bound) { return random_() % bound; }

 private:
  void mutate(Shape& shape) {
    switch (random_() % 3) {
      case 0:
        shape.push_back(number());
        break;
      case 1:
        if (!shape.empty()) shape.resize(shape.size() - 1);
        break;
      default:
        if (!shape.empty()) shape[random_() % shape.size()] = number();
    }
  }
  std::int64_t number() {
    constexpr std::int64_t kEdges[] = {0,        1,        2,        3,         7,        -1,
                                       1L << 31, 1L << 32, 1L << 61, INT64_MAX, INT64_MIN};
    return kEdges[random_() % std::size(kEdges)];
  }

  std::mt19937 random_;
};

std::vector<at::Tensor> one_of_each() {
  const at::Tensor dense = at::eye(6).add(at::ones({6, 6}).triu(4));
  return {at::rand({4, 5}),
          at::rand({4, 5}, c10::kComplexDouble).t(),
          dense.to_sparse(),
          dense.to_sparse_csr(),
          dense.to_sparse_bsc({2, 3}),
          at::quantize_per_channel(at::rand({3, 4}), at::rand({3}).add(0.1), at::arange(3), 0,
                                   c10::kQInt8)};
}

TEST(Unpack, MutatedDescriptionsNeverCrash) {
  at::set_num_threads(1);  // threads that meet after each tiny kernel would take all the time
  TensorPacker packer;
  for (at::Tensor tensor : one_of_each()) packer.add(std::move(tensor));
  const auto packed = packer.finish();
  int accepted = 0, refused = 0;
  for (std::uint32_t seed = 0; seed < 10'000; ++seed) {
    Mutator mutator(seed);
    auto descs = packed.tensors;
    std::vector<Buffer> segments;
    for (const Buffer& segment : packed.segments) segments.push_back(copied(segment));
    for (std::uint32_t n = mutator.below(3); n < 3; ++n) {
      mutator.mutate(descs[mutator.below(static_cast<std::uint32_t>(descs.size()))]);
    }
    if (seed % 2) mutator.mutate(segments[mutator.below(segments.size())]);
    TensorUnpacker unpacker(descs, segments);
    for (std::size_t i = 0; i < descs.size(); ++i) {
      try {
        const at::Tensor tensor = unpacker.tensor(i);
        ++accepted;
        if (!tensor.defined() || tensor.numel() > 10'000) continue;
        if (tensor.is_quantized()) {
          tensor.int_repr();
        } else if (tensor.layout() == c10::kStrided) {
          tensor.clone();
        } else {
          tensor.to_dense();
        }
      } catch (const Error& error) {
        ++refused;
        ASSERT_EQ(error.kind(), ErrorKind::Invalid) << "seed " << seed;
      } catch (const c10::Error&) {
        // A well-formed tensor of a dtype that libtorch cannot copy or make dense.
      }
    }
  }
  EXPECT_GT(accepted, 10'000);
  EXPECT_GT(refused, 1'000);
}

}  // namespace
}  // namespace hawser::tensor
