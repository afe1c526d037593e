#include "hawser/transport/shm/frame_stream.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <random>
#include <thread>

#include "hawser/base/buffer_pool.h"
#include "hawser/base/error.h"

namespace hawser::transport::shm {
namespace {

class PoolSource final : public SegmentSource {
 public:
  Buffer locate(const SegmentEntry& entry) override {
    if (entry.place != SegmentPlace::InRing) throw Error(ErrorKind::Invalid, "no arena here");
    return entry.size == 0 ? Buffer() : pool_.take(entry.size);
  }

 private:
  BufferPool pool_{std::size_t{16} << 20};
};

struct Stream {
  explicit Stream(const Limits& limits = {})
      : memory(RingMemory::create(RingMemory::kSmallest, descriptor)),
        writer(RingWriter(memory)),
        reader(RingReader(memory, nullptr), limits) {}

  // As a link does.
  void send(wire::OutFrame frame) {
    std::vector<SegmentEntry> entries;
    for (const Buffer& segment : frame.segments) entries.push_back({segment.size()});
    if (writer.write(frame, entries)) return;
    writer.enqueue(std::move(frame), entries);
    writer.write_on(done);
  }
  // Puts bytes in place of a frame.
  void inject(std::span<const std::byte> bytes) {
    std::memcpy(writer.ring().at(), bytes.data(), bytes.size());
    writer.ring().publish(bytes.size());
  }

