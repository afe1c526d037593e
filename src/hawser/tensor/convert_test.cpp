#include "hawser/tensor/convert.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "hawser/tensor/trip_for_test.h"

namespace game {

struct Point {
  std::int32_t x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};
HAWSER_FIELDS(Point, x, y)

struct Step {
  at::Tensor state;
  std::vector<Point> path;
  std::optional<std::string> note;
};
HAWSER_FIELDS(Step, state, path, note)

struct Tree {
  std::vector<Tree> branches;
};
HAWSER_FIELDS(Tree, branches)

struct Money {
  std::int64_t cents = 0;
};

}  // namespace game

template <>
struct hawser::Codec<game::Money> {
  static std::string type_name() { return "Money"; }
  static void write(PayloadWriter& out, const game::Money& money) { out.integer(money.cents); }
  static game::Money read(PayloadReader& in) { return game::Money{in.integer()}; }
};

namespace hawser {
namespace {

using tensor::Delivery;

// Writes a value and reads it as a To.
template <class To, class From>
To travel(From&& value) {
  Delivery delivery(write_result(nullptr, std::forward<From>(value)));
  PayloadReader in(delivery.received);
  return read_result<To>(in);
}

template <class T>
void expect_same(const T& value) {
  EXPECT_EQ(travel<T>(value), value);
}

template <class To, class From>
std::string complaint(From&& value) {
  try {
    travel<To>(std::forward<From>(value));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    return error.message();
  }
  return "accepted";
}

TEST(Convert, PlainValues) {
  expect_same(true);
  expect_same(std::int8_t{-3});
  expect_same(std::uint32_t{4'000'000'000});
  expect_same(std::numeric_limits<std::int64_t>::min());
  expect_same(1.5F);
  expect_same(std::numeric_limits<double>::infinity());
  expect_same(std::complex<double>(1, 2));
  expect_same(std::string("text"));
  expect_same(Bytes{std::byte{1}, std::byte{0}});
  expect_same(std::monostate{});
  EXPECT_EQ(travel<std::string>("literal"), "literal");
  EXPECT_EQ(travel<std::string>(std::string_view("view")), "view");
  EXPECT_EQ(travel<double>(3), 3.0);
  travel<void>(std::monostate{});
}

TEST(Convert, Containers) {
  expect_same(std::vector<int>{1, 2, 3});
  expect_same(std::vector<bool>{true, false});
  expect_same(std::vector<std::vector<std::string>>{{"a"}, {}});
  expect_same(std::tuple<int, std::string, double>{1, "x", 2.5});
  expect_same(std::tuple<>{});
  expect_same(std::pair<bool, int>{true, 2});
  expect_same(std::array<double, 3>{1, 2, 3});
  expect_same(std::optional<int>{});
  expect_same(std::optional<int>{5});
  expect_same(std::map<std::string, int>{{"a", 1}, {"b", 2}});
  expect_same(std::unordered_map<int, std::vector<int>>{{1, {2}}});
}

TEST(Convert, LargeBytesTravelInASegment) {
  const Bytes large(kLargestInlineBytes + 1, std::byte{7});
  const wire::Payload payload = write_result(nullptr, large);
  ASSERT_EQ(payload.segments.size(), 1u);
  EXPECT_LT(payload.value.size(), 10u);
  expect_same(large);
  expect_same(std::string(1'000'000, 'x'));
  // Given away, they are not copied.
  Bytes mine = large;
  const auto* memory = mine.data();
  EXPECT_EQ(write_result(nullptr, std::move(mine)).segments[0].data(), memory);
}

TEST(Convert, BlobsAndTensorsInOneMessage) {
  const std::string text(100'000, 't');
  const at::Tensor x = at::ones({3});
  using All = std::tuple<at::Tensor, std::string, at::Tensor, std::string>;
  const auto [a, b, c, d] = travel<All>(All{x, text, x.slice(0, 1), text});
  EXPECT_TRUE(at::equal(a, x));
  EXPECT_EQ(b, text);
  EXPECT_TRUE(c.is_alias_of(a));
  EXPECT_EQ(d, text);
}

TEST(Convert, Structs) {
  expect_same(game::Point{1, 2.5});
  game::Step step{at::ones({2}), {{1, 2}, {3, 4}}, "note"};
  const game::Step arrived = travel<game::Step>(step);
  EXPECT_TRUE(at::equal(arrived.state, step.state));
  EXPECT_EQ(arrived.path, step.path);
  EXPECT_EQ(arrived.note, step.note);
  EXPECT_EQ(travel<game::Money>(game::Money{95}).cents, 95);
}

TEST(Convert, IValuesMeetTypedValues) {
  EXPECT_EQ(travel<std::vector<std::int64_t>>(c10::IValue(std::vector<std::int64_t>{1, 2})),
            (std::vector<std::int64_t>{1, 2}));
  EXPECT_TRUE(travel<c10::IValue>(std::vector<int>{1, 2}).isIntList());
  EXPECT_TRUE(travel<c10::IValue>(game::Point{1, 2}).isTuple());
  EXPECT_EQ(travel<c10::IValue>(Bytes(2, std::byte{'x'})).toStringRef(), "xx");
}

TEST(Convert, MismatchesSayWhereAndWhat) {
  EXPECT_EQ(complaint<double>("x"), "result: expected float, got string");
  EXPECT_EQ(complaint<int>(2.5), "result: expected int32, got float");
  EXPECT_EQ(complaint<bool>(1), "result: expected bool, got int");
  EXPECT_EQ(complaint<at::Tensor>(std::monostate{}), "result: expected Tensor, got None");
  EXPECT_EQ(complaint<std::int8_t>(300), "result: 300 does not fit into int8");
  EXPECT_EQ(complaint<unsigned>(-1), "result: -1 does not fit into uint32");
  EXPECT_EQ(complaint<float>(1e300).find("result: 1"), 0u);
  EXPECT_EQ(complaint<int>(std::numeric_limits<std::uint64_t>::max()),
            "18446744073709551615 does not fit into int");
  EXPECT_EQ(complaint<std::vector<int>>(std::vector<std::string>{"a"}),
            "result: element 0: expected int32, got string");
  EXPECT_EQ((complaint<std::tuple<int, int>>(std::tuple<int>{1})),
            "result: tuple[int32, int32]: expected 2 elements, got 1");
  EXPECT_EQ((complaint<std::map<std::string, int>>(std::map<std::string, bool>{{"a", true}})),
            "result: value of entry 0: expected int32, got bool");
  EXPECT_EQ(complaint<game::Point>(game::Step{}), "result: expected Point, got Step");
  EXPECT_EQ(complaint<std::string>(game::Point{}), "result: expected string, got Point");
  EXPECT_EQ(complaint<std::vector<int>>(1), "result: expected list[int32], got int");
  EXPECT_EQ(complaint<void>(1), "result: expected None, got int");
}

TEST(Convert, MismatchInsideAStruct) {
  PayloadWriter out;
  out.record("Point", 2);
  out.integer(1);
  out.string(std::string_view("two"));
  Delivery delivery(out.finish());
  PayloadReader in(delivery.received);
  try {
    read_result<game::Point>(in);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "result: Point.y: expected float, got string");
  }
}

TEST(Convert, Signatures) {
  EXPECT_EQ((signature<at::Tensor, const at::Tensor&, double>()), "(Tensor, float) -> Tensor");
  EXPECT_EQ((signature<void>()), "() -> None");
  EXPECT_EQ((signature<std::map<std::string, std::optional<game::Point>>, std::vector<Bytes>,
                       std::tuple<std::int64_t, bool>, c10::IValue>()),
            "(list[bytes], tuple[int, bool], any) -> dict[string, optional[Point]]");
}

template <class... Args, class... Given>
std::string argument_complaint(Given&&... given) {
  Delivery delivery(write_arguments(nullptr, std::forward<Given>(given)...));
  PayloadReader in(delivery.received);
  try {
    read_arguments<Args...>(in);
  } catch (const Error& error) {
    return within("scale" + signature<at::Tensor, Args...>(), error).message();
  }
  return "accepted";
}

TEST(Convert, ArgumentsOfACall) {
  const at::Tensor x = at::ones({2});
  EXPECT_EQ((argument_complaint<at::Tensor, double>(x, 2.0)), "accepted");
  EXPECT_EQ((argument_complaint<at::Tensor, double>(x, 2)), "accepted");
  EXPECT_EQ((argument_complaint<at::Tensor, double>(x, "two")),
            "scale(Tensor, float) -> Tensor: argument 2: expected float, got string");
  EXPECT_EQ((argument_complaint<at::Tensor, double>(x)),
            "scale(Tensor, float) -> Tensor: expected 2 arguments, got 1");
  EXPECT_EQ((argument_complaint<>()), "accepted");
}

TEST(Convert, ArgumentsAloneOwnTheReceivedMemory) {
  Delivery delivery(write_arguments(nullptr, at::ones({100}), at::ones({50})));
  std::vector<std::weak_ptr<void>> owners;
  for (const Buffer& segment : delivery.received.segments) owners.push_back(segment.owner());
  PayloadReader in(delivery.received);
  auto [a, b] = read_arguments<at::Tensor, at::Tensor>(in);
  const wire::Payload reply = write_result(nullptr, std::move(a));
  b.reset();
  const bool first_is_a = !owners[0].expired();
  EXPECT_EQ(owners[first_is_a ? 0 : 1].use_count(), 1);
  EXPECT_TRUE(owners[first_is_a ? 1 : 0].expired());
  EXPECT_EQ(reply.segments[0].owner().use_count(), 1);
}

TEST(Convert, ContainersGivenAwayGiveTheirTensorsAway) {
  std::vector<at::Tensor> tensors = {at::ones({2})};
  const c10::weak_intrusive_ptr<c10::TensorImpl> watched(tensors[0].getIntrusivePtr());
  const wire::Payload payload = write_result(nullptr, std::move(tensors));
  EXPECT_TRUE(watched.expired());
  game::Step step{at::ones({2}), {}, {}};
  write_result(nullptr, step);
  EXPECT_TRUE(step.state.defined());
}

TEST(Convert, RecursiveTypesAreBounded) {
  wire::ValueBytes bytes;
  wire::ValueWriter raw(bytes);
  for (int i = 0; i < 10'000; ++i) {
    raw.record("Tree", 1);
    raw.list(1);
  }
  wire::ReceivedPayload payload;
  payload.value = {bytes.data(), bytes.size()};
  PayloadReader in(payload);
  EXPECT_THROW(read_value<game::Tree>(in), Error);
}

}  // namespace
}  // namespace hawser
