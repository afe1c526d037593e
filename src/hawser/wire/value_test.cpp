#include "hawser/wire/value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "hawser/wire/frame_for_test.h"
#include "support/outcome.h"

namespace hawser::wire {
namespace {

using Int = std::numeric_limits<std::int64_t>;

ValueBytes raw(std::initializer_list<int> bytes) {
  ValueBytes result;
  for (const int byte : bytes) result.push_back(static_cast<std::byte>(byte));
  return result;
}

std::string complaint_of(const std::function<void()>& action) {
  const Error error = testing::error_of(action);
  EXPECT_EQ(error.kind(), ErrorKind::Invalid);
  return error.message();
}

TEST(Value, RoundTripOfEveryTag) {
  ValueBytes bytes;
  ValueWriter writer(bytes);
  writer.null();
  writer.boolean(true);
  writer.boolean(false);
  writer.integer(-3);
  writer.real(2.5);
  writer.complex({1.5, -2});
  writer.string("grüße");
  writer.bytes(as_bytes(std::string_view("\0\1\2", 3)));
  writer.blob(7);
  writer.text(8);
  writer.tensor(300);
  writer.reference(0);
  writer.list(2);
  writer.integer(1);
  writer.integer(2);
  writer.tuple(0);
  writer.dict(1);
  writer.string("key");
  writer.null();
  writer.record("Point", 1);
  writer.real(0);

  ValueReader reader(bytes);
  EXPECT_EQ(reader.peek(), Tag::Null);
  reader.null();
  EXPECT_TRUE(reader.boolean());
  EXPECT_FALSE(reader.boolean());
  EXPECT_EQ(reader.integer(), -3);
  EXPECT_EQ(reader.real(), 2.5);
  EXPECT_EQ(reader.complex(), std::complex<double>(1.5, -2));
  EXPECT_EQ(reader.string(), "grüße");
  EXPECT_EQ(reader.bytes().size(), 3u);
  EXPECT_EQ(reader.blob(), 7u);
  EXPECT_EQ(reader.text(), 8u);
  EXPECT_EQ(reader.tensor(), 300u);
  EXPECT_EQ(reader.reference(), 0u);
  EXPECT_EQ(reader.list(), 2u);
  EXPECT_EQ(reader.integer(), 1);
  EXPECT_EQ(reader.integer(), 2);
  EXPECT_EQ(reader.tuple(), 0u);
  EXPECT_EQ(reader.dict(), 1u);
  EXPECT_EQ(reader.string(), "key");
  reader.null();
  const auto record = reader.record();
  EXPECT_EQ(record.type, "Point");
  EXPECT_EQ(record.count, 1u);
  EXPECT_EQ(reader.real(), 0);
  EXPECT_TRUE(reader.at_end());
}

TEST(Value, IntegersAtTheEdges) {
  for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{63},
                                   std::int64_t{64}, std::int64_t{-65}, Int::max(), Int::min()}) {
    ValueBytes bytes;
    ValueWriter(bytes).integer(value);
    ValueReader reader(bytes);
    EXPECT_EQ(reader.integer(), value);
    EXPECT_TRUE(reader.at_end());
  }
}

TEST(Value, SmallIntegersTakeTwoBytes) {
  ValueBytes bytes;
  ValueWriter(bytes).integer(-64);
  EXPECT_EQ(bytes.size(), 2u);
}

TEST(Value, DoublesAreKeptBitByBit) {
  using Double = std::numeric_limits<double>;
  for (const double value : {0.0, -0.0, Double::infinity(), Double::denorm_min(), Double::max()}) {
    ValueBytes bytes;
    ValueWriter(bytes).real(value);
    const double read = ValueReader(bytes).real();
    EXPECT_EQ(std::signbit(read), std::signbit(value));
    EXPECT_EQ(read, value);
  }
  ValueBytes bytes;
  ValueWriter(bytes).real(Double::quiet_NaN());
  EXPECT_TRUE(std::isnan(ValueReader(bytes).real()));
}

TEST(Value, NumbersWidenButDoNotNarrow) {
  ValueBytes integer;
  ValueWriter(integer).integer(3);
  EXPECT_EQ(ValueReader(integer).real(), 3.0);
  EXPECT_EQ(ValueReader(integer).complex(), std::complex<double>(3, 0));
  ValueBytes real;
  ValueWriter(real).real(0.5);
  EXPECT_EQ(ValueReader(real).complex(), std::complex<double>(0.5, 0));
  EXPECT_EQ(complaint_of([&] { ValueReader(real).integer(); }), "expected int, found double");
}

TEST(Value, AnotherKindIsNamed) {
  ValueBytes bytes;
  ValueWriter(bytes).list(0);
  EXPECT_EQ(complaint_of([&] { ValueReader(bytes).string(); }), "expected string, found list");
  EXPECT_EQ(complaint_of([&] { ValueReader(bytes).boolean(); }), "expected bool, found list");
  ValueReader reader(bytes);
  EXPECT_THROW(reader.null(), Error);
  EXPECT_EQ(reader.list(), 0u);  // a refused read consumes nothing
}

TEST(Value, EndOfInputIsNamed) {
  ValueReader reader({});
  EXPECT_EQ(complaint_of([&] { reader.integer(); }), "expected a value, found the end");
  EXPECT_EQ(complaint_of([&] { reader.skip(); }), "expected a value, found the end");
}

