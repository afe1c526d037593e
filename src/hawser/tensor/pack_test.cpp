#include "hawser/tensor/pack.h"

#include <ATen/ops/_conj.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_channel.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "hawser/base/error.h"
#include "hawser/tensor/trip_for_test.h"

namespace hawser::tensor {
namespace {

// A tensor of any dtype with bytes that tell elements apart.
at::Tensor filled(c10::ScalarType dtype, std::vector<std::int64_t> sizes) {
  at::Tensor tensor = at::empty(sizes, dtype);
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) {
    bytes[i] = dtype == c10::kBool ? i % 3 == 0 : static_cast<unsigned char>(i * 37 + 11);
  }
  return tensor;
}

// Equal shape and equal bits, element by element: no dtype's arithmetic is trusted with that.
void expect_same_elements(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.sizes(), b.sizes());
  ASSERT_EQ(a.scalar_type(), b.scalar_type());
  const std::size_t element = a.element_size();
  const auto* in_a = static_cast<const char*>(a.const_data_ptr());
  const auto* in_b = static_cast<const char*>(b.const_data_ptr());
  for (std::int64_t n = 0; n < a.numel(); ++n) {
    std::int64_t rest = n, at_a = 0, at_b = 0;
    for (std::int64_t d = a.dim() - 1; d >= 0; --d) {
      at_a += rest % a.size(d) * a.stride(d);
      at_b += rest % a.size(d) * b.stride(d);
      rest /= a.size(d);
    }
    ASSERT_EQ(0, std::memcmp(in_a + at_a * element, in_b + at_b * element, element)) << n;
  }
}

void expect_same(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.defined(), b.defined());
  EXPECT_EQ(a.requires_grad(), b.requires_grad());
  EXPECT_EQ(a.is_conj(), b.is_conj());
  EXPECT_EQ(a.is_neg(), b.is_neg());
  EXPECT_EQ(a.strides(), b.strides());
  EXPECT_EQ(a.layout(), b.layout());
  EXPECT_EQ(a.device(), b.device());
  expect_same_elements(a, b);
}

void expect_refused(const at::Tensor& tensor, const std::string& property) {
  try {
    TensorPacker().add(tensor);
    FAIL() << "should be refused: " << property;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    EXPECT_NE(error.message().find(property), std::string::npos) << error.message();
  }
}

std::vector<c10::ScalarType> plain_dtypes() {
  std::vector<c10::ScalarType> dtypes;
  for (int code = 0; code < static_cast<int>(c10::ScalarType::Undefined); ++code) {
    const auto dtype = static_cast<c10::ScalarType>(code);
    if (!c10::isQIntType(dtype)) dtypes.push_back(dtype);
  }
  return dtypes;
}

TEST(Pack, EveryDtypeAndViewIsEqualOnArrival) {
  for (const c10::ScalarType dtype : plain_dtypes()) {
    SCOPED_TRACE(c10::toString(dtype));
    // Small enough that nothing is copied together, so that strides must arrive unchanged.
    const at::Tensor base = filled(dtype, {3, 4, 2});
    const std::vector<at::Tensor> views = {
        base,
        base.transpose(0, 2),
        base.permute({1, 2, 0}),
        base.slice(0, 1, 3),
        base.slice(1, 0, 4, 2),
        base.select(2, 1),
        base.select(0, 2).select(0, 1).select(0, 1),  // 0-dim, with an offset
        base.slice(0, 2, 2),                          // no elements
        base.select(1, 0).unsqueeze(1).expand({3, 7, 2}),
        base.as_strided({3, 3}, {1, 1}, 2),  // overlaps itself
        base.as_strided({2, 1, 2}, {20, 999, 1}, 1),
    };
    for (const at::Tensor& view : views) expect_same(view, travel(view));
    // All of them in one message, too.
    const Trip together = travel_together(views);
    EXPECT_EQ(together.segments, 1u);
    EXPECT_EQ(together.bytes, base.nbytes());
    for (std::size_t i = 0; i < views.size(); ++i) expect_same(views[i], together.tensors[i]);
  }
}

