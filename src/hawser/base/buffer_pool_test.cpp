#include "hawser/base/buffer_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "hawser/base/error.h"

namespace hawser {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

bool is_aligned(const Buffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.data()) % kBufferAlignment == 0;
}

TEST(BufferPool, GivesAlignedMemoryOfTheSizeAskedFor) {
  BufferPool pool(kMiB);
  for (const std::size_t size : {0u, 1u, 63u, 256u, 257u, 4095u, 4097u, 100'000u, 1'048'577u}) {
    const Buffer buffer = pool.take(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_TRUE(is_aligned(buffer));
    if (size > 0) std::memset(buffer.data(), 0xAB, size);  // ASan checks the end
  }
  EXPECT_EQ(pool.usage().bytes_lent, 0u);
}

TEST(BufferPool, GivesTheWarmestBlockAgain) {
  BufferPool pool(16 * kMiB);
  Buffer older = pool.take(kMiB);
  Buffer newer = pool.take(kMiB);
  const std::byte* warmest = newer.data();
  older = {};
  newer = {};
  EXPECT_EQ(pool.take(kMiB - 100).data(), warmest);
}

TEST(BufferPool, CountsWhatIsLentAndKept) {
  BufferPool pool(16 * kMiB);
  Buffer buffer = pool.take(kMiB);
  EXPECT_EQ(pool.usage().bytes_lent, kMiB);
  EXPECT_EQ(pool.usage().bytes_kept, 0u);
  buffer = {};
  EXPECT_EQ(pool.usage().bytes_lent, 0u);
  EXPECT_EQ(pool.usage().bytes_kept, kMiB);
  pool.trim();
  EXPECT_EQ(pool.usage().bytes_kept, 0u);
}

TEST(BufferPool, DropsTheOldestBeyondItsLimit) {
  BufferPool pool(2 * kMiB);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 3; ++i) buffers.push_back(pool.take(kMiB));
  const std::byte* second = buffers[1].data();
  const std::byte* third = buffers[2].data();
  for (Buffer& buffer : buffers) buffer = {};
  EXPECT_EQ(pool.usage().bytes_kept, 2 * kMiB);
  const Buffer first_again = pool.take(kMiB);
  const Buffer second_again = pool.take(kMiB);
  EXPECT_EQ(first_again.data(), third);
  EXPECT_EQ(second_again.data(), second);
}

TEST(BufferPool, KeepsNothingThatIsLargerThanItsLimit) {
  BufferPool pool(kMiB);
  pool.take(8 * kMiB);
  EXPECT_EQ(pool.usage().bytes_kept, 0u);
}

TEST(BufferPool, BlocksMayOutliveThePool) {
  Buffer first;
  Buffer second;
  {
    BufferPool pool(16 * kMiB);
    first = pool.take(kMiB);
    second = pool.take(kMiB);
    pool.take(kMiB);  // kept, and freed with the pool
  }
  first.data()[0] = std::byte{1};
  first = {};
  second.data()[kMiB - 1] = std::byte{2};
}

TEST(BufferPool, SaysOverloadedWhenThereIsNoSuchMemory) {
  BufferPool pool(kMiB);
  const std::size_t largest = std::numeric_limits<std::size_t>::max();
  for (const std::size_t size : {largest, largest - 64, largest / 2, largest / 4 + 1}) {
    try {
      pool.take(size);
      ADD_FAILURE() << size << " bytes were given";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Overloaded);
    }
  }
  EXPECT_EQ(pool.usage().bytes_lent, 0u);
}

TEST(BufferPool, ServesManyThreads) {
  BufferPool pool(4 * kMiB);
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&pool, seed] {
      std::mt19937 random(seed);
      std::vector<Buffer> held(8);
      for (int i = 0; i < 500; ++i) {
        Buffer& slot = held[random() % held.size()];
        slot = pool.take(random() % (256 * 1024));
        if (!slot.empty()) slot.data()[slot.size() - 1] = std::byte{1};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.usage().bytes_lent, 0u);
  EXPECT_LE(pool.usage().bytes_kept, 4 * kMiB);
}

}  // namespace
}  // namespace hawser
