// References between processes that die, leave, or pass references on.
#include <latch>
#include <thread>

#include "process/world.h"

namespace hawser::testing {
namespace {

class References : public OverTransports {
 protected:
  static std::size_t values_of(const Node& node) {
    std::size_t count = 0;
    for (const RefReport& ref : node.refs()) count += ref.mine;
    return count;
  }

  // Between `owner` and the node "user", both ways; nothing is left afterwards.
  static void expect_new_ones_work(Node& owner) {
    {
      const Ref<at::Tensor> tensor = owner.ref(at::Tensor());
      owner.call<void>("user", "hold_refs", std::vector{tensor}).get();
      EXPECT_EQ(owner.call<std::int64_t>("user", "use_refs").get(), 1);
      EXPECT_EQ(owner.remote<at::Tensor>("user", "make", 8).fetch().get().numel(), 8);
    }
    EXPECT_EQ(values_of(owner), 1u) << describe_refs(owner);
    owner.call<void>("user", "drop_refs").get();
    EXPECT_TRUE(eventually([&] { return values_of(owner) == 0; })) << describe_refs(owner);
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, References, kTransports);

TEST_P(References, ToAKilledOwnerFailAtOnce) {
  Node user(options("user"));
  Worker owner(options("owner"));
  const Ref<at::Tensor> tensor = user.remote<at::Tensor>("owner", "make", 8);
  EXPECT_EQ(tensor.fetch().get().numel(), 8);
  const Ref<at::Tensor> held_up = user.remote<at::Tensor>("owner", "hold");
  const auto waiting = held_up.fetch();
  owner.channel().expect("holding");
  owner.process().kill();
  ASSERT_TRUE(waiting.wait_for(kPatience));
  EXPECT_EQ(waiting.wait().error().kind(), ErrorKind::PeerLost);
  EXPECT_EQ(error_of([&] { tensor.fetch().get(); }).kind(), ErrorKind::PeerLost);
  // Nor can it be given on, once the owner is known to be gone for good.
  EXPECT_TRUE(eventually([&] {
    return error_of([&] { user.call<void>("user", "any", tensor).get(); }).kind() ==
           ErrorKind::PeerLost;
  }));
}

// REF-2: what a killed process held is let go.
TEST_P(References, OfAKilledUserAreLetGo) {
  Node owner(options("owner"));
  Worker user(options("user"));
  {
    const Ref<at::Tensor> tensor = owner.ref(at::Tensor());
    owner.call<void>("user", "hold_refs", std::vector{tensor, tensor, tensor}).get();
  }
  EXPECT_EQ(values_of(owner), 1u);
  user.process().kill();
  EXPECT_TRUE(eventually([&] { return owner.refs().empty(); }));
}

TEST_P(References, AValueSurvivesTheOneInTheMiddle) {
  Node owner(options("owner"));
  Worker middle(options("middle"));
  Worker end(options("end"));
  {
    const Ref<at::Tensor> tensor = owner.ref(at::Tensor());
    // It gives the reference on, and keeps one itself.
    owner.call<void>("middle", "pass_on", "end", tensor).get();
  }
  EXPECT_TRUE(eventually([&] {
    const auto refs = owner.refs();
    return refs.size() == 1 && refs[0].holders.size() == 2;
  }));
  middle.process().kill();
  EXPECT_TRUE(eventually([&] { return owner.refs().at(0).holders.size() == 1; }));
  EXPECT_EQ(owner.call<std::int64_t>("end", "use_refs").get(), 1);
  end.process().kill();
  EXPECT_TRUE(eventually([&] { return owner.refs().empty(); }));
}

// The links wait for each other where they are: nobody has fetched anything when one of them dies.
TEST_P(References, AChainWhoseMiddleIsKilledEndsWithTheLinkNamed) {
  Node user(options("user"));
  Worker first(options("first")), second(options("second")), third(options("third"));
  const Ref<at::Tensor> start = user.remote<at::Tensor>("first", "hold");
  const Ref<at::Tensor> middle = user.remote<at::Tensor>("second", "follow", start);
  const Ref<at::Tensor> end = user.remote<at::Tensor>("third", "follow", middle);
  const auto waiting = end.fetch();
  first.channel().expect("holding");
  second.channel().expect("following");
  third.channel().expect("following");
  EXPECT_FALSE(waiting.done());
  second.process().kill();
  ASSERT_TRUE(waiting.wait_for(kPatience));
  ASSERT_FALSE(waiting.wait().ok());
  const Error& error = waiting.wait().error();
  EXPECT_EQ(error.details().remote_type, "hawser::PeerLost") << error.what();
  EXPECT_EQ(error.details().node, "third");
  EXPECT_EQ(error.details().function, "follow");
  EXPECT_NE(error.message().find("'second'"), std::string::npos) << error.what();
  const Error lost = error_of([&] { middle.fetch().get(); });
  EXPECT_EQ(lost.kind(), ErrorKind::PeerLost) << lost.what();
  EXPECT_EQ(lost.details().node, "second");
}

TEST_P(References, OfAUserThatLeavesADynamicWorldAreLetGo) {
  Node owner(options("owner"));
  Worker user(options("user"));
  {
    const Ref<at::Tensor> tensor = owner.ref(at::Tensor());
    owner.call<void>("user", "hold_refs", std::vector{tensor, tensor}).get();
  }
  const Ref<at::Tensor> theirs = owner.remote<at::Tensor>("user", "make", 8);
  EXPECT_EQ(theirs.fetch().get().numel(), 8);
  EXPECT_EQ(values_of(owner), 1u);
  user.channel().tell("shutdown");
  user.channel().expect("left");
  EXPECT_EQ(user.process().wait(), (Ending{.code = 0, .signal = {}}));
  EXPECT_TRUE(eventually([&] { return values_of(owner) == 0; })) << describe_refs(owner);
  EXPECT_EQ(error_of([&] { theirs.fetch().get(); }).kind(), ErrorKind::PeerLost);
}

// It was given up while it stood still, and goes on as another: what it held is let go, what it
// owned is lost, and both can be had anew.
TEST_P(References, OfAUserThatWasGivenUpAreVoidWhenItComesBack) {
  NodeOptions mine = options("owner");
  mine.failure_detector = quick_detector(1s);
  NodeOptions its = options("user");
  its.failure_detector = quick_detector(kPatience);
  Node owner(mine);
  Worker user(its);
  {
    const Ref<at::Tensor> tensor = owner.ref(at::Tensor());
    owner.call<void>("user", "hold_refs", std::vector{tensor}).get();
  }
  const Ref<at::Tensor> theirs = owner.remote<at::Tensor>("user", "make", 8);
  EXPECT_EQ(theirs.fetch().get().numel(), 8);
  user.process().stop();
  EXPECT_TRUE(eventually([&] { return values_of(owner) == 0; })) << describe_refs(owner);
  EXPECT_EQ(error_of([&] { theirs.fetch().get(); }).kind(), ErrorKind::PeerLost);
  user.process().resume();
  ASSERT_TRUE(eventually([&] {
    const auto sum = owner.call<std::int64_t>("user", "add", 1, 2);
    return sum.wait().ok() && sum.wait().value() == 3;
  }));
  EXPECT_GT(peer_of(owner, "user").incarnation, user.incarnation());
  EXPECT_EQ(error_of([&] { theirs.fetch().get(); }).kind(), ErrorKind::PeerLost);  // for good
  EXPECT_NE(error_of([&] { owner.call<std::int64_t>("user", "use_refs").get(); })
                .details()
                .remote_type.find("PeerLost"),
            std::string::npos);
  owner.call<void>("user", "drop_refs").get();
  expect_new_ones_work(owner);
}

TEST_P(References, OfAUserThatWasStartedAnewAreVoid) {
  Node owner(options("owner"));
  std::optional<Worker> user(options("user"));
  {
    const Ref<at::Tensor> tensor = owner.ref(at::Tensor());
    owner.call<void>("user", "hold_refs", std::vector{tensor}).get();
  }
  const Ref<at::Tensor> theirs = owner.remote<at::Tensor>("user", "make", 8);
  EXPECT_EQ(theirs.fetch().get().numel(), 8);
  user->process().kill();
  user->process().wait();
  user.emplace(options("user"));
  EXPECT_TRUE(eventually([&] { return values_of(owner) == 0; })) << describe_refs(owner);
  EXPECT_EQ(error_of([&] { theirs.fetch().get(); }).kind(), ErrorKind::PeerLost);
  expect_new_ones_work(owner);
}

TEST_P(References, TenThousandInFlightWhileProcessesDie) {
  constexpr int kAll = 10'000, kVictims = 4;
  Node survivor(options("survivor"));
  Worker steady(options("steady"));
  std::vector<Worker> victims;
  for (int i = 0; i < kVictims; ++i) {
    victims.push_back(Worker::begin(options("victim" + std::to_string(i))));
  }
  for (Worker& victim : victims) victim.joined();
  std::vector<Ref<at::Tensor>> refs;
  std::vector<Future<void>> calls;
  // A reference that is known to be lost is not sent; one that is not yet known to be is.
  const auto give = [&](const std::string& to, const Ref<at::Tensor>& ref) {
    try {
      calls.push_back(survivor.call<void>(to, "hold_refs", std::vector{ref}));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::PeerLost) << error.what();
    }
  };
  // All of them are held until the last process has died, and none has been waited for.
  for (int i = 0; i < kAll; ++i) {
    const std::string victim = "victim" + std::to_string(i % kVictims);
    refs.push_back(survivor.remote<at::Tensor>(i % 3 ? victim : "steady", "make", 8));
    if (i % 5 == 0) give("victim" + std::to_string((i + 1) % kVictims), refs.back());
    if (i % 7 == 0) give("steady", refs.back());
    const int step = kAll / (kVictims + 1);
    if (i % step == step - 1 && i / step < kVictims) {
      victims[static_cast<std::size_t>(i / step)].process().kill();
    }
  }
  EXPECT_EQ(refs.size(), static_cast<std::size_t>(kAll));
  refs.clear();
  for (const auto& call : calls) ASSERT_TRUE(call.wait_for(kPatience));
  survivor.call<void>("steady", "drop_refs").get();
  EXPECT_TRUE(eventually([&] { return survivor.refs().empty(); })) << describe_refs(survivor);
  EXPECT_TRUE(eventually([&] {
    return survivor.call<std::int64_t>("steady", "count_refs").get() == 0;
  })) << survivor.call<std::string>("steady", "describe_refs").get();
}

}  // namespace
}  // namespace hawser::testing
