// Every interleaving of the wake-up protocol, by a search through all states of its model.
//
// SEAT-1 is checked in every state that is reached: when all that could still happen is up to user
// code, which may never do it, then no frame and no task that could be run lies unattended. So is
// "one holder", and CREW-1, "there is a lookout, and it does not lie parked".

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hawser/transport/poll_seat_model_for_test.h"
#include "support/sanitized.h"

namespace hawser::transport::model {
namespace {

// The worlds that have been met, by a 64-bit hash of their bytes: among ten million, two share one
// with a probability of one in a hundred thousand.
class Met {
 public:
  // False when it had been met before.
  bool add(const World& world) {
    if (2 * count_ >= slots_.size()) grow();
    const std::size_t hash =
        std::hash<std::string_view>()({reinterpret_cast<const char*>(&world), sizeof world});
    if (!put(hash | 1)) return false;
    ++count_;
    return true;
  }
  std::size_t count() const { return count_; }

 private:
  bool put(std::size_t hash) {
    std::size_t at = (hash >> 1) % slots_.size();
    for (; slots_[at] != 0; at = (at + 1) % slots_.size()) {
      if (slots_[at] == hash) return false;
    }
    slots_[at] = hash;
    return true;
  }
  void grow() {
    const auto before = std::exchange(slots_, std::vector<std::size_t>(4 * slots_.size()));
    for (const std::size_t hash : before) {
      if (hash != 0) put(hash);
    }
  }
  std::vector<std::size_t> slots_ = std::vector<std::size_t>(std::size_t{1} << 16);
  std::size_t count_ = 0;
};

// ---- what must hold ----

bool has_seat(const Thread& thread) {
  const At at = thread.at;
  if (at == At::Unanchor) return thread.flag;
  if (at == At::Stepping || at == At::StepSlowly || at == At::Dequeue) {
    return thread.after_task == At::LookForReplies;
  }
  return (at >= At::Lead && at <= At::LendForTask) || (at >= At::Arm && at <= At::Vacate) ||
         (at >= At::WaitDisarm && at <= At::Lend);
}

std::optional<std::string> complaint(const Settings& settings, const World& world, bool all_rest) {
  std::size_t holders = 0;
  bool stepping = false;
  for (std::size_t who = 0; who < world.threads.size(); ++who) {
    const Thread& thread = world.threads[who];
    stepping |= thread.at == At::StepSlowly;
    if (!has_seat(thread)) continue;
    ++holders;
    if (world.seat >> 32 != who + 1) return "a thread acts on a seat that is not its own";
  }
  if (holders > 1) return "two threads have the seat";
  if (world.lookouts == 0) return "CREW-1: all hands are in user code";
  const int lying = world.parked - world.summoned;
  if (world.anchored == 0 && world.lookouts <= lying && !stepping) {
    return "CREW-1: the only lookouts lie parked";
  }
  if (!all_rest) return std::nullopt;
  const bool thread_free = world.lookouts >= 2 || world.hands < settings.max_threads;
  if (world.tasks > 0 && thread_free) return "SEAT-1: a task lies in the queue";
  if (world.requests > 0) return "SEAT-1: a request lies in its ring";
  if (world.replies > 0 && world.reply_sender.at != At::Frozen) {
    return "SEAT-1: a reply lies in its ring";
  }
  if (world.work > 0 && world.threads[kWaiter].at == At::SleepOnEvent) {
    return "CREW-5: a helper sleeps beside its work";
  }
  return std::nullopt;
}

struct Findings {
  std::size_t states = 0;
  std::size_t at_rest = 0;
  std::optional<std::string> complaint;
};

World first_world(const Settings& settings) {
  World world;
  world.bell = true;  // links have just been added: nobody has armed the bell yet
  world.hands = world.lookouts = settings.hands;
  world.waits_left = settings.waits;
  world.nested_left = settings.nested;
  world.reply_sender.left = settings.replies;
  world.request_sender.left = settings.requests;
  world.poster.at = At::Enqueue;
  world.poster.left = settings.tasks;
  for (std::size_t i = 0; i < settings.hands; ++i) world.threads[i].at = At::Work;
  return world;
}

// Hands are alike: of the worlds that differ in their names only, one is enough.
World canonical(World world) {
  const auto bytes = [&](std::size_t i) {
    return std::string_view(reinterpret_cast<const char*>(&world.threads[i]), sizeof(Thread));
  };
  const auto swap_hands = [&](std::size_t a, std::size_t b) {
    std::swap(world.threads[a], world.threads[b]);
    const std::uint64_t sitter = world.seat >> 32;
    const std::uint64_t other = sitter == a + 1 ? b + 1 : sitter == b + 1 ? a + 1 : sitter;
    world.seat = (world.seat & 0xffffffff) | (other << 32);
  };
  for (std::size_t i = 0; i + 1 < world.hands; ++i) {
    for (std::size_t k = i + 1; k < world.hands; ++k) {
      if (bytes(k) < bytes(i)) swap_hands(i, k);
    }
  }
  return world;
}

// Until something is wrong or all has been seen. What is wrong is mostly found sooner in the depth.
Findings explore(const Settings& settings) {
  Findings findings;
  Met met;
  std::vector<World> open{first_world(settings)};
  met.add(open.back());
  while (!open.empty() && !findings.complaint) {
    const World world = open.back();
    open.pop_back();
    bool all_rest = true;
    Steps(settings, world, [&](const World& step, Steps::Kind kind) {
      const World next = canonical(step);
      if (kind == Steps::Kind::Must && !(next == world)) all_rest = false;
      if (met.add(next)) open.push_back(next);
    }).all();
    findings.at_rest += all_rest ? 1 : 0;
    findings.complaint = complaint(settings, world, all_rest);
  }
  findings.states = met.count();
  return findings;
}

// ---- the searches ----

void expect_sound(const Settings& settings) {
  const Findings findings = explore(settings);
  EXPECT_FALSE(findings.complaint) << *findings.complaint;
  EXPECT_GT(findings.at_rest, 0u);
  ::testing::Test::RecordProperty("states", static_cast<int>(findings.states));
}

TEST(PollSeatModel, FramesOfTwoProducers) {
  expect_sound({.replies = 1, .requests = 1});
  expect_sound({.requests = 2});
}

TEST(PollSeatModel, FramesAndTasks) {
  expect_sound({.requests = 1, .tasks = 1});
  expect_sound({.tasks = 2});
}

TEST(PollSeatModel, FramesAndAWaiter) {
  expect_sound({.replies = 1, .waits = 1});
  expect_sound({.replies = 2, .waits = 2});
}

TEST(PollSeatModel, TasksAndAWaiter) {
  if (testing::kSanitized) GTEST_SKIP() << "a million states";
  expect_sound({.replies = 1, .tasks = 1, .waits = 1});
}

TEST(PollSeatModel, RequestsAndAWaiter) {
  if (testing::kSanitized) GTEST_SKIP() << "three million states";
  expect_sound({.replies = 1, .requests = 1, .waits = 1});
}

TEST(PollSeatModel, AHandlerThatWaits) {
  expect_sound({.replies = 1, .tasks = 1, .nested = 1});
  if (testing::kSanitized) GTEST_SKIP() << "ten million states more";
  expect_sound({.max_threads = 3, .replies = 1, .tasks = 2, .nested = 1});
}

TEST(PollSeatModel, MoreHandsThanNeeded) {
  expect_sound({.hands = 3, .max_threads = 3, .tasks = 2});
  expect_sound({.max_threads = 3, .tasks = 2});
  if (testing::kSanitized) GTEST_SKIP() << "a million states more";
  expect_sound({.hands = 3, .max_threads = 3, .requests = 1, .tasks = 1});
}

TEST(PollSeatModel, AProducerThatIsStopped) {
  expect_sound({.replies = 1, .requests = 1, .freezing = true});
}

TEST(PollSeatModel, AWaiterThatGivesTheSeatBack) {
  expect_sound({.replies = 2, .waits = 2, .sleeping = true});
  expect_sound({.replies = 1, .tasks = 1, .nested = 1, .sleeping = true});
  if (testing::kSanitized) GTEST_SKIP() << "millions of states more";
  expect_sound({.replies = 1, .tasks = 1, .waits = 1, .sleeping = true});
}

TEST(PollSeatModel, AHelper) {
  expect_sound({.replies = 2, .waits = 2, .helping = true});
  if (testing::kSanitized) GTEST_SKIP() << "millions of states more";
  expect_sound({.replies = 1, .tasks = 1, .waits = 1, .helping = true});
}

// The search is worth something only if it finds what is wrong.
void expect_found(const Settings& settings, std::string_view what) {
  if (testing::kSanitized) GTEST_SKIP() << "this is about the model";
  const Findings findings = explore(settings);
  ASSERT_TRUE(findings.complaint) << "not found in " << findings.states << " states";
  EXPECT_NE(findings.complaint->find(what), std::string::npos) << *findings.complaint;
}

TEST(PollSeatModelFaults, LeavingWithoutLooking) {
  expect_found({.fault = Fault::LeaveWithoutLooking, .replies = 1}, "a reply lies");
}
TEST(PollSeatModelFaults, LookingBeforeArming) {
  expect_found({.fault = Fault::LookBeforeArming, .replies = 1}, "a reply lies");
}
TEST(PollSeatModelFaults, ForgettingKnocks) {
  expect_found({.fault = Fault::ForgetKnocks, .replies = 2}, "a reply lies");
}
TEST(PollSeatModelFaults, SilencingALaterSleep) {
  expect_found({.fault = Fault::SilenceALaterSleep, .replies = 1, .requests = 1},
               "lies in its ring");
}
TEST(PollSeatModelFaults, ClearingBeforeRinging) {
  expect_found({.fault = Fault::ClearBeforeRinging, .replies = 1, .requests = 1, .freezing = true},
               "a request lies");
}
TEST(PollSeatModelFaults, VacatingWithTasksQueued) {
  expect_found({.fault = Fault::VacateWithTasksQueued, .max_threads = 3, .tasks = 2},
               "a task lies");
}
TEST(PollSeatModelFaults, InheritingTasksQuietly) {
  expect_found({.fault = Fault::WaiterInheritsQuietly,
                .max_threads = 3,
                .replies = 1,
                .tasks = 2,
                .nested = 1},
               "a task lies");
}
TEST(PollSeatModelFaults, StoppingTheTickWithoutAsking) {
  expect_found({.fault = Fault::StopTickWithoutAsking, .replies = 3, .waits = 2}, "a reply lies");
}
TEST(PollSeatModelFaults, GivingTheSeatBackQuietly) {
  expect_found({.fault = Fault::GiveBackQuietly,
                .max_threads = 3,
                .replies = 1,
                .tasks = 2,
                .nested = 1,
                .sleeping = true},
               "a task lies");
}
TEST(PollSeatModelFaults, SleepingWithWorkLeft) {
  expect_found({.fault = Fault::SleepWithWorkLeft, .replies = 1, .waits = 1, .helping = true},
               "CREW-5");
}
TEST(PollSeatModelFaults, MissingTheTheftOfTheSeat) {
  expect_found({.fault = Fault::MissTheTheft, .replies = 2, .waits = 2, .helping = true},
               "not its own");
}
TEST(PollSeatModelFaults, TrustingAnAnchorThatWasThereAMomentAgo) {
  expect_found({.fault = Fault::TrustTheAnchorOnceSeen, .tasks = 2}, "CREW-1");
}

}  // namespace
}  // namespace hawser::transport::model
