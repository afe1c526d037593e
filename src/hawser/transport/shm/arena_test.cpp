#include "hawser/transport/shm/arena.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "hawser/base/error.h"
#include "hawser/transport/shm/adoption.h"
#include "hawser/transport/shm/copy_bytes.h"

namespace hawser::transport::shm {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

// Two ends of an arena in one process, the chunk announcements handed over directly.
struct Ends {
  explicit Ends(std::size_t limit = 64 * kMiB, double share = 0.5, std::size_t step = 4 * kMiB)
      : inbound(limit, static_cast<std::size_t>(static_cast<double>(limit) * share)),
        outbound(std::make_shared<OutboundArena>(
            limit, step, [this](const ChunkNote& note, const Descriptor& memory) {
              if (!announce) return false;
              inbound.add_chunk(note, memory);
              ++chunks;
              return true;
            })) {}

  BufferPool pool{64 * kMiB};
  bool announce = true;
  int chunks = 0;
  InboundArena inbound;
  std::shared_ptr<OutboundArena> outbound;
};

std::vector<std::byte> filled(std::size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

bool holds(const Buffer& buffer, int value) {
  for (const std::byte byte : buffer.bytes()) {
    if (byte != static_cast<std::byte>(value)) return false;
  }
  return true;
}

// Sends one segment and receives it.
Buffer transfer(Ends& ends, std::size_t size, int value) {
  const auto name = ends.outbound->place(filled(size, value));
  if (!name) throw Error(ErrorKind::Overloaded, "full");
  return ends.inbound.take(*name, size, ends.pool);
}

TEST(Arena, TheReceivedBufferIsTheBlockAndReturnsIt) {
  Ends ends;
  {
    const Buffer received = transfer(ends, 100 * kKiB, 7);
    EXPECT_TRUE(holds(received, 7));
    EXPECT_NE(std::get_deleter<AdoptedBlock>(received.owner()), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(received.data()) % kBufferAlignment, 0u);
    EXPECT_EQ(ends.inbound.bytes_adopted(), 100 * kKiB);
    EXPECT_EQ(ends.outbound->usage().blocks_in_use, 1u);
  }
  EXPECT_EQ(ends.inbound.bytes_adopted(), 0u);
  ends.outbound->trim();
  EXPECT_EQ(ends.outbound->usage().blocks_in_use, 0u);
}

TEST(Arena, TheLastReturnedBlockIsUsedFirst) {
  Ends ends;
  const auto first = *ends.outbound->place(filled(100 * kKiB, 1));
  const auto second = *ends.outbound->place(filled(100 * kKiB, 2));
  ends.inbound.take(second, 100 * kKiB, ends.pool);
  EXPECT_EQ(*ends.outbound->place(filled(100 * kKiB, 3)), second);
  ends.inbound.take(first, 100 * kKiB, ends.pool);
  EXPECT_EQ(*ends.outbound->place(filled(90 * kKiB, 4)), first);
  EXPECT_EQ(ends.chunks, 1);
}

TEST(Arena, FreeNeighboursMergeSoThatLargerBlocksFit) {
  Ends ends(5 * kMiB, 1.0);
  std::vector<Buffer> small;
  for (int i = 0; i < 32; ++i) small.push_back(transfer(ends, 100 * kKiB, i));
  EXPECT_FALSE(ends.outbound->place(filled(3 * kMiB, 0)));
  small.clear();
  EXPECT_TRUE(ends.outbound->place(filled(3 * kMiB, 0)));
  EXPECT_EQ(ends.chunks, 1);
}

TEST(Arena, GrowsInStepsUpToItsLimitAndThenSaysNo) {
  Ends ends(10 * kMiB, 1.0);
  std::vector<Buffer> kept;
  for (;;) {
    const auto name = ends.outbound->place(filled(kMiB, 1));
    if (!name) break;
    kept.push_back(ends.inbound.take(*name, kMiB, ends.pool));
  }
  EXPECT_GE(kept.size(), 8u);
  EXPECT_LE(ends.outbound->usage().bytes_mapped, 10 * kMiB);
  EXPECT_GE(ends.chunks, 3);
  kept.pop_back();
  EXPECT_TRUE(ends.outbound->place(filled(kMiB, 1)));
}

TEST(Arena, ABlockLargerThanAStepGetsItsOwnChunk) {
  Ends ends(64 * kMiB, 1.0);
  EXPECT_TRUE(holds(transfer(ends, 20 * kMiB + 5, 9), 9));
  EXPECT_FALSE(ends.outbound->place(filled(65 * kMiB, 0)));
}

TEST(Arena, AProgramThatKeepsEverythingDoesNotExhaustIt) {
  Ends ends(16 * kMiB, 0.5);
  std::vector<Buffer> kept;
  for (int i = 0; i < 100; ++i) kept.push_back(transfer(ends, kMiB, i));
  EXPECT_LE(ends.inbound.bytes_adopted(), 8 * kMiB);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(holds(kept[i], i)) << i;
}

TEST(Arena, WithoutAWayToAnnounceItDoesNotGrow) {
  Ends ends;
  ends.announce = false;
  EXPECT_FALSE(ends.outbound->place(filled(kMiB, 1)));
  EXPECT_EQ(ends.outbound->usage().bytes_mapped, 0u);
  ends.outbound->close();
  ends.announce = true;
  EXPECT_FALSE(ends.outbound->place(filled(kMiB, 1)));
}

TEST(Arena, BuffersOutliveBothEnds) {
  Buffer received;
  {
    Ends ends;
    received = transfer(ends, kMiB, 3);
  }
  EXPECT_TRUE(holds(received, 3));
}

TEST(Arena, AnyThreadMayReturnBlocks) {
  Ends ends;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    std::vector<Buffer> share;
    for (int i = 0; i < 20; ++i) share.push_back(transfer(ends, 70 * kKiB, t));
    threads.emplace_back([t, share = std::move(share)]() mutable {
      while (!share.empty()) {
        EXPECT_TRUE(holds(share.back(), t));
        share.pop_back();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ends.outbound->trim();
  EXPECT_EQ(ends.outbound->usage().blocks_in_use, 0u);
}

TEST(Arena, TrimKeepsWhatIsInUse) {
  Ends ends;
  const Buffer kept = transfer(ends, kMiB, 5);
  transfer(ends, kMiB, 6);
  ends.outbound->trim();
  EXPECT_TRUE(holds(kept, 5));
  EXPECT_TRUE(holds(transfer(ends, 2 * kMiB, 7), 7));
}

// ---- what a peer may get wrong ----

TEST(Arena, ReturningABlockThatWasNotLentIsNoticed) {
  Ends ends;
  const auto name = *ends.outbound->place(filled(kMiB, 1));
  ends.inbound.take(BlockName{name.chunk, name.unit + 3}, 1, ends.pool);  // returned at once
  EXPECT_THROW(ends.outbound->place(filled(kMiB, 1)), Error);
}

TEST(Arena, BlocksBeyondTheEndAreRefused) {
  Ends ends;
  const auto name = *ends.outbound->place(filled(kMiB, 1));
  const auto take = [&](BlockName block, std::size_t size) {
    return ends.inbound.take(block, size, ends.pool);
  };
  EXPECT_THROW(take({7, 0}, 100), Error);
  EXPECT_THROW(take({name.chunk, 64}, 1), Error);
  EXPECT_THROW(take({name.chunk, 0xFFFFFFFF}, 1), Error);
  EXPECT_THROW(take({name.chunk, 63}, 64 * kKiB + 1), Error);
  EXPECT_THROW(take(name, 4 * kMiB + 1), Error);
  EXPECT_THROW(take(name, ~std::size_t{0}), Error);
  EXPECT_THROW(take(name, 0), Error);
}

TEST(Arena, BadChunksAreRefused) {
  InboundArena inbound(8 * kMiB, kMiB);
  const Descriptor good = create_sealed_memory("test", Chunk::total_bytes(16));
  EXPECT_THROW(inbound.add_chunk({0, 0, 16, 0}, good), Error);                    // magic
  EXPECT_THROW(inbound.add_chunk({ChunkNote::kMagic, 1, 16, 0}, good), Error);    // index
  EXPECT_THROW(inbound.add_chunk({ChunkNote::kMagic, 0, 0, 0}, good), Error);     // empty
  EXPECT_THROW(inbound.add_chunk({ChunkNote::kMagic, 0, 17, 0}, good), Error);    // size
  EXPECT_THROW(inbound.add_chunk({ChunkNote::kMagic, 0, 4096, 0}, good), Error);  // limit
  EXPECT_THROW(inbound.add_chunk({ChunkNote::kMagic, 0, 16, 0}, Descriptor()), Error);
  inbound.add_chunk({ChunkNote::kMagic, 0, 16, 0}, good);
  EXPECT_TRUE(inbound.has_chunk(0));
}

// ---- hand-back ----

TEST(HandBack, AnUnsharedBlockGoesBackWithoutACopy) {
  Ends ends;
  Buffer received = transfer(ends, kMiB, 1);
  std::memset(received.data(), 2, received.size());
  const auto name = ends.inbound.hand_back(received);
  ASSERT_TRUE(name);
  received = Buffer();
  Buffer back = ends.outbound->reclaim(*name, kMiB);
  EXPECT_TRUE(holds(back, 2));
  EXPECT_EQ(ends.outbound->usage().blocks_in_use, 1u);
  EXPECT_NE(*ends.outbound->place(filled(kMiB, 3)), *name) << "the block is in use here";
  back = Buffer();
  EXPECT_EQ(*ends.outbound->place(filled(kMiB, 4)), *name);
}

TEST(HandBack, NotWhileAnybodyElseHoldsIt) {
  Ends ends;
  const Buffer received = transfer(ends, kMiB, 1);
  {
    const Buffer kept = received;
    EXPECT_FALSE(ends.inbound.hand_back(received)) << "kept by the callee";
  }
  {
    const Buffer view(received.data() + 64, 128, received.owner());
    EXPECT_FALSE(ends.inbound.hand_back(received)) << "a view is kept";
  }
  {
    const std::shared_ptr<void> other = received.owner();
    EXPECT_FALSE(ends.inbound.hand_back(received)) << "another owner";
  }
  EXPECT_TRUE(ends.inbound.hand_back(received));
  EXPECT_FALSE(ends.inbound.hand_back(received)) << "only once";
}

TEST(HandBack, OnlyTheWholeBlockOfThisArena) {
  Ends ends;
  Ends others;
  Buffer received = transfer(ends, kMiB, 1);
  EXPECT_FALSE(others.inbound.hand_back(received));
  const Buffer front(received.data(), kMiB - 1, received.owner());
  received = Buffer();
  EXPECT_FALSE(ends.inbound.hand_back(front));
  auto memory = std::make_shared<std::vector<std::byte>>(100);
  EXPECT_FALSE(ends.inbound.hand_back(Buffer(memory->data(), 100, memory)));
  EXPECT_FALSE(ends.inbound.hand_back(Buffer()));
}

TEST(HandBack, OfABlockThatWasNotLentIsRefused) {
  Ends ends;
  const auto name = *ends.outbound->place(filled(kMiB, 1));
  EXPECT_THROW(ends.outbound->reclaim({5, 0}, kMiB), Error);
  EXPECT_THROW(ends.outbound->reclaim({name.chunk, name.unit + 1}, kMiB), Error);
  EXPECT_THROW(ends.outbound->reclaim(name, kMiB - 1), Error);
  const Buffer back = ends.outbound->reclaim(name, kMiB);
  EXPECT_THROW(ends.outbound->reclaim(name, kMiB), Error);
}

TEST(HandBack, TheBufferOutlivesTheLink) {
  Buffer back;
  {
    Ends ends;
    const auto name = *ends.outbound->place(filled(kMiB, 6));
    back = ends.outbound->reclaim(name, kMiB);
  }
  EXPECT_TRUE(holds(back, 6));
}

// ---- fork ----

TEST(Arena, BlocksAdoptedAtForkAreNeverReturned) {
  Ends ends;
  Buffer before = transfer(ends, kMiB, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    before = Buffer();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ends.outbound->trim();
  EXPECT_EQ(ends.outbound->usage().blocks_in_use, 1u) << "the child returned it";
  EXPECT_FALSE(ends.inbound.hand_back(before));
  before = Buffer();
  ends.outbound->trim();
  EXPECT_EQ(ends.outbound->usage().blocks_in_use, 1u) << "the child might still look at it";
  transfer(ends, kMiB, 2);
  ends.outbound->trim();
  EXPECT_EQ(ends.outbound->usage().blocks_in_use, 1u);
}

TEST(CopyBytes, CopiesLargeBlocksAtAnyAlignment) {
  std::vector<std::byte> from(kCopyPastCachesFrom + 300), to(kCopyPastCachesFrom + 300);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 >> 2);
  for (const std::size_t offset : {0, 1, 63, 64}) {
    const std::size_t bytes = kCopyPastCachesFrom + 129;
    std::fill(to.begin(), to.end(), std::byte{0});
    copy_bytes(to.data() + offset, from.data() + 3, bytes);
    EXPECT_EQ(std::memcmp(to.data() + offset, from.data() + 3, bytes), 0);
    EXPECT_EQ(to[offset + bytes], std::byte{0});
  }
}

}  // namespace
}  // namespace hawser::transport::shm
