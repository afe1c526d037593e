#pragma once

#include <span>

#include "contract/contract.h"
#include "hawser/base/buffer_pool.h"
#include "hawser/base/random.h"
#include "hawser/transport/control_loop.h"

namespace hawser::contract {

// A medium of the real world: a control thread, descriptors to wait on, real time. Death is a
// socket that the kernel shuts, garbage goes straight into that socket.
class RealMedium : public Medium {
 public:
  RealMedium();
  ~RealMedium() override;

  const Clock& clock() const override { return clock_; }
  void wait_for_progress(std::span<transport::Link* const> links) override;
  void kill(transport::Link& end) override;
  bool inject(transport::Link& from, std::span<const std::byte> bytes) override;

 protected:
  SteadyClock clock_;
  SystemRandom random_;
  BufferPool pool_{std::size_t{64} << 20};
  transport::ControlLoop control_;
};

}  // namespace hawser::contract
