#include "hawser/tensor/value_codec.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hawser/tensor/trip_for_test.h"

namespace hawser {
namespace {

using tensor::Delivery;

c10::IValue travel(c10::IValue value) {
  PayloadWriter out;
  write_ivalue(out, std::move(value));
  Delivery delivery(out.finish());
  PayloadReader in(delivery.received);
  c10::IValue arrived = read_ivalue(in);
  in.finish();
  return arrived;
}

std::string refusal_of(const c10::IValue& value) {
  try {
    PayloadWriter out;
    write_ivalue(out, value);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    return error.message();
  }
  return "accepted";
}

TEST(ValueCodec, SingleValues) {
  EXPECT_TRUE(travel(c10::IValue()).isNone());
  EXPECT_EQ(travel(true), c10::IValue(true));
  EXPECT_EQ(travel(-5), c10::IValue(-5));
  EXPECT_EQ(travel(2.5), c10::IValue(2.5));
  EXPECT_EQ(travel("text"), c10::IValue("text"));
  EXPECT_EQ(travel(c10::complex<double>(1, -2)), c10::IValue(c10::complex<double>(1, -2)));
  EXPECT_EQ(travel(c10::Device("cuda:1")), c10::IValue(c10::Device("cuda:1")));
  EXPECT_TRUE(at::equal(travel(at::ones({3})).toTensor(), at::ones({3})));
  EXPECT_FALSE(travel(at::Tensor()).toTensor().defined());
}

TEST(ValueCodec, ListsKeepTheirCommonElementType) {
  EXPECT_TRUE(travel(std::vector<std::int64_t>{1, 2}).isIntList());
  EXPECT_TRUE(travel(std::vector<double>{1, 2}).isDoubleList());
  EXPECT_TRUE(travel(c10::List<bool>({true})).isBoolList());
  EXPECT_TRUE(travel(std::vector<at::Tensor>{at::ones({1}), at::Tensor()}).isTensorList());
  const c10::IValue strings = travel(std::vector<std::string>{"a", "b"});
  EXPECT_EQ(*strings.toList().elementType(), *c10::StringType::get());
  c10::impl::GenericList mixed(c10::AnyType::get());
  mixed.push_back(1);
  mixed.push_back("two");
  mixed.push_back(c10::IValue());
  EXPECT_EQ(travel(mixed), c10::IValue(mixed));
  EXPECT_EQ(travel(c10::List<std::int64_t>()).toListRef().size(), 0u);
}

TEST(ValueCodec, TuplesAndDicts) {
  const c10::IValue tuple = c10::ivalue::Tuple::create({1, "x", c10::IValue()});
  EXPECT_EQ(travel(tuple), tuple);
  c10::Dict<std::string, c10::List<std::int64_t>> dict;
  dict.insert("b", c10::List<std::int64_t>({1, 2}));
  dict.insert("a", c10::List<std::int64_t>());
  const auto arrived = travel(dict).toGenericDict();
  EXPECT_EQ(arrived.size(), 2u);
  EXPECT_EQ(arrived.begin()->key().toStringRef(), "b");
  EXPECT_EQ(arrived.at("b"), c10::IValue(std::vector<std::int64_t>{1, 2}));
}

TEST(ValueCodec, LargeStringsTravelInASegment) {
  const std::string large(200'000, 'x');
  PayloadWriter out;
  write_ivalue(out, large);
  Delivery delivery(out.finish());
  EXPECT_EQ(delivery.sent.segments.size(), 1u);
  EXPECT_LT(delivery.sent.value.size(), 10u);
  PayloadReader in(delivery.received);
  EXPECT_EQ(read_ivalue(in).toStringRef(), large);
}

TEST(ValueCodec, ListGivenAwayGivesItsTensorsAway) {
  at::Tensor tensor = at::ones({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl> watched(tensor.getIntrusivePtr());
  c10::List<at::Tensor> list;
  list.push_back(std::move(tensor));
  PayloadWriter out;
  write_ivalue(out, c10::IValue(std::move(list)));
  EXPECT_TRUE(watched.expired());
}

TEST(ValueCodec, ListThatIsKeptStaysWhole) {
  const c10::List<at::Tensor> kept({at::ones({4})});
  PayloadWriter out;
  write_ivalue(out, c10::IValue(kept));
  EXPECT_TRUE(kept.get(0).defined());
}

TEST(ValueCodec, RefusesNamingTheKind) {
  EXPECT_NE(
      refusal_of(c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get())).find("Future"),
      std::string::npos);
  EXPECT_NE(refusal_of(c10::Storage::create_legacy(c10::kCPU)).find("Storage"), std::string::npos);
}

TEST(ValueCodec, NestingIsBounded) {
  c10::IValue deep = 1;
  for (int i = 0; i < wire::kMaxValueDepth; ++i) deep = c10::ivalue::Tuple::create({deep});
  EXPECT_EQ(travel(deep), deep);
  EXPECT_NE(refusal_of(c10::ivalue::Tuple::create({deep})).find("nested"), std::string::npos);
  // The reader does not rely on the writer's manners.
  wire::ValueBytes bytes;
  wire::ValueWriter raw(bytes);
  for (int i = 0; i < 100'000; ++i) raw.list(1);
  raw.null();
  wire::ReceivedPayload payload;
  payload.value = {bytes.data(), bytes.size()};
  PayloadReader in(payload);
  EXPECT_THROW(read_ivalue(in), Error);
}

TEST(ValueCodec, MutatedValuesNeverCrash) {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("weights", at::ones({2, 2}));
  const c10::IValue value = c10::ivalue::Tuple::create(
      {1, 2.5, "text", dict, std::vector<std::int64_t>{1, 2, 3}, c10::Device("cpu")});
  PayloadWriter out;
  write_ivalue(out, value);
  const Delivery original(out.finish());
  int refused = 0;
  for (std::uint32_t seed = 0; seed < 50'000; ++seed) {
    std::mt19937 random(seed);
    Delivery delivery(original.sent);
    for (std::uint32_t n = 1 + random() % 4; n > 0; --n) {
      delivery.sent.value[random() % delivery.sent.value.size()] =
          static_cast<std::byte>(random() % 3 ? random() % 16 : random());
    }
    PayloadReader in(delivery.received);
    try {
      read_ivalue(in);
      in.finish();
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::Invalid);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace hawser
