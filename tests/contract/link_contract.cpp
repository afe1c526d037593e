#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "contract/contract.h"
#include "hawser/transport/descriptor.h"

// LINK-1 to LINK-8 of link.h.
namespace hawser::contract {
namespace {

using transport::Link;
using wire::Kind;

constexpr std::size_t kMiB = std::size_t{1} << 20;

wire::OutFrame frame_with(std::span<const std::byte> body, std::vector<Buffer> segments = {}) {
  return {Kind::Call, body, std::move(segments)};
}

// A frame that carries a number.
bool send_number(Link& link, std::uint64_t number) {
  return link.send(frame_with(std::as_bytes(std::span(&number, 1))));
}
bool send_number_with_more(Link& link, std::uint64_t number) {
  return link.send_with_more(frame_with(std::as_bytes(std::span(&number, 1))));
}

std::uint64_t number_in(const wire::InFrame& frame) {
  std::uint64_t number = 0;
  EXPECT_EQ(frame.body.size(), sizeof number);
  std::memcpy(&number, frame.body.view().data(), sizeof number);
  return number;
}

// Takes `count` frames out of the inbox and checks that they carry first, first + 1, ...
void expect_numbers(End& end, std::uint64_t first, std::uint64_t count) {
  ASSERT_GE(end.inbox.size(), count);
  for (std::uint64_t i = 0; i < count; ++i) {
    ASSERT_EQ(number_in(end.inbox.front()), first + i);
    end.inbox.pop_front();
  }
}

std::vector<Buffer> segments_of(const std::vector<std::size_t>& sizes, std::uint64_t seed) {
  std::vector<Buffer> segments;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    segments.push_back(pattern_buffer(sizes[i], seed + i));
  }
  return segments;
}

void expect_segments(const wire::InFrame& frame, const std::vector<std::size_t>& sizes,
                     std::uint64_t seed) {
  ASSERT_EQ(frame.segments.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_EQ(frame.segments[i].size(), sizes[i]) << "segment " << i;
    ASSERT_TRUE(has_pattern(frame.segments[i].bytes(), seed + i)) << "segment " << i;
  }
}

// ---- LINK-1: complete, unchanged, once, in order ----

TEST_P(LinkContract, BodiesOfAllSizesArriveUnchanged) {
  Pair pair(*medium_);
  const std::vector<std::size_t> sizes = {
      1, 2, 7, 24, 4095, 4096, 64 * 1024, 65 * 1024, kMiB - 1, kMiB, 3 * kMiB + 5, 1, 100};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto body = pattern(sizes[i], i);
    ASSERT_TRUE(pair.left.link->send(frame_with(body)));
  }
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == sizes.size(); }));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(pair.right.inbox[i].kind, Kind::Call);
    ASSERT_EQ(pair.right.inbox[i].body.size(), sizes[i]);
    EXPECT_TRUE(has_pattern(pair.right.inbox[i].body.view(), i));
  }
}

TEST_P(LinkContract, SegmentsOfAllSizesArriveUnchangedAndAligned) {
  Pair pair(*medium_);
  const std::vector<std::size_t> sizes = {
      0, 1, 63, 64, 65, 0, 4096, 4097, 65'535, 65'536, 0, 100'000, kMiB + 1, 5 * kMiB, 0};
  const auto body = pattern(33, 1);
  ASSERT_TRUE(pair.left.link->send(frame_with(body, segments_of(sizes, 100))));
  ASSERT_TRUE(pair.right.link->send(frame_with(body, segments_of(sizes, 200))));
  ASSERT_TRUE(
      pair.run_until([&] { return pair.right.inbox.size() == 1 && pair.left.inbox.size() == 1; }));
  expect_segments(pair.right.inbox[0], sizes, 100);
  expect_segments(pair.left.inbox[0], sizes, 200);
  for (const Buffer& segment : pair.right.inbox[0].segments) {
    if (segment.empty()) continue;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment.data()) % kBufferAlignment, 0u);
  }
}