TEST(Pack, EmptyScalarUndefinedAndWrappedNumber) {
  expect_same(at::empty({0}), travel(at::empty({0})));
  expect_same(at::empty({3, 0, 2}), travel(at::empty({3, 0, 2})));
  EXPECT_EQ(travel_together({at::empty({3, 0})}).segments, 0u);
  const at::Tensor number = at::scalar_tensor(2.5);
  expect_same(number, travel(number));
  EXPECT_FALSE(travel(at::Tensor()).defined());
  at::Tensor wrapped = at::scalar_tensor(3);
  wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
  EXPECT_TRUE(travel(wrapped).unsafeGetTensorImpl()->is_wrapped_number());
}

TEST(Pack, ConjugateAndNegativeViewsStayViews) {
  const at::Tensor complex = filled(c10::kComplexFloat, {3, 4});
  expect_same(at::_conj(complex), travel(at::_conj(complex)));
  expect_same(at::_neg_view(complex), travel(at::_neg_view(complex)));
  const at::Tensor both = at::_neg_view(at::_conj(complex).slice(1, 0, 2));
  expect_same(both, travel(both));
  const at::Tensor imaginary = at::imag(at::_conj(at::ones({2}, c10::kComplexDouble)));
  expect_same(imaginary, travel(imaginary));
}

TEST(Pack, Quantized) {
  const at::Tensor values = at::rand({4, 6});
  for (const auto dtype : {c10::kQInt8, c10::kQUInt8, c10::kQInt32}) {
    const at::Tensor q = at::quantize_per_tensor(values, 0.02, 3, dtype);
    const at::Tensor arrived = travel(q.slice(0, 1, 3));
    EXPECT_EQ(arrived.qscheme(), c10::kPerTensorAffine);
    EXPECT_EQ(arrived.q_scale(), 0.02);
    EXPECT_EQ(arrived.q_zero_point(), 3);
    EXPECT_TRUE(at::equal(arrived.dequantize(), q.slice(0, 1, 3).dequantize()));

    const at::Tensor scales = at::rand({6}, c10::kDouble).add(0.01);
    const at::Tensor zeros = at::arange(6);
    const at::Tensor per_channel = at::quantize_per_channel(values, scales, zeros, 1, dtype);
    const at::Tensor back = travel(per_channel);
    EXPECT_EQ(back.qscheme(), c10::kPerChannelAffine);
    EXPECT_EQ(back.q_per_channel_axis(), 1);
    EXPECT_TRUE(at::equal(back.q_per_channel_scales(), scales));
    EXPECT_TRUE(at::equal(back.q_per_channel_zero_points(), zeros));
    EXPECT_TRUE(at::equal(back.int_repr(), per_channel.int_repr()));
  }
}

TEST(Pack, QuantizedWithSeveralElementsToAByte) {
  const at::Tensor values = at::rand({3, 5});
  const at::Tensor scales = at::rand({3}).add(0.1), zeros = at::rand({3});
  const at::Tensor q = at::quantize_per_channel(values, scales, zeros, 0, c10::kQUInt4x2);
  const Trip trip = travel_together({q});
  EXPECT_EQ(trip.tensors[0].qscheme(), c10::kPerChannelAffineFloatQParams);
  EXPECT_TRUE(at::equal(trip.tensors[0].dequantize(), q.dequantize()));
}

TEST(Pack, SparseCoo) {
  const at::Tensor indices = at::arange(6).remainder(3).flip(0).slice(0, 0, 6).view({2, 3});
  const at::Tensor sparse = at::sparse_coo_tensor(indices, at::rand({3, 4}), {3, 3, 4});
  for (const at::Tensor& tensor : {sparse, sparse.coalesce()}) {
    const at::Tensor arrived = travel(tensor);
    EXPECT_EQ(arrived.is_coalesced(), tensor.is_coalesced());
    EXPECT_EQ(arrived.sizes(), tensor.sizes());
    EXPECT_TRUE(at::equal(arrived._indices(), tensor._indices()));
    EXPECT_TRUE(at::equal(arrived._values(), tensor._values()));
  }
  const at::Tensor none = at::sparse_coo_tensor({5, 5}, at::TensorOptions().layout(c10::kSparse));
  EXPECT_EQ(travel(none)._nnz(), 0);
  const at::Tensor learned = sparse.clone().set_requires_grad(true);
  EXPECT_TRUE(travel(learned).requires_grad());
}

