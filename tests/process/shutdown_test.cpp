// Leaving together.
#include "process/world.h"

namespace hawser::testing {
namespace {

constexpr std::uint32_t kSize = 3;

class Shutdown : public OverTransports {
 protected:
  Shutdown() {
    for (std::uint32_t rank = 0; rank < kSize; ++rank) {
      names_.push_back("rank" + std::to_string(rank));
      NodeOptions member = options(names_.back());
      member.rank = rank;
      member.world_size = kSize;
      members_.push_back(Worker::begin(member));
    }
    for (Worker& member : members_) member.joined();
    for (Worker& member : members_) EXPECT_EQ(member.call_all(names_), kSize);
  }

  void ask_to_leave(std::size_t rank) { members_[rank].channel().tell("shutdown"); }
  void expect_left(std::size_t rank) {
    members_[rank].channel().expect("left");
    EXPECT_EQ(members_[rank].process().wait(), (Ending{.code = 0, .signal = {}}));
  }

  std::vector<std::string> names_;
  std::vector<Worker> members_;
};

INSTANTIATE_TEST_SUITE_P(Transports, Shutdown, kTransports);

TEST_P(Shutdown, ServesUntilTheLastHasAsked) {
  ask_to_leave(0);
  ask_to_leave(1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(members_[2].call_all({"rank0", "rank1"}), 2u);
  ask_to_leave(2);
  for (std::size_t rank = 0; rank < kSize; ++rank) {
    expect_left(rank);
    EXPECT_EQ(members_[rank].process().output(), "");
  }
}

TEST_P(Shutdown, DoesNotWaitForTheDead) {
  ask_to_leave(0);
  ask_to_leave(1);
  members_[2].process().kill();
  expect_left(0);
  expect_left(1);
}

// The member of the lowest rank counts who has arrived; another one takes over.
TEST_P(Shutdown, OutlivesTheOneWhoLeadsIt) {
  ask_to_leave(0);
  ask_to_leave(1);
  members_[0].process().kill();
  ask_to_leave(2);
  expect_left(1);
  expect_left(2);
}

}  // namespace
}  // namespace hawser::testing
