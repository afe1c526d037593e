#include <deque>
#include <limits>
#include <memory>

#include "contract/contract.h"
#include "contract/real_medium.h"
#include "hawser/transport/doorbell.h"
#include "hawser/transport/shm/shm_transport.h"

namespace hawser::contract {
namespace {

class ShmMedium final : public RealMedium {
 public:
  explicit ShmMedium(const transport::shm::ShmOptions& options) : options_(options) {}

  std::unique_ptr<transport::Transport> create(transport::Host& host,
                                               const Limits& limits) override {
    transport::Doorbell& bell = bells_.emplace_back();
    return transport::shm::create_shm(control_, host, random_, pool_, bell, limits, options_);
  }

  // Rings are not announced by descriptors.
  void wait_for_progress(std::span<transport::Link* const> links) override {
    for (const transport::Link* link : links) {
      if (link->pending()) return;
    }
    RealMedium::wait_for_progress(links);
  }

  // An arena takes more than these tests send.
  bool has_back_pressure() const override { return options_.inline_limit == kEverything; }

  static constexpr std::size_t kEverything = std::numeric_limits<std::size_t>::max();

 private:
  const transport::shm::ShmOptions options_;
  std::deque<transport::Doorbell> bells_;
};

MediumFactory shm_medium(const transport::shm::ShmOptions& options) {
  return [options] { return std::make_unique<ShmMedium>(options); };
}

transport::shm::ShmOptions without_arena() {
  transport::shm::ShmOptions options;
  options.inline_limit = ShmMedium::kEverything;
  return options;
}

// As small as it can be, so that every frame of some size goes in pieces.
transport::shm::ShmOptions cramped() {
  transport::shm::ShmOptions options;
  options.ring_bytes = 4096;
  options.inline_limit = 100;
  options.arena_step = std::size_t{128} << 10;
  options.adopt_share = 0;
  return options;
}

const auto kShm = ::testing::Values(shm_medium({}));
const auto kWithoutArena = ::testing::Values(shm_medium(without_arena()));
const auto kCramped = ::testing::Values(shm_medium(cramped()));

}  // namespace

INSTANTIATE_TEST_SUITE_P(shm, LinkContract, kShm);
INSTANTIATE_TEST_SUITE_P(shm, TransportContract, kShm);
INSTANTIATE_TEST_SUITE_P(shm_without_arena, LinkContract, kWithoutArena);
INSTANTIATE_TEST_SUITE_P(shm_cramped, LinkContract, kCramped);

}  // namespace hawser::contract
