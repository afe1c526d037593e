#include "hawser/transport/tcp/outbox.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace hawser::transport::tcp {
namespace {

Buffer buffer_of(std::size_t size, int fill, std::weak_ptr<void>* watch = nullptr) {
  auto owner = std::make_shared<std::vector<std::byte>>(size, static_cast<std::byte>(fill));
  if (watch) *watch = owner;
  return Buffer(owner->data(), size, owner);
}

// Takes everything out, in bites of at most `bite` bytes.
std::vector<std::byte> drain(Outbox& outbox, std::size_t bite) {
  std::vector<std::byte> taken;
  std::vector<Buffer> finished;
  while (!outbox.empty()) {
    std::array<iovec, 3> parts;
    const std::size_t count = outbox.gather(parts, bite);
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
      taken.insert(taken.end(), from, from + parts[i].iov_len);
      bytes += parts[i].iov_len;
    }
    EXPECT_GT(bytes, 0u);
    EXPECT_LE(bytes, bite);
    outbox.consume(bytes, finished);
  }
  return taken;
}

TEST(Outbox, GivesBackTheBytesOfTheFramesInOrder) {
  for (const std::size_t bite : {1'000u, 4'096u, 1u << 20}) {
    Outbox outbox;
    std::vector<std::byte> expected;
    for (int i = 0; i < 20; ++i) {
      std::vector<std::byte> body(static_cast<std::size_t>(i * i * 300 + 1), std::byte{0x55});
      wire::OutFrame frame{wire::Kind::Call, body, {buffer_of(100, i), buffer_of(70'000, i)}};
      const auto bytes = wire::to_bytes(frame);
      expected.insert(expected.end(), bytes.begin(), bytes.end());
      outbox.push(frame);
    }
    EXPECT_EQ(outbox.bytes(), expected.size());
    EXPECT_EQ(drain(outbox, bite), expected);
  }
}

TEST(Outbox, SmallFramesLeaveTogether) {
  Outbox outbox;
  const std::array<std::byte, 8> body{};
  for (int i = 0; i < 100; ++i) {
    wire::OutFrame frame{wire::Kind::Call, body, {}};
    outbox.push(frame);
  }
  std::array<iovec, 8> parts;
  EXPECT_EQ(outbox.gather(parts, 1 << 20), 1u);
  EXPECT_EQ(parts[0].iov_len, outbox.bytes());
}

TEST(Outbox, PushingDoesNotMoveWhatWasGathered) {
  Outbox outbox;
  const std::array<std::byte, 8> body{};
  wire::OutFrame first{wire::Kind::Call, body, {}};
  outbox.push(first);
  std::array<iovec, 1> parts;
  ASSERT_EQ(outbox.gather(parts, 1 << 20), 1u);
  const std::vector<std::byte> before(
      static_cast<std::byte*>(parts[0].iov_base),
      static_cast<std::byte*>(parts[0].iov_base) + parts[0].iov_len);
  for (int i = 0; i < 10'000; ++i) {
    wire::OutFrame more{wire::Kind::Reply, body, {}};
    outbox.push(more);
  }
  EXPECT_EQ(std::memcmp(parts[0].iov_base, before.data(), before.size()), 0);
}

TEST(Outbox, PrependPutsEarlierBytesFirst) {
  Outbox later, earlier;
  const std::array<std::byte, 1> a{std::byte{1}}, b{std::byte{2}};
  wire::OutFrame first{wire::Kind::Call, a, {buffer_of(9'000, 1)}};
  wire::OutFrame second{wire::Kind::Reply, b, {}};
  auto expected = wire::to_bytes(first);
  const auto rest = wire::to_bytes(second);
  expected.insert(expected.end(), rest.begin(), rest.end());
  later.push(second);
  earlier.push(first);
  later.prepend(std::move(earlier));
  EXPECT_EQ(later.bytes(), expected.size());
  EXPECT_EQ(drain(later, 1 << 20), expected);
}

TEST(Outbox, HandsOverFinishedSegmentsInsteadOfDestroyingThem) {
  Outbox outbox;
  std::weak_ptr<void> watch;
  const std::array<std::byte, 1> body{};
  wire::OutFrame frame{wire::Kind::Call, body, {buffer_of(10'000, 1, &watch)}};
  outbox.push(frame);
  frame.segments.clear();
  std::vector<Buffer> finished;
  outbox.consume(outbox.bytes() - 1, finished);
  EXPECT_TRUE(finished.empty());
  outbox.consume(1, finished);
  EXPECT_EQ(finished.size(), 1u);
  EXPECT_FALSE(watch.expired());
  finished.clear();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace hawser::transport::tcp
