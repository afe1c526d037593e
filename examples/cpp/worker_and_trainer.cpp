// Two processes: `worker_and_trainer worker` in one terminal, `worker_and_trainer trainer` in
// another, in any order.
#include <ATen/core/Formatting.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include <iostream>
#include <string_view>

#include "hawser/hawser.h"

int main(int argc, char** argv) {
  const bool is_worker = argc > 1 && std::string_view(argv[1]) == "worker";
  // Given with the options, a function is there before anybody can call it.
  auto scale = hawser::make_function("scale", [](at::Tensor x, double k) { return x * k; });
  hawser::Node node({.name = is_worker ? "worker" : "trainer",
                     .rendezvous = "tcp://127.0.0.1:29500",
                     .rank = is_worker ? 0 : 1,
                     .world_size = 2,
                     .functions = {scale}});
  if (!is_worker) {
    const auto y = node.call<at::Tensor>("worker", "scale", at::ones({2, 3}), 2.0);
    std::cout << y.get() << '\n';
  }
  node.shutdown();  // goes on serving until both have called it
}