TEST_P(LinkContract, TenThousandSegmentsInOneFrame) {
  Pair pair(*medium_);
  std::vector<std::size_t> sizes(10'000);
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = i % 7 == 0 ? 0 : i % 600;
  const auto body = pattern(10, 1);
  ASSERT_TRUE(pair.left.link->send(frame_with(body, segments_of(sizes, 5))));
  ASSERT_TRUE(send_number(*pair.left.link, 77));
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 2; }));
  expect_segments(pair.right.inbox[0], sizes, 5);
  EXPECT_EQ(number_in(pair.right.inbox[1]), 77u);
}

TEST_P(LinkContract, ManySmallFramesBothWaysKeepTheirOrder) {
  Pair pair(*medium_);
  constexpr std::uint64_t kFrames = 20'000;
  for (std::uint64_t i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(send_number(*pair.left.link, i));
    ASSERT_TRUE(send_number(*pair.right.link, 1'000'000 + i));
    if (i % 97 == 0) pair.left.pump(50);
  }
  ASSERT_TRUE(pair.run_until(
      [&] { return pair.right.inbox.size() == kFrames && pair.left.inbox.size() == kFrames; }));
  expect_numbers(pair.right, 0, kFrames);
  expect_numbers(pair.left, 1'000'000, kFrames);
}

TEST_P(LinkContract, SmallAndLargeFramesKeepTheirOrder) {
  Pair pair(*medium_);
  for (std::uint64_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(send_number(*pair.left.link, 2 * i));
    const std::uint64_t number = 2 * i + 1;
    ASSERT_TRUE(pair.left.link->send(
        frame_with(std::as_bytes(std::span(&number, 1)), {pattern_buffer(300'000 + i, i)})));
  }
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 80; }));
  for (std::uint64_t i = 0; i < 40; ++i) {
    EXPECT_TRUE(has_pattern(pair.right.inbox[2 * i + 1].segments.at(0).bytes(), i));
  }
  expect_numbers(pair.right, 0, 80);
}

TEST_P(LinkContract, SendersOnManyThreadsKeepTheirOwnOrder) {
  Pair pair(*medium_);
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kFrames = 3'000;
  std::vector<std::thread> senders;
  for (std::uint64_t sender = 0; sender < kThreads; ++sender) {
    senders.emplace_back([&pair, sender] {
      for (std::uint64_t i = 0; i < kFrames; ++i) {
        const std::uint64_t number = sender << 32 | i;
        std::vector<Buffer> segments;
        if (i % 100 == 0) segments.push_back(pattern_buffer(200'000, number));
        EXPECT_TRUE(pair.left.link->send(
            frame_with(std::as_bytes(std::span(&number, 1)), std::move(segments))));
      }
    });
  }
  const bool all = pair.run_until([&] { return pair.right.inbox.size() == kThreads * kFrames; });
  for (auto& sender : senders) sender.join();
  ASSERT_TRUE(all);
  std::vector<std::uint64_t> next(kThreads, 0);
  for (const wire::InFrame& frame : pair.right.inbox) {
    const std::uint64_t number = number_in(frame);
    ASSERT_EQ(next.at(number >> 32)++, number & 0xffffffff);
    for (const Buffer& segment : frame.segments) {
      ASSERT_TRUE(has_pattern(segment.bytes(), number));
    }
  }
}

TEST_P(LinkContract, BodyMayBeOverwrittenOnceSendReturned) {
  Pair pair(*medium_);
  std::vector<std::byte> body(100'000);
  for (std::uint64_t i = 0; i < 100; ++i) {
    body = pattern(body.size(), i);
    ASSERT_TRUE(pair.left.link->send(frame_with(body)));
    std::fill(body.begin(), body.end(), std::byte{0});
  }
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 100; }));
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(has_pattern(pair.right.inbox[i].body.view(), i)) << i;
  }
}

TEST_P(LinkContract, SegmentsAreLetGoOnceSentAndOutliveTheLinkOnceReceived) {
  std::vector<wire::InFrame> kept;
  std::weak_ptr<void> sent;
  {
    Pair pair(*medium_);
    const auto body = pattern(8, 0);
    ASSERT_TRUE(pair.left.link->send(frame_with(body, {pattern_buffer(2 * kMiB, 9, &sent)})));
    ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 1; }));
    EXPECT_TRUE(pair.run_until([&] { return sent.expired(); }));
    kept.push_back(std::move(pair.right.inbox.front()));
  }
  EXPECT_TRUE(has_pattern(kept[0].segments.at(0).bytes(), 9));
}

