#include "hawser/engine/engine_threads.h"

#include <pthread.h>
#include <torch/csrc/autograd/engine.h>

#include <thread>

#include "hawser/base/event.h"

namespace hawser::engine {

using torch::autograd::ReadyQueue;

struct EngineThreads::Thread {
  std::shared_ptr<ReadyQueue> queue = std::make_shared<ReadyQueue>();
  Event ended;
  std::thread thread;
};

std::shared_ptr<ReadyQueue> EngineThreads::next_queue() {
  auto state = state_.lock();
  if (state->stopped) return nullptr;
  if (state->threads.size() < most_) {
    auto added = std::make_shared<Thread>();
    added->thread = std::thread([added] {
      ::pthread_setname_np(::pthread_self(), "hawser-grad");
      torch::autograd::Engine::get_default_engine().thread_init(
          torch::autograd::CPU_DEVICE, added->queue, /*should_increment=*/false);
      added->ended.set();
    });
    state->threads.push_back(std::move(added));
  }
  return state->threads[state->turn++ % state->threads.size()]->queue;
}

bool EngineThreads::stop(Deadline deadline) {
  std::vector<std::shared_ptr<Thread>> threads;
  {
    auto state = state_.lock();
    state->stopped = true;
    threads.swap(state->threads);
  }
  for (const auto& each : threads) each->queue->pushShutdownTask();
  bool all_ended = true;
  for (const auto& each : threads) {
    if (each->ended.sleep_until(deadline)) {
      each->thread.join();
    } else {
      each->thread.detach();
      all_ended = false;
    }
  }
  return all_ended;
}

}  // namespace hawser::engine
