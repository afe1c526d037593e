// A value that stays where it was made: `counter owner` in one terminal, `counter user` in another,
// in any order. Or a Python node for either of them.
#include <atomic>
#include <cstdint>
#include <iostream>
#include <latch>
#include <memory>
#include <string_view>
#include <vector>

#include "hawser/hawser.h"

namespace {

class Counter {
 public:
  explicit Counter(std::int64_t start) : value_(start) {}
  std::int64_t add(std::int64_t by) { return value_ += by; }
  std::int64_t value() const { return value_; }

 private:
  std::atomic<std::int64_t> value_;  // methods may run on several threads at once
};

// Of counters of whatever node and language: what they have is a method `value`.
std::int64_t total(const std::vector<hawser::Ref<Counter>>& counters) {
  std::vector<hawser::Future<std::int64_t>> values;
  for (const auto& counter : counters) values.push_back(counter.call<std::int64_t>("value"));
  std::int64_t sum = 0;
  for (const auto& value : values) sum += value.get();
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_owner = argc > 1 && std::string_view(argv[1]) == "owner";
  std::latch methods_are_served(1);
  auto make_counter = hawser::make_function("make_counter", [&](std::int64_t start) {
    methods_are_served.wait();
    return std::make_unique<Counter>(start);
  });
  hawser::Node node({.name = is_owner ? "owner" : "user",
                     .rendezvous = "tcp://127.0.0.1:29501",
                     .rank = is_owner ? 0 : 1,
                     .world_size = 2,
                     .functions = {make_counter, hawser::make_function("total", total)}});
  node.serve_method("add", &Counter::add);
  node.serve_method("value", &Counter::value);
  methods_are_served.count_down();
  if (!is_owner) {
    const hawser::Ref<Counter> theirs = node.remote<Counter>("owner", "make_counter", 5);
    const hawser::Ref<Counter> mine = node.ref(std::make_unique<Counter>(10));
    theirs.call<std::int64_t>("add", 2).get();
    const std::vector<hawser::Ref<Counter>> both{theirs, mine};
    std::cout << node.call<std::int64_t>("owner", "total", both).get() << '\n';
  }
  node.shutdown();  // goes on serving until both have called it
}