TEST_P(LinkContract, StatsCountWhatWentThrough) {
  Pair pair(*medium_);
  for (std::uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(send_number(*pair.left.link, i));
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 10; }));
  const auto sent = pair.left.link->stats();
  const auto received = pair.right.link->stats();
  EXPECT_EQ(sent.frames_sent, 10u);
  EXPECT_EQ(received.frames_received, 10u);
  EXPECT_GE(sent.bytes_sent, 10 * (sizeof(wire::FrameHeader) + 8));
  EXPECT_EQ(sent.bytes_sent, received.bytes_received);
  EXPECT_EQ(sent.bytes_queued, 0u);
  EXPECT_FALSE(pair.left.link->close_reason());
}

// ---- a poller that does exactly what link.h says, and waits long enough to notice a loss ----

TEST_P(LinkContract, DescriptorPendingAndWantsWriteAnnounceEverything) {
  constexpr int kLongerThanAnyGap = 10'000;  // milliseconds
  constexpr std::size_t kFrames = 60;
  const transport::Descriptor told(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Pair pair(*medium_);
  Link& left = *pair.left.link;
  Link& right = *pair.right.link;
  if (left.descriptor() < 0 || !left.announced_by_descriptor()) GTEST_SKIP() << "has rings";
  pair.left.host.when_asked_to_watch([&told] { ::eventfd_write(told.get(), 1); });
  std::thread sender([&] {
    const auto body = pattern(50, 3);
    for (std::size_t i = 0; i < kFrames; ++i) {
      EXPECT_TRUE(left.send(frame_with(body, {pattern_buffer(i % 3 ? 100 : 700'000, i)})));
    }
  });
  bool lost = false;
  while (pair.right.inbox.size() < kFrames && !lost) {
    pollfd watched[3] = {
        {left.descriptor(), POLLIN, 0}, {right.descriptor(), POLLIN, 0}, {told.get(), POLLIN, 0}};
    if (left.wants_write()) watched[0].events |= POLLOUT;
    const bool busy = left.pending() || right.pending();
    lost = ::poll(watched, 3, busy ? 0 : kLongerThanAnyGap) == 0 && !busy;
    eventfd_t count = 0;
    if (watched[2].revents) ::eventfd_read(told.get(), &count);
    if (watched[0].revents || left.pending()) pair.left.pump(1);
    if (watched[1].revents || right.pending()) pair.right.pump(1);
  }
  sender.join();
  ASSERT_FALSE(lost) << "nothing announced that there is more to do";
  ASSERT_EQ(pair.right.inbox.size(), kFrames);
  for (std::size_t i = 0; i < kFrames; ++i) {
    EXPECT_TRUE(has_pattern(pair.right.inbox[i].segments.at(0).bytes(), i));
  }
}

// ---- LINK-2: send never blocks ----

TEST_P(LinkContract, SendDoesNotWaitForAReader) {
  if (!medium_->has_back_pressure()) GTEST_SKIP() << "the medium takes everything";
  Pair pair(*medium_);
  constexpr std::size_t kFrames = 48;
  const auto segment = pattern_buffer(kMiB, 4);
  const auto body = pattern(16, 2);
  std::size_t queued = 0;
  for (std::size_t i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(pair.left.link->send(frame_with(body, {segment})));
    EXPECT_GE(pair.left.link->stats().bytes_queued, queued);
    queued = pair.left.link->stats().bytes_queued;
  }
  EXPECT_GT(queued, kFrames / 4 * kMiB);
  if (pair.left.link->wants_write()) {
    EXPECT_GE(pair.left.host.times_asked_to_watch(), 1u);
  }
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == kFrames; }));
  EXPECT_EQ(pair.left.link->stats().bytes_queued, 0u);
  EXPECT_FALSE(pair.left.link->wants_write());
  for (const auto& frame : pair.right.inbox) {
    ASSERT_TRUE(has_pattern(frame.segments.at(0).bytes(), 4));
  }
}

// ---- LINK-7: a backlog is announced when it shrinks ----

TEST_P(LinkContract, ABacklogIsSeenAndAskedToBeLookedAtWhenItShrinks) {
  Pair pair(*medium_);
  constexpr std::size_t kLimit = 16 * kMiB;
  EXPECT_FALSE(pair.left.link->backlogged(0));
  const auto segment = pattern_buffer(kMiB, 4);
  const auto body = pattern(16, 2);
  std::size_t frames = 0;
  while (!pair.left.link->backlogged(kLimit)) {
    ASSERT_TRUE(pair.left.link->send(frame_with(body, {segment})));
    ASSERT_LT(++frames, 100u) << "it does not notice that nobody reads";
  }
  const auto asks = [&] { return pair.left.link->pending() || pair.left.link->wants_write(); };
  std::size_t looks = 0;
  while (pair.left.link->backlogged(kLimit)) {
    // The reader alone moves, until the writer asks to be looked at.
    ASSERT_TRUE(pair.run_end_until(pair.right, asks)) << "after " << looks << " looks";
    while (pair.left.link->pending() || pair.left.link->wants_write()) {
      wire::InFrame frame;
      ASSERT_EQ(pair.left.link->receive(frame), Link::Received::Nothing);
      ++looks;
      if (pair.left.link->wants_write()) break;  // as long as there is more to write
    }
  }
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == frames; }));
  EXPECT_FALSE(pair.left.link->backlogged(0));
}