TEST(Pack, SparseCompressed) {
  const at::Tensor dense = at::eye(6).add(at::ones({6, 6}).triu(4));
  const std::vector<at::Tensor> layouts = {dense.to_sparse_csr(), dense.to_sparse_csc(),
                                           dense.to_sparse_bsr({2, 3}),
                                           dense.to_sparse_bsc({3, 2})};
  for (const at::Tensor& tensor : layouts) {
    const at::Tensor arrived = travel(tensor);
    EXPECT_EQ(arrived.layout(), tensor.layout());
    EXPECT_EQ(arrived.scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(at::equal(arrived.values(), tensor.values()));
    EXPECT_TRUE(at::equal(arrived.to_dense(), dense));
  }
}

TEST(Pack, RequiresGradArrivesAsALeaf) {
  const at::Tensor leaf = at::rand({3}).set_requires_grad(true);
  EXPECT_TRUE(travel(leaf).requires_grad());
  const at::Tensor result = leaf.mul(2);
  const at::Tensor arrived = travel(result);
  EXPECT_TRUE(arrived.requires_grad());
  EXPECT_TRUE(arrived.is_leaf());
  EXPECT_FALSE(travel(leaf.detach()).requires_grad());
}

TEST(Pack, SharingIsKept) {
  const at::Tensor base = at::zeros({4, 4});
  const Trip trip = travel_together({base.select(0, 1), base, base.t(), base.view({16})});
  EXPECT_EQ(trip.bytes, base.nbytes());
  at::Tensor row = trip.tensors[0];
  row.fill_(7);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_TRUE(trip.tensors[i].is_alias_of(row));
    EXPECT_EQ(trip.tensors[i].sum().item<float>(), 28) << i;
  }
}

TEST(Pack, SharingBetweenDtypesOfDifferentWidth) {
  const at::Tensor bytes = filled(c10::kByte, {64});
  const at::Tensor wide = bytes.slice(0, 16, 48).view(c10::kComplexDouble);
  const Trip trip = travel_together({bytes.slice(0, 5, 60), wide});
  EXPECT_EQ(trip.segments, 1u);
  expect_same(wide, trip.tensors[1]);
}

TEST(Pack, SmallViewOfLargeStorageSendsFewBytes) {
  const at::Tensor large = at::zeros({5000, 5000});  // 100 MB
  EXPECT_EQ(travel_together({large.select(0, 77)}).bytes, 5000u * 4);
  EXPECT_EQ(travel_together({large.select(1, 77)}).bytes, 5000u * 4);
  EXPECT_EQ(travel_together({large.select(1, 77), large.select(1, 77)}).bytes, 5000u * 4);
  EXPECT_EQ(travel_together({large.select(1, 77), large.select(1, 99)}).bytes, 2 * 5000u * 4);
  EXPECT_EQ(travel_together({large.select(0, 1), large.select(0, 4000)}).bytes, 2 * 5000u * 4);
  EXPECT_EQ(travel_together({large.slice(1, 0, 3)}).bytes, 5000u * 3 * 4);
}

TEST(Pack, ExpandedSendsWhatExists) {
  const Trip one = travel_together({at::ones({1}).expand({1000, 1000})});
  EXPECT_EQ(one.bytes, 4u);
  EXPECT_EQ(one.tensors[0].strides(), at::IntArrayRef({0, 0}));
  // A sparse view that is also expanded: copied, and still expanded.
  const at::Tensor column = filled(c10::kFloat, {1000, 100}).select(1, 5);
  const at::Tensor wide = column.unsqueeze(1).expand({1000, 50});
  const Trip trip = travel_together({wide});
  EXPECT_EQ(trip.bytes, 4000u);
  EXPECT_EQ(trip.tensors[0].stride(1), 0);
  expect_same_elements(wide, trip.tensors[0]);
}

