#include "hawser/agent/spinner.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace hawser::agent {
namespace {

using namespace std::chrono_literals;

// How often it looked on before it gave up.
int rounds(Spinner& spinner) {
  int count = 0;
  while (spinner.look_on()) ++count;
  return count;
}

TEST(Spinner, DoesNotSpinWithoutALimit) {
  Spinner spinner(0us);
  spinner.restart();
  EXPECT_FALSE(spinner.look_on());
}

TEST(Spinner, GivesUpAfterTheLimit) {
  Spinner spinner(200us);
  const auto before = std::chrono::steady_clock::now();
  int longest = 0;
  // Beside other programs a yield may take long at first, which ends the spinning earlier.
  while (longest < 8 && std::chrono::steady_clock::now() - before < 10s) {
    spinner.restart();
    longest = std::max(longest, rounds(spinner));
  }
  EXPECT_GE(longest, 8);
}

TEST(Spinner, LooksOnForLongerWhereMoreIsLikelyToCome) {
  const auto ends = std::chrono::steady_clock::now() + 10s;
  for (const bool known : {false, true}) {
    Spinner spinner(1ms);
    Duration longest{};
    while (longest < 3ms && std::chrono::steady_clock::now() < ends) {
      spinner.restart();
      const auto began = std::chrono::steady_clock::now();
      while (spinner.look_on(known, began + 1s)) {
      }
      longest = std::max(longest, std::chrono::steady_clock::now() - began);
    }
    EXPECT_GE(longest, 3ms);
  }
}

void pin_to_one_core() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  ::pthread_setaffinity_np(::pthread_self(), sizeof one, &one);
}

// With a limit of an hour, only a yield that took long ends it.
TEST(Spinner, StopsBesideAThreadThatComputesAndDoesNotStartAgainAtOnce) {
  std::thread([] {
    pin_to_one_core();  // the next thread inherits it
    std::atomic<bool> enough{false};
    std::thread computing([&] {
      while (!enough.load(std::memory_order_relaxed)) {
      }
    });
    Spinner spinner(1h);
    bool stayed_away = false;
    // The ban may be over before this thread gets the core again; the next one is longer.
    for (int attempt = 0; attempt < 20 && !stayed_away; ++attempt) {
      spinner.restart();
      rounds(spinner);
      spinner.restart();
      stayed_away = !spinner.look_on();
    }
    EXPECT_TRUE(stayed_away);
    enough = true;
    computing.join();
  }).join();
}

}  // namespace
}  // namespace hawser::agent
