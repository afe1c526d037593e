// Many processes on one host, all calling all.
#include "process/world.h"

namespace hawser::testing {
namespace {

// Loading libtorch takes each process a quarter of a second of one core.
constexpr Duration kCrowdPatience = 50s;

struct Crowd {
  std::size_t size;
  const char* transport;
};

void PrintTo(const Crowd& crowd, std::ostream* out) {
  *out << crowd.size << " by " << crowd.transport;
}

class Crowds : public ::testing::TestWithParam<Crowd> {
 protected:
  World world_;
};

INSTANTIATE_TEST_SUITE_P(, Crowds,
                         ::testing::Values(Crowd{16, "shm"}, Crowd{16, "tcp"}, Crowd{64, "shm"}),
                         [](const auto& crowd) {
                           return crowd.param.transport + std::to_string(crowd.param.size);
                         });

TEST_P(Crowds, AllCallAll) {
  const std::size_t size = GetParam().size;
  std::vector<Worker> workers;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < size; ++i) {
    names.push_back("worker" + std::to_string(i));
    workers.push_back(Worker::begin(world_.options(names.back(), GetParam().transport)));
  }
  for (Worker& worker : workers) worker.joined(kCrowdPatience);
  const auto ready = std::chrono::steady_clock::now();
  for (Worker& worker : workers) worker.ask_all(names);
  for (Worker& worker : workers) EXPECT_EQ(worker.answered(kCrowdPatience), size);
  EXPECT_LT(std::chrono::steady_clock::now() - ready, 20s);
}

}  // namespace
}  // namespace hawser::testing
