#include "hawser/transport/poll_set.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hawser::transport {
namespace {

using namespace std::chrono_literals;

// A link that the test plays with. One end of a socket pair is its descriptor.
class TestLink final : public Link {
 public:
  enum class By { Descriptor, Bell };
  explicit TestLink(By announced) : announced_(announced) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    near_ = Descriptor(ends[0]);
    far_ = Descriptor(ends[1]);
  }

  // --- the test ---
  void arrive(int frames) {
    frames_ += frames;
    if (announced_ == By::Bell) return;
    EXPECT_EQ(::send(far_.get(), "x", 1, 0), 1);
  }
  void be_pending() { pending_ = true; }  // until it has been looked at
  void hang_up() { far_.reset(); }
  // What wants_write() says, one answer for each time it is asked, the last one for ever.
  void want_to_write(std::deque<bool> answers) { wants_ = std::move(answers); }
  bool closed_by_set = false;
  mutable int received = 0;

  // --- Link ---
  std::string_view transport() const override { return "test"; }
  const PeerIdentity& peer() const override { return peer_; }
  bool send(wire::OutFrame) override { return true; }
  bool backlogged(std::size_t) override { return false; }
  Received receive(wire::InFrame&) override {
    ++received;
    char bytes[16];
    const auto count = ::recv(near_.get(), bytes, sizeof bytes, 0);
    if (frames_ > 0) {
      --frames_;
      return Received::Frame;
    }
    pending_ = false;
    return count == 0 ? Received::Closed : Received::Nothing;
  }
  bool pending() const override { return pending_ || (announced_ == By::Bell && frames_ > 0); }
  int descriptor() const override { return near_.get(); }
  bool wants_write() const override {
    const bool answer = wants_.front();
    if (wants_.size() > 1) wants_.pop_front();
    return answer;
  }
  bool announced_by_descriptor() const override { return announced_ == By::Descriptor; }
  void close() override { closed_by_set = true; }
  std::optional<std::string> close_reason() const override { return std::nullopt; }
  LinkStats stats() const override { return {}; }

 private:
  const By announced_;
  const PeerIdentity peer_;
  Descriptor near_, far_;
  int frames_ = 0;
  bool pending_ = false;
  mutable std::deque<bool> wants_{false};
};

class IdleTask final : public Task {
  void run() override {}
  void refuse(const Error&) override {}
};

class CountingSink final : public FrameSink {
 public:
  std::shared_ptr<Task> on_frame(wire::InFrame) override { return nullptr; }
  std::shared_ptr<Task> resume() override {
    if (put_aside == 0) return nullptr;
    --put_aside;
    return std::make_shared<IdleTask>();
  }
  void on_closed() override { ++closed; }
  int put_aside = 0;
  int closed = 0;
};

class PollSetTest : public ::testing::Test {
 protected:
  std::pair<std::shared_ptr<TestLink>, std::shared_ptr<CountingSink>> add(TestLink::By announced) {
    auto link = std::make_shared<TestLink>(announced);
    auto sink = std::make_shared<CountingSink>();
    set_.add(link, sink);
    return {link, sink};
  }
  // Takes everything, and leaves the set as the last holder of the seat would.
  int drain_and_arm() {
    int frames = 0;
    PollSet::Arrival arrival;
    set_.disarm();
    do {
      while (set_.next(arrival)) ++frames;
    } while (set_.arm_and_look());
    return frames;
  }
  PollSet::Wakeup sleep_briefly() { return set_.sleep(Deadline::after(SteadyClock(), 5ms)); }
  PollSet::Wakeup sleep() { return set_.sleep(Deadline::never()); }

  Doorbell bell_;
  PollSet set_{bell_};
};

TEST_F(PollSetTest, SleepsUntilTheBell) {
  EXPECT_FALSE(sleep_briefly().news);
  bell_.ring();
  EXPECT_TRUE(sleep().news);
  EXPECT_FALSE(sleep_briefly().news);  // it was reset
}

TEST_F(PollSetTest, ANewLinkIsNews) {
  const auto [link, sink] = add(TestLink::By::Bell);
  EXPECT_TRUE(sleep().news);
  EXPECT_EQ(set_.size(), 1u);
  EXPECT_EQ(drain_and_arm(), 0);
  EXPECT_GT(link->received, 0);  // something may have arrived before it was added
}

TEST_F(PollSetTest, ANewLinkIsSeenWhenArming) {
  drain_and_arm();
  const auto [link, sink] = add(TestLink::By::Bell);
  EXPECT_TRUE(set_.arm_and_look());
}

TEST_F(PollSetTest, BringsBackEverythingThatWasPutAsideOnceTheLinkIsQuiet) {
  const auto [link, sink] = add(TestLink::By::Bell);
  drain_and_arm();
  sink->put_aside = 3;
  EXPECT_EQ(drain_and_arm(), 0) << "the link did not ask to be looked at";
  link->arrive(1);
  PollSet::Arrival arrival;
  set_.disarm();
  ASSERT_TRUE(set_.next(arrival));
  EXPECT_FALSE(arrival.resumed) << "frames first";
  link->arrive(1);
  ASSERT_TRUE(set_.next(arrival));
  EXPECT_FALSE(arrival.resumed);
  link->be_pending();
  EXPECT_EQ(drain_and_arm(), 3);
  EXPECT_EQ(sink->put_aside, 0);
}

TEST_F(PollSetTest, BringsBackWhatWasPutAsideThoughTheLinkIsNeverQuiet) {
  const auto [link, sink] = add(TestLink::By::Bell);
  drain_and_arm();
  sink->put_aside = 1;
  PollSet::Arrival arrival;
  for (int frames = 0; !arrival.resumed; ++frames) {
    ASSERT_LT(frames, 100);
    link->arrive(1);
    ASSERT_TRUE(set_.next(arrival));
  }
}

