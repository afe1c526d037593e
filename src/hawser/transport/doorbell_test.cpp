#include "hawser/transport/doorbell.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "hawser/base/error.h"
#include "hawser/base/step.h"

namespace hawser::transport {
namespace {

// Since it was last asked.
bool rings(const Doorbell& bell) {
  std::uint64_t count = 0;
  return ::read(bell.event_fd(), &count, sizeof count) == sizeof count;
}

RemoteBell remote(const Doorbell& bell) {
  return RemoteBell(Descriptor(::dup(bell.page_fd())), Descriptor(::dup(bell.event_fd())));
}

TEST(Doorbell, Rings) {
  Doorbell bell;
  EXPECT_FALSE(rings(bell));
  bell.ring();
  bell.ring();
  EXPECT_TRUE(rings(bell));
  EXPECT_FALSE(rings(bell));
}

TEST(Doorbell, IsRungOnceForEachSleep) {
  Doorbell bell;
  RemoteBell peer = remote(bell);
  peer.ring_if_asleep();
  EXPECT_FALSE(rings(bell));
  for (int sleep = 0; sleep < 3; ++sleep) {
    bell.announce_sleep();
    EXPECT_TRUE(bell.announced_asleep());
    peer.ring_if_asleep();
    EXPECT_TRUE(rings(bell));
    EXPECT_FALSE(bell.announced_asleep());
    peer.ring_if_asleep();
    bell.ring_if_asleep();
    EXPECT_FALSE(rings(bell));
  }
  bell.announce_sleep();
  bell.ring_if_asleep();
  EXPECT_TRUE(rings(bell));
  EXPECT_FALSE(bell.announced_asleep());
}

TEST(Doorbell, IsNotRungWhenAwake) {
  Doorbell bell;
  RemoteBell peer = remote(bell);
  bell.announce_sleep();
  bell.announce_awake();
  peer.ring_if_asleep();
  EXPECT_FALSE(rings(bell));
}

TEST(Doorbell, ShowsThePulse) {
  Doorbell bell;
  RemoteBell peer = remote(bell);
  EXPECT_EQ(peer.pulse(), 0u);
  bell.beat();
  bell.beat();
  EXPECT_EQ(peer.pulse(), 2u);
}

#ifdef HAWSER_DELIBERATE_FAULTS

Doorbell* slept_again_on = nullptr;

// BELL-1: a producer that is slow after its ring does not silence the next sleep.
TEST(Doorbell, ALateProducerDoesNotSilenceALaterSleep) {
  Doorbell bell;
  RemoteBell peer = remote(bell);
  bell.announce_sleep();
  slept_again_on = &bell;
  testing::step_hook = [] {
    if (!rings(*slept_again_on)) return;  // the step before the ring
    slept_again_on->announce_sleep();
  };
  peer.ring_if_asleep();
  testing::step_hook = nullptr;
  EXPECT_FALSE(rings(bell));
  EXPECT_TRUE(bell.announced_asleep());
  peer.ring_if_asleep();
  EXPECT_TRUE(rings(bell));
}

// BELL-1: the bell has been rung before anybody else is kept from ringing it.
TEST(Doorbell, IsRungBeforeItIsSilenced) {
  Doorbell bell;
  RemoteBell peer = remote(bell);
  bell.announce_sleep();
  slept_again_on = &bell;
  testing::step_hook = [] {
    EXPECT_TRUE(rings(*slept_again_on) || slept_again_on->announced_asleep());
  };
  peer.ring_if_asleep();
  testing::step_hook = nullptr;
}

#endif

// ------------------------------------------------------------------------------- bad peers

Descriptor memory_of(std::size_t size, int seals) {
  Descriptor memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(memory.get(), static_cast<off_t>(size)), 0);
  EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  return memory;
}
Descriptor event() { return Descriptor(::eventfd(0, EFD_CLOEXEC)); }

TEST(RemoteBell, RefusesWhatIsNotASealedPage) {
  EXPECT_NO_THROW(RemoteBell(memory_of(4096, F_SEAL_SHRINK), event()));
  EXPECT_THROW(RemoteBell(memory_of(4096, F_SEAL_GROW), event()), Error);
  EXPECT_THROW(RemoteBell(memory_of(100, F_SEAL_SHRINK), event()), Error);
  EXPECT_THROW(RemoteBell(memory_of(8192, F_SEAL_SHRINK), event()), Error);
  EXPECT_THROW(RemoteBell(Descriptor(), event()), Error);
}

// A file cannot be sealed: its owner could shorten it under our feet.
TEST(RemoteBell, RefusesAFile) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(::ftruncate(::fileno(file), 4096), 0);
  EXPECT_THROW(RemoteBell(Descriptor(::dup(::fileno(file))), event()), Error);
  std::fclose(file);
}

TEST(RemoteBell, RefusesToRingNothing) {
  EXPECT_THROW(RemoteBell(memory_of(4096, F_SEAL_SHRINK), Descriptor()), Error);
}

TEST(RemoteBell, NeverBlocks) {
  Descriptor blocking = event();
  const Descriptor same(::dup(blocking.get()));
  const RemoteBell bell(memory_of(4096, F_SEAL_SHRINK), std::move(blocking));
  EXPECT_NE(::fcntl(same.get(), F_GETFL) & O_NONBLOCK, 0);
}

}  // namespace
}  // namespace hawser::transport
