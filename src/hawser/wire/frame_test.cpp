#include "hawser/wire/frame.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hawser/wire/frame_for_test.h"

namespace hawser::wire {
namespace {

FrameHeader call_header() {
  FrameHeader header;
  header.kind = Kind::Call;
  header.body_bytes = 100;
  return header;
}

Buffer buffer_of(std::string_view text) {
  auto owner = std::make_shared<std::string>(text);
  return Buffer(reinterpret_cast<std::byte*>(owner->data()), owner->size(), owner);
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(FrameHeader, SpellsHawserOnTheWire) {
  const FrameHeader header;
  EXPECT_EQ(std::memcmp(&header, "HWSR", 4), 0);
}

TEST(FrameHeader, GoodOnesAreAccepted) {
  const Limits limits;
  EXPECT_EQ(objection(call_header(), limits), std::nullopt);
  FrameHeader header = call_header();
  header.segment_count = 2;
  header.segment_bytes = 1 << 30;
  EXPECT_EQ(objection(header, limits), std::nullopt);
  header = call_header();
  header.kind = Kind::Hello;
  EXPECT_EQ(objection(header, limits), std::nullopt);
}

TEST(FrameHeader, EveryLieIsObjectedTo) {
  Limits limits;
  limits.max_body_bytes = 1000;
  limits.max_segments = 10;
  limits.max_frame_bytes = 10'000;
  limits.max_handshake_bytes = 200;
  const auto refused = [&](auto change) {
    FrameHeader header = call_header();
    change(header);
    return objection(header, limits).has_value();
  };
  EXPECT_FALSE(refused([](FrameHeader&) {}));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.magic = 0x20544547; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.kind = Kind::None; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.kind = static_cast<Kind>(15); }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.kind = static_cast<Kind>(255); }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.reserved = 1; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.body_bytes = 0; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.body_bytes = 1001; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.body_bytes = 0xFFFFFFFF; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.segment_count = 11; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.segment_bytes = 1; }));
  EXPECT_TRUE(refused([](FrameHeader& h) {
    h.segment_count = 1;
    h.segment_bytes = 10'000;
  }));
  EXPECT_TRUE(refused([](FrameHeader& h) {
    h.segment_count = 1;
    h.segment_bytes = ~std::uint64_t{0};
  }));
  EXPECT_TRUE(refused([](FrameHeader& h) {
    h.kind = Kind::Cancel;
    h.segment_count = 1;
  }));
  EXPECT_TRUE(refused([](FrameHeader& h) {
    h.kind = Kind::Hello;
    h.segment_count = 1;
  }));
  EXPECT_TRUE(refused([](FrameHeader& h) {
    h.kind = Kind::Hello;
    h.body_bytes = 177;
  }));
  EXPECT_TRUE(refused([](FrameHeader& h) {
    h.kind = Kind::Hello;
    h.segment_bytes = 1;
  }));
}

TEST(FrameHeader, BodiesAreLimitedByWhatFlatBuffersCanAddress) {
  Limits limits;
  limits.max_body_bytes = std::size_t{1} << 33;
  FrameHeader header = call_header();
  header.body_bytes = 0x80000000;
  EXPECT_TRUE(objection(header, limits));
  header.body_bytes = 0x7FFFFFFF;
  EXPECT_FALSE(objection(header, limits));
}

TEST(FrameHeader, SegmentSizesMustAddUp) {
  Limits limits;
  limits.max_segment_bytes = 1000;
  FrameHeader header = call_header();
  header.segment_count = 2;
  header.segment_bytes = 300;
  const auto refused = [&](std::vector<std::uint64_t> sizes) {
    return objection(header, sizes, limits).has_value();
  };
  EXPECT_FALSE(refused({100, 200}));
  EXPECT_FALSE(refused({0, 300}));
  EXPECT_TRUE(refused({100, 201}));
  EXPECT_TRUE(refused({100, 199}));
  EXPECT_TRUE(refused({300}));
  EXPECT_TRUE(refused({100, 100, 100}));
  EXPECT_TRUE(refused({301, ~std::uint64_t{0}}));  // adds up modulo 2^64
  header.segment_bytes = 1100;
  EXPECT_TRUE(refused({1001, 99}));
}

TEST(Frame, EveryKindHasItsNameAndPlace) {
  for (int i = 0; i < 256; ++i) {
    const Kind kind = static_cast<Kind>(i);
    EXPECT_EQ(is_handshake(kind), i >= 1 && i <= 5);
    EXPECT_EQ(carries_payload(kind), i >= 16 && i <= 18);
  }
  EXPECT_EQ(to_string(Kind::HeartbeatEcho), "HeartbeatEcho");
  EXPECT_EQ(to_string(static_cast<Kind>(200)), "unknown");
}

TEST(Frame, WholeFramesComeBack) {
  const OutFrame out{
      Kind::Call, as_bytes("the body"), {buffer_of("one"), buffer_of(""), buffer_of("three")}};
  const std::vector<std::byte> bytes = to_bytes(out);
  EXPECT_EQ(bytes.size(), out.total_bytes());
  const InFrame in = from_bytes(bytes, Limits()).take();
  EXPECT_EQ(in.kind, Kind::Call);
  EXPECT_EQ(as_text(in.body.view()), "the body");
  ASSERT_EQ(in.segments.size(), 3u);
  EXPECT_EQ(as_text(in.segments[0].bytes()), "one");
  EXPECT_TRUE(in.segments[1].empty());
  EXPECT_EQ(as_text(in.segments[2].bytes()), "three");
  EXPECT_EQ(in.total_bytes(), out.total_bytes());
}

TEST(Frame, OnlyWholeFramesAreFrames) {
  const OutFrame out{Kind::Call, as_bytes("the body"), {buffer_of("one")}};
  std::vector<std::byte> bytes = to_bytes(out);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::byte> prefix(bytes.begin(), bytes.begin() + static_cast<long>(size));
    const Result<InFrame> frame = from_bytes(prefix, Limits());
    ASSERT_FALSE(frame.ok()) << size;
    EXPECT_EQ(frame.error().kind(), ErrorKind::Invalid);
  }
  bytes.push_back(std::byte{});
  EXPECT_FALSE(from_bytes(bytes, Limits()).ok());
}

}  // namespace
}  // namespace hawser::wire
