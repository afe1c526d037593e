#include "hawser/transport/shm/ring.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "hawser/base/error.h"

namespace hawser::transport::shm {
namespace {

// Both ends on one mapping, so that ThreadSanitizer sees one memory.
struct Ring {
  explicit Ring(std::size_t size = RingMemory::kSmallest)
      : memory(RingMemory::create(size, descriptor)), writer(memory), reader(memory, nullptr) {}

  Descriptor descriptor;
  std::shared_ptr<RingMemory> memory;
  RingWriter writer;
  RingReader reader;
};

void put(RingWriter& writer, std::size_t bytes, unsigned char value) {
  ASSERT_GE(writer.room(bytes), bytes);
  std::memset(writer.at(), value, bytes);
  writer.publish(bytes);
}

void expect_next(RingReader& reader, std::size_t bytes, unsigned char value) {
  ASSERT_GE(reader.available(), bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    ASSERT_EQ(reader.at()[i], std::byte{value}) << "byte " << i;
  }
  reader.take(bytes);
  reader.publish();
}

TEST(Ring, RefusesOddSizes) {
  Descriptor memory;
  EXPECT_THROW(RingMemory::create(5000, memory), Error);
  EXPECT_THROW(RingMemory::create(1024, memory), Error);
  EXPECT_THROW(RingMemory::create(std::size_t{1} << 40, memory), Error);
}

TEST(Ring, WhatRunsOverTheEndContinuesAtTheBeginningInOnePiece) {
  Ring ring;
  const std::size_t size = ring.memory->size();
  put(ring.writer, size - 100, 1);
  expect_next(ring.reader, size - 100, 1);
  put(ring.writer, size, 2);
  expect_next(ring.reader, size, 2);
  EXPECT_FALSE(ring.reader.has_bytes());
}

TEST(Ring, TheOtherMappingSeesTheSameBytes) {
  Ring ring;
  RingWriter writer(RingMemory::adopt(ring.descriptor, ring.memory->size()));
  put(writer, 4000, 1);
  expect_next(ring.reader, 4000, 1);
  put(writer, 4000, 2);  // wraps
  expect_next(ring.reader, 4000, 2);
}

TEST(Ring, AFullRingSaysSoAndTheReaderClearsTheAnnouncement) {
  Ring ring;
  put(ring.writer, ring.memory->size(), 1);
  EXPECT_EQ(ring.writer.room(1), 0u);
  EXPECT_FALSE(ring.writer.await_space());
  EXPECT_TRUE(ring.memory->writer_waits());
  expect_next(ring.reader, 8, 1);
  EXPECT_FALSE(ring.memory->writer_waits());
  EXPECT_EQ(ring.writer.room(8), 8u);
}

TEST(Ring, AWriterThatFindsRoomAfterAllLeavesTheAnnouncement) {
  Ring ring;
  put(ring.writer, 100, 1);
  EXPECT_TRUE(ring.writer.await_space());
  EXPECT_TRUE(ring.memory->writer_waits()) << "another thread may count on it";
}

TEST(Ring, RingsAWaitingWriterThatSleeps) {
  Doorbell bell;
  RemoteBell remote(Descriptor(::dup(bell.page_fd())), Descriptor(::dup(bell.event_fd())));
  Descriptor descriptor;
  const auto memory = RingMemory::create(4096, descriptor);
  RingWriter writer(memory);
  RingReader reader(memory, &remote);
  put(writer, 4096, 1);
  ASSERT_FALSE(writer.await_space());
  bell.announce_sleep();
  expect_next(reader, 8, 1);
  EXPECT_FALSE(bell.announced_asleep());
  std::uint64_t rung = 0;
  EXPECT_EQ(::read(bell.event_fd(), &rung, sizeof rung), 8);
}

TEST(Ring, CorruptTailIsNoticed) {
  for (const std::uint64_t tail :
       {std::uint64_t{4097}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    Ring ring;
    ring.memory->header().tail = tail;
    EXPECT_TRUE(ring.reader.has_bytes());
    EXPECT_THROW(ring.reader.available(), Error);
  }
}

TEST(Ring, ATailThatGoesBackIsNoticed) {
  Ring ring;
  put(ring.writer, 100, 1);
  expect_next(ring.reader, 100, 1);
  ring.memory->header().tail = 40;
  EXPECT_THROW(ring.reader.available(), Error);
}

TEST(Ring, CorruptHeadIsNoticed) {
  for (const std::uint64_t head : {std::uint64_t{101}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    Ring ring;
    put(ring.writer, 100, 1);
    ring.memory->header().head = head;
    EXPECT_THROW(ring.writer.room(4096), Error);
    EXPECT_THROW(ring.writer.await_space(), Error);
  }
}

TEST(Ring, AfterFreezeNothingNewIsSeen) {
  Ring ring;
  put(ring.writer, 8, 1);
  ring.reader.freeze();
  put(ring.writer, 8, 2);
  expect_next(ring.reader, 8, 1);
  EXPECT_FALSE(ring.reader.has_bytes());
  EXPECT_EQ(ring.reader.available(), 0u);
}

TEST(Ring, GivesBackMemoryOnlyWhenEmptyAndGoesOn) {
  Ring ring(std::size_t{64} << 10);
  put(ring.writer, 50'000, 1);
  EXPECT_FALSE(ring.writer.give_back_memory());
  expect_next(ring.reader, 50'000, 1);
  EXPECT_TRUE(ring.writer.give_back_memory());
  put(ring.writer, 50'000, 2);
  expect_next(ring.reader, 50'000, 2);
}

TEST(Ring, RefusesDescriptorsThatAreNotSealedMemoryOfThatSize) {
  Descriptor good;
  RingMemory::create(8192, good);
  EXPECT_THROW(RingMemory::adopt(good, 4096), Error);
  EXPECT_THROW(RingMemory::adopt(Descriptor(), 8192), Error);
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const Descriptor reading(pipe_ends[0]), writing(pipe_ends[1]);
  EXPECT_THROW(RingMemory::adopt(reading, 8192), Error);
}

// Random amounts through a small ring, each side waiting as a link would: looking again and again.
TEST(Ring, TwoThreadsAgreeOnEveryByte) {
  Ring ring;
  constexpr std::size_t kBytes = 2'000'000;
  std::jthread producer([&] {
    std::mt19937 random(1);
    std::size_t sent = 0;
    while (sent < kBytes) {
      const std::size_t wanted = std::min<std::size_t>(1 + random() % 3000, kBytes - sent);
      const std::size_t room = ring.writer.room(wanted);
      if (room == 0) {
        ring.writer.await_space();
        ::sched_yield();
        continue;
      }
      const std::size_t bytes = std::min(wanted, room);
      for (std::size_t i = 0; i < bytes; ++i) {
        ring.writer.at()[i] = static_cast<std::byte>((sent + i) * 31 >> 3);
      }
      ring.writer.publish(bytes);
      sent += bytes;
    }
  });
  std::mt19937 random(2);
  std::size_t received = 0, wrong = 0;
  while (received < kBytes) {
    const std::size_t available = ring.reader.available();
    if (available == 0) {
      ::sched_yield();
      continue;
    }
    const std::size_t bytes = std::min<std::size_t>(available, 1 + random() % 3000);
    for (std::size_t i = 0; i < bytes; ++i) {
      wrong += ring.reader.at()[i] != static_cast<std::byte>((received + i) * 31 >> 3);
    }
    ring.reader.take(bytes);
    ring.reader.publish();
    received += bytes;
  }
  producer.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace hawser::transport::shm
