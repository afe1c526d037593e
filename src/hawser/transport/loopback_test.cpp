#include "hawser/transport/loopback.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace hawser::transport {
namespace {

class LoopbackTest : public ::testing::Test {
 protected:
  static wire::OutFrame frame_of(std::span<const std::byte> body) {
    return {.kind = wire::Kind::Call, .body = body, .segments = {}};
  }
  bool rings() const {
    pollfd watched{bell_->event_fd(), POLLIN, 0};
    return ::poll(&watched, 1, 0) == 1;
  }

  std::shared_ptr<Doorbell> bell_ = std::make_shared<Doorbell>();
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>(std::size_t{1} << 20);
  std::shared_ptr<Link> link_ = make_loopback({}, bell_, pool_);
  const std::array<std::byte, 3> body_{std::byte{1}, std::byte{2}, std::byte{3}};
};

TEST_F(LoopbackTest, CopiesWhatIsSent) {
  const auto owner = std::make_shared<std::vector<std::byte>>(1000, std::byte{7});
  wire::OutFrame frame = frame_of(body_);
  frame.segments.emplace_back(owner->data(), owner->size(), owner);
  frame.segments.emplace_back();
  const std::size_t bytes = frame.total_bytes();
  EXPECT_TRUE(link_->send(std::move(frame)));
  EXPECT_EQ(owner.use_count(), 1);
  owner->assign(1000, std::byte{8});  // the caller may write to it again

  wire::InFrame received;
  EXPECT_TRUE(link_->pending());
  ASSERT_EQ(link_->receive(received), Link::Received::Frame);
  EXPECT_EQ(received.kind, wire::Kind::Call);
  ASSERT_EQ(received.body.size(), body_.size());
  EXPECT_EQ(std::memcmp(received.body.data(), body_.data(), body_.size()), 0);
  ASSERT_EQ(received.segments.size(), 2u);
  EXPECT_EQ(received.segments[0].bytes()[999], std::byte{7});
  EXPECT_TRUE(received.segments[1].empty());
  EXPECT_EQ(link_->receive(received), Link::Received::Nothing);
  EXPECT_FALSE(link_->pending());
  EXPECT_EQ(link_->stats().frames_received, 1u);
  EXPECT_EQ(link_->stats().bytes_sent, bytes);
}

TEST_F(LoopbackTest, RingsTheBellOfASleeper) {
  EXPECT_TRUE(link_->send(frame_of(body_)));
  EXPECT_FALSE(rings());
  bell_->announce_sleep();
  EXPECT_TRUE(link_->send(frame_of(body_)));
  EXPECT_TRUE(rings());
}

TEST_F(LoopbackTest, DeliversWhatWasSentBeforeTheEnd) {
  EXPECT_TRUE(link_->send(frame_of(body_)));
  link_->close();
  link_->close();
  EXPECT_TRUE(rings());
  EXPECT_FALSE(link_->send(frame_of(body_)));
  wire::InFrame received;
  EXPECT_EQ(link_->receive(received), Link::Received::Frame);
  EXPECT_TRUE(link_->pending());
  EXPECT_EQ(link_->receive(received), Link::Received::Closed);
  EXPECT_FALSE(link_->close_reason());
}

TEST_F(LoopbackTest, TakesFramesFromManyThreads) {
  constexpr int kSenders = 3;
  constexpr int kFrames = 2000;
  std::vector<std::thread> senders;
  for (int i = 0; i < kSenders; ++i) {
    senders.emplace_back([&] {
      for (int n = 0; n < kFrames; ++n) EXPECT_TRUE(link_->send(frame_of(body_)));
    });
  }
  int received = 0;
  wire::InFrame frame;
  while (received < kSenders * kFrames) {
    if (link_->pending() && link_->receive(frame) == Link::Received::Frame) ++received;
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(link_->receive(frame), Link::Received::Nothing);
}

}  // namespace
}  // namespace hawser::transport