  Descriptor descriptor;
  std::shared_ptr<RingMemory> memory;
  FrameWriter writer;
  FrameReader reader;
  PoolSource source;
  std::vector<Buffer> done;
};

std::vector<std::byte> bytes_of(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Buffer buffer_of(std::size_t size, unsigned seed) {
  auto owner = std::make_shared<std::vector<std::byte>>(bytes_of(size, seed));
  return Buffer(owner->data(), owner->size(), owner);
}

bool same(std::span<const std::byte> one, std::span<const std::byte> other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end());
}

wire::OutFrame call(std::span<const std::byte> body, std::vector<Buffer> segments = {}) {
  return wire::OutFrame{wire::Kind::Call, body, std::move(segments)};
}

TEST(FrameStream, CarriesASmallFrame) {
  Stream stream;
  const auto body = bytes_of(13, 1);
  stream.send(call(body));
  wire::InFrame frame;
  ASSERT_TRUE(stream.reader.read(frame, stream.source));
  EXPECT_EQ(frame.kind, wire::Kind::Call);
  EXPECT_TRUE(same(frame.body.view(), body));
  EXPECT_FALSE(stream.reader.read(frame, stream.source));
  EXPECT_FALSE(stream.reader.ring().has_bytes());
}

TEST(FrameStream, CarriesAFrameThatIsLargerThanTheRing) {
  Stream stream;
  const auto body = bytes_of(10'001, 1);
  stream.send(call(body, {buffer_of(20'003, 2), Buffer(), buffer_of(7, 3)}));
  stream.send(call(bytes_of(5, 4)));
  EXPECT_GT(stream.writer.bytes_waiting(), 20'000u);
  wire::InFrame frame;
  int rounds = 0;
  while (!stream.reader.read(frame, stream.source)) {
    ASSERT_LT(++rounds, 100);
    stream.writer.write_on(stream.done);
  }
  EXPECT_TRUE(same(frame.body.view(), body));
  ASSERT_EQ(frame.segments.size(), 3u);
  EXPECT_TRUE(same(frame.segments[0].bytes(), bytes_of(20'003, 2)));
  EXPECT_EQ(frame.segments[1].size(), 0u);
  EXPECT_TRUE(same(frame.segments[2].bytes(), bytes_of(7, 3)));
  stream.writer.write_on(stream.done);
  ASSERT_TRUE(stream.reader.read(frame, stream.source));
  EXPECT_TRUE(same(frame.body.view(), bytes_of(5, 4)));
  EXPECT_TRUE(stream.writer.queue_empty());
  EXPECT_EQ(stream.writer.bytes_waiting(), 0u);
  EXPECT_EQ(stream.done.size(), 2u) << "segments are let go of once they are written";
}

TEST(FrameStream, BlocksOfTheArenaWaitUntilTheirFrameIsTaken) {
  constexpr std::size_t kBlock = 100'000;
  struct Arena final : SegmentSource {
    Buffer locate(const SegmentEntry& entry) override { return buffer_of(entry.size, 2); }
  } arena;
  Stream stream;
  const auto send_named = [&](std::size_t body_bytes) {
    const auto body = bytes_of(body_bytes, 1);
    const std::vector<SegmentEntry> entries{
        {.size = kBlock, .block = 0, .chunk = 0, .place = SegmentPlace::InArena}};
    wire::OutFrame frame = call(body, {buffer_of(kBlock, 2)});
    if (stream.writer.write(frame, entries)) return;
    stream.writer.enqueue(std::move(frame), entries);
    stream.writer.write_on(stream.done);
  };
  send_named(10);
  EXPECT_EQ(stream.writer.bytes_waiting(), kBlock);
  send_named(5'000);  // does not fit into what is left of the ring
  EXPECT_GT(stream.writer.bytes_waiting(), 2 * kBlock);

  wire::InFrame frame;
  ASSERT_TRUE(stream.reader.read(frame, arena));
  stream.writer.look_at_reader();
  EXPECT_LT(stream.writer.bytes_waiting(), 2 * kBlock);
  EXPECT_FALSE(stream.reader.read(frame, arena));
  stream.writer.write_on(stream.done);
  EXPECT_TRUE(stream.writer.queue_empty());
  EXPECT_EQ(stream.writer.bytes_waiting(), kBlock);
  ASSERT_TRUE(stream.reader.read(frame, arena));
  stream.writer.look_at_reader();
  EXPECT_EQ(stream.writer.bytes_waiting(), 0u);
}

TEST(FrameStream, QueuedFramesKeepTheirOrder) {
  Stream stream;
  for (unsigned i = 0; i < 300; ++i) stream.send(call(bytes_of(40, i)));
  EXPECT_FALSE(stream.writer.queue_empty());
  for (unsigned i = 0; i < 300; ++i) {
    wire::InFrame frame;
    while (!stream.reader.read(frame, stream.source)) stream.writer.write_on(stream.done);
    ASSERT_TRUE(same(frame.body.view(), bytes_of(40, i))) << i;
  }
}

TEST(FrameStream, MalformedBytesAreRefused) {
  {
    Stream stream;
    stream.inject(bytes_of(64, 1));
    wire::InFrame frame;
    EXPECT_THROW(stream.reader.read(frame, stream.source), Error);
  }
  {
    Stream stream;
    wire::FrameHeader header;
    header.kind = wire::Kind::Call;
    header.flags = 3;
    stream.inject(std::as_bytes(std::span(&header, 1)));
    wire::InFrame frame;
    EXPECT_THROW(stream.reader.read(frame, stream.source), Error);
  }
  for (const auto& entry : {SegmentEntry{8, 0, 0, static_cast<SegmentPlace>(9), 0},
                            SegmentEntry{8, 0, 0, SegmentPlace::InRing, 1},
                            SegmentEntry{9, 0, 0, SegmentPlace::InRing, 0}}) {
    Stream stream;
    wire::FrameHeader header;
    header.kind = wire::Kind::Call;
    header.segment_count = 1;
    header.segment_bytes = 8;
    stream.inject(std::as_bytes(std::span(&header, 1)));
    stream.inject(std::as_bytes(std::span(&entry, 1)));
    wire::InFrame frame;
    EXPECT_THROW(stream.reader.read(frame, stream.source), Error);
  }
}

TEST(FrameStream, LimitsAreCheckedBeforeMemoryIsTaken) {
  Limits limits;
  limits.max_body_bytes = 100;
  Stream stream(limits);
  wire::FrameHeader header;
  header.kind = wire::Kind::Call;
  header.body_bytes = 101;
  stream.inject(std::as_bytes(std::span(&header, 1)));
  wire::InFrame frame;
  EXPECT_THROW(stream.reader.read(frame, stream.source), Error);
}

TEST(FrameStream, KnowsWhenAFrameIsCutOff) {
  Stream stream;
  EXPECT_FALSE(stream.reader.in_the_middle());
  stream.inject(bytes_of(10, 1));
  wire::InFrame frame;
  EXPECT_FALSE(stream.reader.read(frame, stream.source));
  EXPECT_TRUE(stream.reader.in_the_middle());
  EXPECT_FALSE(stream.reader.ring().has_bytes());
}

// Both ends in one process on one mapping: ThreadSanitizer checks the order of ring.h.
TEST(FrameStream, TwoThreadsStress) {
  Stream stream;
  constexpr unsigned kFrames = 3000;
  std::jthread sender([&] {
    std::mt19937 random(7);
    for (unsigned i = 0; i < kFrames; ++i) {
      std::vector<Buffer> segments;
      for (unsigned s = random() % 4; s > 0; --s) {
        segments.push_back(buffer_of(random() % 6000, i + s));
      }
      stream.send(call(bytes_of(1 + random() % 1000, i), std::move(segments)));
      while (!stream.writer.queue_empty()) {
        if (!stream.writer.write_on(stream.done)) ::sched_yield();
      }
    }
  });
  std::mt19937 random(7);
  for (unsigned i = 0; i < kFrames; ++i) {
    wire::InFrame frame;
    while (!stream.reader.read(frame, stream.source)) ::sched_yield();
    const unsigned segments = random() % 4;
    ASSERT_EQ(frame.segments.size(), segments);
    for (unsigned s = segments; s > 0; --s) {
      ASSERT_TRUE(same(frame.segments[segments - s].bytes(), bytes_of(random() % 6000, i + s)));
    }
    ASSERT_TRUE(same(frame.body.view(), bytes_of(1 + random() % 1000, i)));
  }
}

}  // namespace
}  // namespace hawser::transport::shm
