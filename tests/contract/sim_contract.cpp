#include "contract/contract.h"
#include "hawser/transport/sim/sim_transport.h"

namespace hawser::contract {
namespace {

// Each node is a simulated process of its own. Time moves only when a test waits.
class SimMedium final : public Medium {
 public:
  std::unique_ptr<transport::Transport> create(transport::Host& host,
                                               const Limits& limits) override {
    return transport::sim::create_sim(network_, world_.start_process(host.identity().name), host,
                                      limits);
  }
  const Clock& clock() const override { return world_.clock(); }
  void wait_for_progress(std::span<transport::Link* const>) override {
    for (int i = 0; i < kEventsPerMoment; ++i) {
      if (!world_.step()) return;
    }
  }
  void kill(transport::Link& end) override { end.close(); }
  bool inject(transport::Link& from, std::span<const std::byte>) override {
    static_cast<transport::sim::SimLink&>(from).send_garbage();
    return true;
  }
  bool has_back_pressure() const override { return false; }

 private:
  static constexpr int kEventsPerMoment = 256;
  transport::sim::SimWorld world_{1};
  transport::sim::SimNetwork network_{world_};
};

const auto kSim = ::testing::Values(MediumFactory([] { return std::make_unique<SimMedium>(); }));

}  // namespace

INSTANTIATE_TEST_SUITE_P(sim, LinkContract, kSim);
INSTANTIATE_TEST_SUITE_P(sim, TransportContract, kSim);

}  // namespace hawser::contract