TEST_P(LinkContract, AClosedLinkHasNoBacklog) {
  Pair pair(*medium_);
  const auto body = pattern(8, 0);
  ASSERT_TRUE(pair.left.link->send(frame_with(body, {pattern_buffer(40 * kMiB, 1)})));
  EXPECT_TRUE(pair.left.link->backlogged(kMiB));
  pair.left.link->close();
  EXPECT_FALSE(pair.left.link->backlogged(0));
}

// ---- LINK-3: closing ----

TEST_P(LinkContract, CloseReachesTheOtherEndAfterTheFramesBeforeIt) {
  Pair pair(*medium_);
  ASSERT_TRUE(send_number(*pair.left.link, 1));
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 1; }));
  pair.left.link->close();
  pair.left.link->close();
  EXPECT_FALSE(send_number(*pair.left.link, 2));
  ASSERT_TRUE(pair.run_until([&] { return pair.left.closed && pair.right.closed; }));
  expect_numbers(pair.right, 1, 1);
  EXPECT_TRUE(pair.right.inbox.empty());
  EXPECT_FALSE(send_number(*pair.right.link, 3));
  EXPECT_FALSE(pair.left.link->close_reason());
  wire::InFrame frame;
  EXPECT_EQ(pair.right.link->receive(frame), Link::Received::Closed);
}

TEST_P(LinkContract, TheAcceptorMayCloseToo) {
  Pair pair(*medium_);
  ASSERT_TRUE(send_number(*pair.right.link, 1));
  ASSERT_TRUE(pair.run_until([&] { return pair.left.inbox.size() == 1; }));
  pair.right.link->close();
  ASSERT_TRUE(pair.run_until([&] { return pair.left.closed && pair.right.closed; }));
  EXPECT_FALSE(send_number(*pair.left.link, 2));
}

TEST_P(LinkContract, CloseLetsGoOfQueuedSegments) {
  Pair pair(*medium_);
  const auto body = pattern(8, 0);
  std::weak_ptr<void> first, last;
  ASSERT_TRUE(pair.left.link->send(frame_with(body, {pattern_buffer(40 * kMiB, 1, &first)})));
  ASSERT_TRUE(pair.left.link->send(frame_with(body, {pattern_buffer(kMiB, 2, &last)})));
  pair.left.link->close();
  ASSERT_TRUE(pair.run_until([&] { return pair.left.closed && pair.right.closed; }));
  EXPECT_TRUE(first.expired());
  EXPECT_TRUE(last.expired());
  EXPECT_EQ(pair.left.link->stats().bytes_queued, 0u);
}

TEST_P(LinkContract, SendAfterCloseDropsTheFrame) {
  Pair pair(*medium_);
  pair.left.link->close();
  std::weak_ptr<void> segment;
  const auto body = pattern(8, 0);
  EXPECT_FALSE(pair.left.link->send(frame_with(body, {pattern_buffer(kMiB, 1, &segment)})));
  EXPECT_TRUE(segment.expired());
}