TEST_F(PollSetTest, ArmsTheBell) {
  const auto [link, sink] = add(TestLink::By::Bell);
  EXPECT_EQ(drain_and_arm(), 0);
  EXPECT_TRUE(bell_.announced_asleep());
  set_.disarm();
  EXPECT_FALSE(bell_.announced_asleep());
  link->arrive(3);
  EXPECT_TRUE(set_.arm_and_look());
  EXPECT_EQ(drain_and_arm(), 3);
}

TEST_F(PollSetTest, SocketsWakeTheAnchorOnlyWhileArmed) {
  const auto [link, sink] = add(TestLink::By::Descriptor);
  sleep();
  drain_and_arm();
  set_.disarm();
  link->arrive(1);
  EXPECT_FALSE(sleep_briefly().news);
  EXPECT_TRUE(set_.arm_and_look());
  EXPECT_EQ(drain_and_arm(), 1);
  EXPECT_FALSE(sleep_briefly().news);
  link->arrive(2);
  EXPECT_TRUE(sleep().news);
  EXPECT_FALSE(sleep_briefly().news);  // once, until somebody has looked
  EXPECT_EQ(drain_and_arm(), 2);
  link->arrive(1);
  EXPECT_TRUE(sleep().news);
}

TEST_F(PollSetTest, AnEndIsNoticedAlsoOfLinksWithABell) {
  const auto [link, sink] = add(TestLink::By::Bell);
  sleep();
  drain_and_arm();
  for (int i = 0; i < 3;
       ++i) {  // also after the one shot was used up, and without sockets to watch
    bell_.ring();
    sleep();
    drain_and_arm();
  }
  link->hang_up();
  EXPECT_TRUE(sleep().news);
  set_.disarm();
  EXPECT_TRUE(set_.arm_and_look());
  PollSet::Arrival arrival;
  ASSERT_TRUE(set_.next(arrival));
  EXPECT_EQ(arrival.closed, sink);
  EXPECT_EQ(set_.size(), 0u);
  EXPECT_FALSE(set_.next(arrival));
}

TEST_F(PollSetTest, BusyLinksTakeTurns) {
  const auto [busy, busy_sink] = add(TestLink::By::Bell);
  const auto [other, other_sink] = add(TestLink::By::Descriptor);
  drain_and_arm();
  busy->arrive(1000);
  other->arrive(1);
  int before_other = 0;
  PollSet::Arrival arrival;
  for (int i = 0; i < 1001; ++i) {
    while (!set_.next(arrival)) {
    }
    if (arrival.sink == other_sink.get()) before_other = i;
  }
  EXPECT_LT(before_other, 500);
  EXPECT_EQ(drain_and_arm(), 0);
}

TEST_F(PollSetTest, WatchesForWritingWhileThatIsWanted) {
  const auto [link, sink] = add(TestLink::By::Descriptor);
  sleep();
  drain_and_arm();
  EXPECT_FALSE(sleep_briefly().news);
  link->want_to_write({true});
  set_.watch_writable(*link);
  EXPECT_TRUE(sleep().news);
  link->want_to_write({false});
  drain_and_arm();
  EXPECT_FALSE(sleep_briefly().news);
}

// The holder of the seat sees that nothing is to be written, a sender has to queue after all and
// asks to be watched, and only then does the holder tell the kernel not to watch.
TEST_F(PollSetTest, AWishToWriteIsNotLostToThePollerThatStopsWatching) {
  const auto [link, sink] = add(TestLink::By::Descriptor);
  sleep();
  drain_and_arm();
  link->want_to_write({true});
  set_.watch_writable(*link);
  EXPECT_TRUE(sleep().news);
  link->want_to_write({false, true});
  set_.disarm();
  PollSet::Arrival arrival;
  EXPECT_FALSE(set_.next(arrival));  // looks at the sockets
  EXPECT_FALSE(set_.next(arrival));  // receives nothing; stops watching, and finds the wish
  EXPECT_TRUE(set_.arm_and_look() || sleep_briefly().news);
}

TEST_F(PollSetTest, AWishToWriteThatIsOlderThanTheAdditionIsNotLost) {
  auto link = std::make_shared<TestLink>(TestLink::By::Descriptor);
  link->want_to_write({true});
  set_.watch_writable(*link);  // in vain: the set does not know it
  set_.add(link, std::make_shared<CountingSink>());
  sleep();
  set_.disarm();
  PollSet::Arrival arrival;
  EXPECT_FALSE(set_.next(arrival));
  EXPECT_TRUE(set_.arm_and_look());
}

TEST_F(PollSetTest, TicksWhileStarted) {
  EXPECT_FALSE(sleep_briefly().tick);
  set_.start_tick();
  set_.start_tick();
  EXPECT_TRUE(sleep().tick);
  const auto second = sleep();
  EXPECT_TRUE(second.tick);
  EXPECT_FALSE(second.news);
  set_.stop_tick();
  EXPECT_FALSE(sleep_briefly().tick);
  set_.start_tick();
  EXPECT_TRUE(sleep().tick);
}

TEST_F(PollSetTest, ClearClosesAllThatIsLeft) {
  const auto [adopted, adopted_sink] = add(TestLink::By::Descriptor);
  drain_and_arm();
  const auto [added, added_sink] = add(TestLink::By::Bell);
  set_.clear();
  set_.clear();
  EXPECT_TRUE(adopted->closed_by_set);
  EXPECT_TRUE(added->closed_by_set);
  EXPECT_EQ(adopted_sink->closed, 1);
  EXPECT_EQ(added_sink->closed, 1);
  EXPECT_EQ(set_.size(), 0u);
}

}  // namespace
}  // namespace hawser::transport