TEST(Value, MalformedBytesAreInvalid) {
  const std::vector<ValueBytes> malformed = {
      raw({15}),
      raw({255}),  // unknown tags
      raw({3}),
      raw({3, 0x80}),                                                 // numbers that end early
      raw({3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2}),       // 65 bits
      raw({3, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 0}),  // 11 bytes
      raw({4, 0, 0, 0, 0, 0, 0, 0}),                                  // 7 bytes of a double
      raw({5, 0, 0, 0, 0, 0, 0, 0, 0}),                               // half a complex
      raw({6, 2, 'a'}),
      raw({7, 1}),                                               // text, bytes cut short
      raw({6, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}),  // 2^64 - 1 bytes
      raw({11, 1}),
      raw({11, 3, 0, 0}),
      raw({12, 2, 0}),  // items missing
      raw({13, 1, 0}),
      raw({13, 2, 0, 0, 0}),                                            // half a pair
      raw({11, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}),        // 2^64 - 1 items
      raw({13, 128, 128, 128, 128, 128, 128, 128, 128, 128, 1, 0, 0}),  // 2 * 2^63 values
      raw({14, 0, 0}),
      raw({14, 6, 1, 'P', 2, 0}),  // records
  };
  for (const ValueBytes& bytes : malformed) {
    ValueReader reader(bytes);
    complaint_of([&] { reader.skip(); });
  }
}

TEST(Value, SkipStepsOverAnythingHoweverDeep) {
  ValueBytes bytes;
  ValueWriter writer(bytes);
  for (int i = 0; i < 1'000'000; ++i) writer.list(1);
  writer.null();
  writer.integer(5);
  ValueReader reader(bytes);
  reader.skip();
  EXPECT_EQ(reader.integer(), 5);
}

TEST(Value, RefusesToWriteMoreThanAMessageHolds) {
  ValueBytes bytes;
  ValueWriter writer(bytes);
  const std::byte any{};
  // Refused before a byte of it is read.
  EXPECT_THROW(writer.bytes({&any, kMaxValueBytes + 1}), Error);
}

// A random tree, written, and the calls that read it back and compare.
class RandomTree {
 public:
  explicit RandomTree(unsigned seed) : random_(seed) {}

  void write(ValueWriter& writer, int depth = 0) {
    const auto number = static_cast<std::int64_t>(random_()) - (std::int64_t{1} << 31);
    switch (const unsigned kind = random_() % (depth < 4 ? 10 : 6)) {
      case 0:
        writer.null();
        return expect([](ValueReader& reader) { reader.null(); });
      case 1:
        writer.integer(number);
        return expect([=](ValueReader& reader) { EXPECT_EQ(reader.integer(), number); });
      case 2:
        writer.real(static_cast<double>(number));
        return expect([=](ValueReader& reader) { EXPECT_EQ(reader.real(), number); });
      case 3: {
        const std::string text(random_() % 200, 'x');
        writer.string(text);
        return expect([=](ValueReader& reader) { EXPECT_EQ(reader.string(), text); });
      }
      case 4:
        writer.boolean(number > 0);
        return expect([=](ValueReader& reader) { EXPECT_EQ(reader.boolean(), number > 0); });
      case 5:
        writer.tensor(random_() % 1000);
        return expect([](ValueReader& reader) { reader.tensor(); });
      default:
        write_collection(writer, depth, kind);
    }
  }

  void compare(ValueReader& reader) const {
    for (const auto& expectation : expectations_) expectation(reader);
  }

 private:
  void expect(std::function<void(ValueReader&)> expectation) {
    expectations_.push_back(std::move(expectation));
  }
  void write_collection(ValueWriter& writer, int depth, unsigned kind) {
    const std::uint64_t count = random_() % 5;
    std::uint64_t values = count;
    if (kind == 6) {
      writer.list(count);
      expect([=](ValueReader& reader) { EXPECT_EQ(reader.list(), count); });
    } else if (kind == 7) {
      writer.tuple(count);
      expect([=](ValueReader& reader) { EXPECT_EQ(reader.tuple(), count); });
    } else if (kind == 8) {
      writer.dict(count);
      values = 2 * count;
      expect([=](ValueReader& reader) { EXPECT_EQ(reader.dict(), count); });
    } else {
      writer.record("T", count);
      expect([=](ValueReader& reader) { EXPECT_EQ(reader.record().count, count); });
    }
    for (std::uint64_t i = 0; i < values; ++i) write(writer, depth + 1);
  }

  std::mt19937 random_;
  std::vector<std::function<void(ValueReader&)>> expectations_;
};

TEST(Value, RandomTreesComeBackAndNoPrefixOfThemIsValid) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomTree tree(seed);
    ValueBytes bytes;
    ValueWriter writer(bytes);
    tree.write(writer);
    ValueReader reader(bytes);
    tree.compare(reader);
    EXPECT_TRUE(reader.at_end());

    ValueReader skipper(bytes);
    skipper.skip();
    EXPECT_TRUE(skipper.at_end());
    const std::span<const std::byte> whole(bytes);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const std::vector<std::byte> prefix(whole.begin(), whole.begin() + size);
      ValueReader cut(prefix);
      EXPECT_THROW(cut.skip(), Error);
    }
  }
}

}  // namespace
}  // namespace hawser::wire