TEST_P(LinkContract, ReaderThatClosesInTheMiddleOfATransferFreesTheSender) {
  Pair pair(*medium_);
  const auto body = pattern(8, 0);
  std::weak_ptr<void> segment;
  ASSERT_TRUE(pair.left.link->send(frame_with(body, {pattern_buffer(40 * kMiB, 1, &segment)})));
  pair.right.pump(2);
  pair.right.link->close();
  ASSERT_TRUE(pair.run_until([&] { return pair.left.closed && pair.right.closed; }));
  EXPECT_TRUE(segment.expired());
  EXPECT_FALSE(send_number(*pair.left.link, 1));
}

TEST_P(LinkContract, CloseWhileOthersSendAndReceive) {
  for (int round = 0; round < 5; ++round) {
    Pair pair(*medium_);
    std::atomic<bool> go{false};
    std::weak_ptr<void> watch;
    const Buffer segment = pattern_buffer(kMiB, 1, &watch);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&pair, &go, segment] {
        const auto body = pattern(64, 1);
        while (pair.left.link->send(frame_with(body, {segment}))) {
          if (pair.left.link->stats().bytes_queued > 8 * kMiB) std::this_thread::yield();
          go = true;
        }
      });
    }
    threads.emplace_back([&pair, &go] {
      while (!go) std::this_thread::yield();
      pair.right.link->close();
    });
    EXPECT_TRUE(pair.run_until([&] {
      pair.right.inbox.clear();
      return pair.left.closed && pair.right.closed;
    }));
    for (auto& thread : threads) thread.join();
    EXPECT_FALSE(send_number(*pair.left.link, 1));
    EXPECT_EQ(watch.use_count(), 1);
  }
}

// ---- LINK-4, LINK-5: malformed bytes and limits ----

TEST_P(LinkContract, GarbageClosesTheLinkWithAReason) {
  Pair pair(*medium_);
  ASSERT_TRUE(send_number(*pair.left.link, 1));
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 1; }));
  if (!medium_->inject(*pair.left.link, pattern(4096, 11))) {
    GTEST_SKIP() << "nothing foreign gets into this medium";
  }
  ASSERT_TRUE(pair.run_until([&] { return pair.right.closed && pair.left.closed; }));
  EXPECT_TRUE(pair.right.link->close_reason().has_value());
  EXPECT_EQ(pair.right.inbox.size(), 1u);
}

struct Excess {
  const char* what;
  void (*restrict)(Limits&);
  std::size_t body;
  std::vector<std::size_t> segments;
};

TEST_P(LinkContract, AFrameBeyondTheLimitsClosesTheLink) {
  const std::vector<Excess> cases = {
      {"body", [](Limits& l) { l.max_body_bytes = 1000; }, 1001, {}},
      {"segments", [](Limits& l) { l.max_segments = 3; }, 10, {1, 1, 1, 1}},
      {"one segment", [](Limits& l) { l.max_segment_bytes = 9'999; }, 10, {10'000}},
      {"frame", [](Limits& l) { l.max_frame_bytes = 20'000; }, 10, {15'000, 15'000}},
  };
  for (const Excess& excess : cases) {
    SCOPED_TRACE(excess.what);
    PairLimits limits;
    excess.restrict(limits.right);
    Pair pair(*medium_, limits);
    ASSERT_TRUE(send_number(*pair.left.link, 5));
    const auto body = pattern(excess.body, 1);
    ASSERT_TRUE(pair.left.link->send(frame_with(body, segments_of(excess.segments, 1))));
    ASSERT_TRUE(pair.run_until([&] { return pair.right.closed && pair.left.closed; }));
    EXPECT_TRUE(pair.right.link->close_reason().has_value());
    expect_numbers(pair.right, 5, 1);
    EXPECT_TRUE(pair.right.inbox.empty());
  }
}

TEST_P(LinkContract, AFrameAtTheLimitsPasses) {
  PairLimits limits;
  limits.right.max_body_bytes = 1000;
  limits.right.max_segments = 3;
  limits.right.max_segment_bytes = 10'000;
  Pair pair(*medium_, limits);
  const auto body = pattern(1000, 1);
  const std::vector<std::size_t> sizes = {10'000, 10'000, 10'000};
  ASSERT_TRUE(pair.left.link->send(frame_with(body, segments_of(sizes, 1))));
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 1; }));
  expect_segments(pair.right.inbox[0], sizes, 1);
}

// ---- LINK-6: the other process is gone ----

