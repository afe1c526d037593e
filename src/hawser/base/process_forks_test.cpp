#include "hawser/base/process_forks.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hawser {
namespace {

TEST(ProcessForks, BothSidesCountTheForkAndTheChildItsDepth) {
  const auto forks = process_forks();
  const auto depth = fork_depth();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(process_forks() == forks + 1 && fork_depth() == depth + 1 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(process_forks(), forks + 1);
  EXPECT_EQ(fork_depth(), depth);
}

}  // namespace
}  // namespace hawser
