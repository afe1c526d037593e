#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "hawser/base/log.h"
#include "process/roles.h"

int main(int argc, char** argv) {
  using namespace hawser::testing;
  at::set_num_threads(1);  // there are more processes than cores
  const Roles roles{
      {"worker", work}, {"forker", fork_while_connected}, {"spawner", spawn_while_connected}};
  if (const auto code = play_role(argc, argv, roles)) return *code;
  // Turned away connections and lost peers are what is tested here, not news.
  if (!std::getenv("HAWSER_LOG")) hawser::log::configure("off");
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