TEST_P(LinkContract, DeathOfThePeerClosesTheLink) {
  Pair pair(*medium_);
  ASSERT_TRUE(send_number(*pair.left.link, 1));
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 1; }));
  medium_->kill(*pair.left.link);
  ASSERT_TRUE(pair.run_end_until(pair.right, [&] { return pair.right.closed; }));
  EXPECT_FALSE(send_number(*pair.right.link, 2));
}

TEST_P(LinkContract, DeathInTheMiddleOfATransferLetsGoOfBothHalves) {
  Pair pair(*medium_);
  const auto body = pattern(8, 0);
  std::weak_ptr<void> there, back;
  ASSERT_TRUE(pair.left.link->send(frame_with(body, {pattern_buffer(40 * kMiB, 1, &there)})));
  ASSERT_TRUE(pair.right.link->send(frame_with(body, {pattern_buffer(40 * kMiB, 2, &back)})));
  pair.right.pump(2);
  medium_->kill(*pair.left.link);
  ASSERT_TRUE(pair.run_end_until(pair.right, [&] { return pair.right.closed; }));
  EXPECT_TRUE(back.expired());
  EXPECT_FALSE(send_number(*pair.right.link, 1));
  pair.left.link->close();
  EXPECT_TRUE(there.expired());
}

// ---- LINK-8: what is held back ----

TEST_P(LinkContract, WhatNobodyFlushesIsNotHeldBack) {
  Pair pair(*medium_);
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(send_number_with_more(*pair.left.link, i));
    ASSERT_TRUE(pair.run_end_until(pair.right, [&] { return pair.right.inbox.size() == i + 1; }));
  }
  expect_numbers(pair.right, 0, 100);
}

TEST_P(LinkContract, WhatIsHeldBackArrivesInOrderWhenFlushed) {
  Pair pair(*medium_);
  pair.left.host.flush_later();
  std::uint64_t sent = 0;
  for (const std::uint64_t batch : {1, 2, 15, 16, 17, 100}) {
    for (std::uint64_t i = 0; i < batch; ++i) {
      ASSERT_TRUE(send_number_with_more(*pair.left.link, sent++));
    }
    pair.left.link->flush();
    ASSERT_TRUE(pair.run_end_until(pair.right, [&] { return pair.right.inbox.size() == batch; }));
    expect_numbers(pair.right, sent - batch, batch);
    EXPECT_EQ(pair.left.link->flush(), Duration{});  // nothing is left
  }
}

TEST_P(LinkContract, WhatIsHeldBackLeavesBeforeWhatIsSentNext) {
  Pair pair(*medium_);
  pair.left.host.flush_later();
  for (std::uint64_t i = 0; i < 100; i += 2) {
    ASSERT_TRUE(send_number_with_more(*pair.left.link, i));
    ASSERT_TRUE(send_number(*pair.left.link, i + 1));
    ASSERT_TRUE(pair.run_end_until(pair.right, [&] { return pair.right.inbox.size() == i + 2; }));
  }
  expect_numbers(pair.right, 0, 100);
}

// Neither the number of frames nor their bytes.
TEST_P(LinkContract, LittleIsHeldBack) {
  Pair pair(*medium_);
  pair.left.host.flush_later();
  for (std::uint64_t i = 0; i < 1000; ++i) {
    ASSERT_TRUE(send_number_with_more(*pair.left.link, i));
  }
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() >= 900; }));
  ASSERT_TRUE(pair.left.link->send_with_more(frame_with(pattern(kMiB, 1))));
  ASSERT_TRUE(pair.run_until([&] { return pair.right.inbox.size() == 1001; }));
  expect_numbers(pair.right, 0, 1000);
}

TEST_P(LinkContract, WhatIsHeldBackByAClosedLinkIsDropped) {
  Pair pair(*medium_);
  pair.left.host.flush_later();
  ASSERT_TRUE(send_number_with_more(*pair.left.link, 1));
  pair.left.link->close();
  EXPECT_FALSE(send_number_with_more(*pair.left.link, 2));
  EXPECT_EQ(pair.left.link->flush(), Duration{});
  EXPECT_TRUE(pair.run_end_until(pair.right, [&] { return pair.right.closed; }));
}

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinkContract);

}  // namespace hawser::contract
