#include "hawser/transport/tcp/frame_assembler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "hawser/base/error.h"

namespace hawser::transport::tcp {
namespace {

using Bytes = std::vector<std::byte>;

Buffer segment(std::size_t size, int fill) {
  auto owner = std::make_shared<Bytes>(size, static_cast<std::byte>(fill));
  return Buffer(owner->data(), size, owner);
}

Bytes frame_bytes(std::size_t body_size, std::vector<std::size_t> sizes, int fill) {
  const Bytes body(body_size, static_cast<std::byte>(fill));
  wire::OutFrame frame{wire::Kind::Call, body, {}};
  for (const std::size_t size : sizes) frame.segments.push_back(segment(size, fill));
  return wire::to_bytes(frame);
}

struct FrameAssemblerTest : ::testing::Test {
  // Feeds bytes in pieces of at most `piece`, collects the frames.
  std::vector<wire::InFrame> feed(FrameAssembler& assembler, const Bytes& bytes,
                                  std::size_t piece) {
    std::vector<wire::InFrame> frames;
    wire::InFrame frame;
    for (std::size_t at = 0; at < bytes.size();) {
      while (assembler.next(frame)) frames.push_back(std::move(frame));
      const auto landing = assembler.landing();
      EXPECT_FALSE(landing.empty());
      const std::size_t take = std::min({landing.size(), piece, bytes.size() - at});
      std::memcpy(landing.data(), bytes.data() + at, take);
      assembler.landed(take);
      at += take;
    }
    while (assembler.next(frame)) frames.push_back(std::move(frame));
    return frames;
  }

  BufferPool pool{1 << 20};
  Limits limits;
};

TEST_F(FrameAssemblerTest, FramesComeOutHoweverTheBytesAreCut) {
  const std::vector<std::pair<std::size_t, std::vector<std::size_t>>> shapes = {
      {1, {}},      {100, {0, 5, 0}}, {70'000, {}},          {10, {300'000, 1, 20'000}},
      {16'384, {}}, {3, {0, 0, 0}},   {5, {16'384, 16'383}}, {1, {}}};
  Bytes stream;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Bytes one = frame_bytes(shapes[i].first, shapes[i].second, static_cast<int>(i + 1));
    stream.insert(stream.end(), one.begin(), one.end());
  }
  for (const std::size_t piece : {7u, 1'000u, 65'536u, 1u << 20}) {
    FrameAssembler assembler(pool, limits);
    const auto frames = feed(assembler, stream, piece);
    ASSERT_EQ(frames.size(), shapes.size()) << piece;
    EXPECT_TRUE(assembler.between_frames());
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const auto fill = static_cast<std::byte>(i + 1);
      ASSERT_EQ(frames[i].body.size(), shapes[i].first);
      EXPECT_TRUE(std::ranges::all_of(frames[i].body.view(), [&](auto b) { return b == fill; }));
      ASSERT_EQ(frames[i].segments.size(), shapes[i].second.size());
      for (std::size_t s = 0; s < frames[i].segments.size(); ++s) {
        const auto bytes = frames[i].segments[s].bytes();
        ASSERT_EQ(bytes.size(), shapes[i].second[s]);
        EXPECT_TRUE(std::ranges::all_of(bytes, [&](auto b) { return b == fill; }));
      }
    }
  }
}

TEST_F(FrameAssemblerTest, LargeSegmentsLandInTheirFinalMemory) {
  FrameAssembler assembler(pool, limits);
  const Bytes bytes = frame_bytes(1, {1 << 20}, 1);
  wire::InFrame frame;
  EXPECT_FALSE(assembler.next(frame));
  const std::size_t head = 24 + 8 + 1;
  std::memcpy(assembler.landing().data(), bytes.data(), head);
  assembler.landed(head);
  EXPECT_FALSE(assembler.next(frame));
  const auto landing = assembler.landing();
  ASSERT_EQ(landing.size(), std::size_t{1} << 20);
  std::memcpy(landing.data(), bytes.data() + head, landing.size());
  assembler.landed(landing.size());
  ASSERT_TRUE(assembler.next(frame));
  EXPECT_EQ(frame.segments[0].data(), landing.data());
}

TEST_F(FrameAssemblerTest, TakesNoMemoryForAClaimBeyondTheLimits) {
  limits.max_segment_bytes = 1000;
  FrameAssembler assembler(pool, limits);
  EXPECT_THROW(feed(assembler, frame_bytes(1, {1001}, 1), 1 << 20), Error);
  EXPECT_EQ(pool.usage().bytes_lent, 0u);
}

TEST_F(FrameAssemblerTest, TakesMemoryForASegmentOnlyWhenItsTurnComes) {
  FrameAssembler assembler(pool, limits);
  Bytes bytes = frame_bytes(1, {100'000, 100'000}, 1);
  bytes.resize(24 + 16 + 1 + 50'000);
  EXPECT_TRUE(feed(assembler, bytes, 1 << 20).empty());
  EXPECT_LT(pool.usage().bytes_lent, 200'000u);
  EXPECT_FALSE(assembler.between_frames());
  assembler.abandon();
  EXPECT_EQ(pool.usage().bytes_lent, 0u);
}

TEST_F(FrameAssemblerTest, RefusesAHandshakeFrame) {
  const Bytes body(10);
  FrameAssembler assembler(pool, limits);
  EXPECT_THROW(feed(assembler, wire::to_bytes({wire::Kind::Hello, body, {}}), 100), Error);
}

}  // namespace
}  // namespace hawser::transport::tcp
