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

TEST_P(References, OfAUserThatLeavesADynamicWorldAreLetGo) {
  Node owner(options("owner"));
  {
    Node user(options("user"));
    user.serve("take", [held = std::make_shared<std::vector<Ref<at::Tensor>>>()](
                           Ref<at::Tensor> tensor) { held->push_back(std::move(tensor)); });
    const Ref<at::Tensor> tensor = owner.ref(at::Tensor());
    owner.call<void>("user", "take", tensor).get();
    user.shutdown(kPatience);
  }
  EXPECT_TRUE(eventually([&] { return owner.refs().empty(); }));
}

TEST_P(References, ThousandsInFlightWhileProcessesDie) {
  constexpr int kRounds = 5, kEach = 2000;
  Node survivor(options("survivor"));
  Worker steady(options("steady"));
  for (int round = 0; round < kRounds; ++round) {
    Worker victim(options("victim" + std::to_string(round)));
    const std::string name = "victim" + std::to_string(round);
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
    for (int i = 0; i < kEach; ++i) {
      refs.push_back(survivor.remote<at::Tensor>(i % 2 ? name : "steady", "make", 8));
      if (i % 3 == 0) give(name, refs.back());
      if (i % 5 == 0) give("steady", refs.back());
      if (i == kEach / 2) victim.process().kill();
    }
    refs.clear();
    for (const auto& call : calls) ASSERT_TRUE(call.wait_for(kPatience));
  }
  survivor.call<void>("steady", "drop_refs").get();
  EXPECT_TRUE(eventually([&] { return survivor.refs().empty(); })) << describe_refs(survivor);
  EXPECT_TRUE(eventually([&] {
    return survivor.call<std::int64_t>("steady", "count_refs").get() == 0;
  })) << survivor.call<std::string>("steady", "describe_refs").get();
}

}  // namespace
}  // namespace hawser::testing
