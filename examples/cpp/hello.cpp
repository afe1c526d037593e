#include <ATen/core/Formatting.h>
#include <ATen/ops/arange.h>
#include <hawser/hawser.h>

#include <iostream>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

// Two nodes in one process, to try it at once. In two processes, on one host or on two, each node
// gets .rendezvous = "tcp://10.0.0.5:29500" instead of a store, and one .rank = 0: it hosts that.
int main() {
  const auto store = hawser::use_store(c10::make_intrusive<c10d::HashStore>());
  hawser::Node worker({.name = "worker", .store = store});
  hawser::Node trainer({.name = "trainer", .store = store});

  worker.serve("scale", [](at::Tensor x, double k) { return x * k; });

  hawser::Future<at::Tensor> y = trainer.call<at::Tensor>("worker", "scale", at::arange(4), 2.5);
  std::cout << y.get() << "\n";
  try {
    trainer.call<at::Tensor>("worker", "scale", "no tensor", 2.5).get();
  } catch (const hawser::Error& error) {
    std::cout << error.what() << "\n";
  }
}