TEST(Pack, CompactionKeepsBitsOfEveryWidth) {
  for (const c10::ScalarType dtype : plain_dtypes()) {
    const at::Tensor column = filled(dtype, {300, 40}).slice(1, 3, 5).transpose(0, 1);
    const Trip trip = travel_together({column, column});
    EXPECT_EQ(trip.bytes, 600 * c10::elementSize(dtype));
    expect_same_elements(column, trip.tensors[0]);
    EXPECT_TRUE(trip.tensors[0].is_alias_of(trip.tensors[1]));
  }
}

TEST(Pack, OverlappingSparseViewsStayShared) {
  const at::Tensor base = at::zeros({1000, 100});
  const Trip trip = travel_together({base.select(1, 5), base.slice(1, 5, 7)});
  trip.tensors[0].fill_(1);
  EXPECT_EQ(trip.tensors[1].sum().item<float>(), 1000);
}

TEST(Pack, TenThousandTensors) {
  std::vector<at::Tensor> own, chunks;
  for (int i = 0; i < 10'000; ++i) own.push_back(at::full({3}, i));
  const Trip apart = travel_together(own);
  EXPECT_EQ(apart.segments, 10'000u);
  for (int i = 0; i < 10'000; ++i) EXPECT_TRUE(at::equal(apart.tensors[i], own[i]));

  const at::Tensor flat = at::arange(30'000);
  for (int i = 0; i < 10'000; ++i) chunks.push_back(flat.slice(0, 3 * i, 3 * i + 3));
  const Trip together = travel_together(chunks);
  EXPECT_EQ(together.segments, 1u);
  for (int i = 0; i < 10'000; ++i) EXPECT_TRUE(at::equal(together.tensors[i], chunks[i]));
}

TEST(Pack, MoreThanTwoGiB) {
  const std::int64_t size = (std::int64_t{1} << 31) + 4096;
  const at::Tensor large = at::empty({size}, c10::kByte);  // pages are touched only at the ends
  large[0].fill_(1);
  large[size - 1].fill_(2);
  TensorPacker packer;
  packer.add(large);
  auto [descs, segments, differentiable] = packer.finish();
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].size(), static_cast<std::size_t>(size));
  TensorUnpacker unpacker(descs, segments);
  const at::Tensor arrived = unpacker.tensor(0);
  EXPECT_EQ(arrived.numel(), size);
  EXPECT_EQ(arrived[size - 1].item<int>(), 2);
}

TEST(Pack, MemoryOfOthersIsKeptAliveByItsOwner) {
  bool freed = false;
  std::vector<float> memory(100, 4.0F);
  TensorPacker packer;
  packer.add(at::from_blob(memory.data(), {100}, [&](void*) { freed = true; }));
  {
    auto packed = packer.finish();
    EXPECT_FALSE(freed);
    EXPECT_EQ(static_cast<void*>(packed.segments[0].data()), memory.data());
  }
  EXPECT_TRUE(freed);
}

TEST(Pack, ZeroTensorsAreMadeReal) {
  const at::Tensor zero = at::_efficientzerotensor({2, 3}, at::TensorOptions(c10::kFloat));
  EXPECT_TRUE(at::equal(travel(zero), at::zeros({2, 3})));
}

TEST(Pack, RefusesWithTheReason) {
  expect_refused(at::empty({2}, at::TensorOptions(c10::kMeta)), "device meta");
  expect_refused(at::ones({2, 2}).to_mkldnn(), "layout");
  at::Tensor freed = at::ones({100});
  freed.storage().unsafeGetStorageImpl()->set_nbytes(0);
  expect_refused(freed, "400 bytes");
}

}  // namespace
}  // namespace hawser::tensor
