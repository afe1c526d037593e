#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <signal.h>
#include <torch/csrc/autograd/custom_function.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hawser/base/guarded.h"
#include "hawser/base/step.h"
#include "hawser/node/autograd.h"
#include "process/roles.h"
#include "process/world.h"

namespace hawser::testing {
namespace {

void serve_functions(Node& node, Channel& test) {
  node.serve("add", [](std::int64_t a, std::int64_t b) { return a + b; });
  node.serve("echo", [](at::Tensor x) { return x; });
  node.serve("hold", [&test](const CallContext& context) {
    const auto cancelled = std::make_shared<Event>();
    context.on_cancel([cancelled] { cancelled->set(); });
    test.tell("holding");
    if (cancelled->sleep_until(Deadline::after(SteadyClock(), kPatience))) test.tell("cancelled");
  });
  const auto kept = std::make_shared<Guarded<std::vector<at::Tensor>>>();
  node.serve("keep", [kept](at::Tensor x) {
    auto all = kept->lock();
    all->push_back(std::move(x));
    return all->size();
  });
  node.serve("kept", [kept](std::size_t which) { return kept->lock()->at(which); });
  node.serve("make", [](std::int64_t bytes) { return at::full({bytes}, 7, at::kByte); });
  const auto refs = std::make_shared<Guarded<std::vector<Ref<at::Tensor>>>>();
  node.serve("hold_refs", [refs](std::vector<Ref<at::Tensor>> more) {
    auto held = refs->lock();
    held->insert(held->end(), more.begin(), more.end());
  });
  node.serve("pass_on", [refs, &node](std::string to, Ref<at::Tensor> ref) {
    node.call<void>(to, "hold_refs", std::vector{ref}).get();
    refs->lock()->push_back(std::move(ref));
  });
  node.serve("use_refs", [refs] {
    const auto all = *refs->lock();
    for (const Ref<at::Tensor>& ref : all) ref.fetch().get();
    return all.size();
  });
  node.serve("follow", [&test](Ref<at::Tensor> ref) {
    const auto value = ref.fetch();
    test.tell("following");
    return value.get();
  });
  node.serve("drop_refs", [refs] { std::exchange(*refs->lock(), {}).clear(); });
  node.serve("count_refs", [&node] { return node.refs().size(); });
  node.serve("describe_refs", [&node] { return describe_refs(node); });
  node.serve("resident", [] { return resident_bytes(::getpid()); });
  node.serve("incoming", [&node](const std::string& peer) {
    const agent::PeerReport report = peer_of(node, peer);
    return std::tuple(report.incoming, report.put_aside);
  });
  node.serve("turned_away", [&node] { return node.inspect().connections_turned_away; });
}

// As if somebody had killed this process between two steps of what it is doing.
void die_at_step([[maybe_unused]] int step) {
#ifdef HAWSER_DELIBERATE_FAULTS
  static std::atomic<int> left;
  left = step;
  step_hook = [] {
    if (left.fetch_sub(1) == 1) ::kill(::getpid(), SIGKILL);
  };
#endif
}

// Says so when its gradient is asked for, and then takes its time.
struct StallsBackward : torch::autograd::Function<StallsBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* saved, const at::Tensor& x,
                            Channel* test) {
    saved->saved_data["test"] = reinterpret_cast<std::int64_t>(test);
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* saved,
                                               torch::autograd::tensor_list gradients) {
    reinterpret_cast<Channel*>(saved->saved_data["test"].toInt())->tell("in backward");
    Event never;
    never.sleep_until(Deadline::after(SteadyClock(), kPatience));
    return {gradients[0], at::Tensor()};
  }
};

void serve_autograd(Node& node, Channel& test) {
  const at::Tensor weight = at::full({4}, 2.0, at::kDouble).set_requires_grad(true);
  node.serve("scale", [weight](at::Tensor x) { return x * weight; });
  node.serve("scale_via",
             [&node, weight](const std::string& next, const std::string& function, at::Tensor x) {
               return node.call<at::Tensor>(next, function, x * weight).get();
             });
  node.serve("stall_backward", [&test](at::Tensor x) { return StallsBackward::apply(x, &test); });
  node.serve("gradient", [&node, weight](std::int64_t context) {
    const auto gradients =
        node.autograd().gradients(autograd::ContextId{static_cast<std::uint64_t>(context)});
    return gradients.contains(weight) ? gradients.at(weight) : at::Tensor();
  });
  node.serve("count_autograd", [&node] {
    const AutogradCounts counts = node.inspect().autograd;
    return std::tuple(counts.contexts, counts.passes);
  });
  node.serve("hold_context", [&node, &test](const std::string& next) {
    const autograd::Context context(node);
    node.call<at::Tensor>(next, "scale", at::full({4}, 1.0, at::kDouble)).get();
    test.tell("holding");
    Event never;
    never.sleep_until(Deadline::after(SteadyClock(), kPatience));
  });
}

void tell_joined(const Node& node, Channel& test) {
  const NodeReport report = node.inspect();
  std::ostringstream message;
  message << "joined " << report.incarnation;
  for (const std::string& endpoint : report.endpoints) message << ' ' << endpoint;
  test.tell(message.str());
}

void call_and_tell(Node& node, Channel& test, const std::string& peer,
                   const std::string& function) {
  node.call<void>(peer, function).on_settled([&test, function](const auto& outcome) {
    const std::string how = outcome.ok() ? "ok" : std::string(to_string(outcome.error().kind()));
    test.tell("outcome " + function + " " + how);
  });
}

std::int64_t call_all(Node& node, std::istream& peers) {
  std::vector<Future<std::int64_t>> sums;
  for (std::string peer; peers >> peer;) {
    sums.push_back(node.call<std::int64_t>(peer, "add", std::int64_t{20}, std::int64_t{22}));
  }
  std::int64_t right = 0;
  for (const auto& sum : sums) {
    const auto& outcome = sum.wait();
    if (outcome.ok() && outcome.value() == 42) ++right;
    if (!outcome.ok()) std::fprintf(stderr, "%s\n", outcome.error().what());
  }
  return right;
}

void make_many(Node& node, Channel& test, std::istream& words) {
  std::string peer;
  std::size_t calls = 0;
  std::int64_t bytes = 0;
  words >> peer >> calls >> bytes;
  struct Count {
    std::atomic<std::size_t> left{0};
    std::atomic<std::size_t> right{0};
  };
  const auto count = std::make_shared<Count>();
  count->left = calls;
  for (std::size_t i = 0; i < calls; ++i) {
    node.call<at::Tensor>(peer, "make", bytes).on_settled([&test, count, bytes](const auto& made) {
      if (made.ok() && made.value().sum().template item<std::int64_t>() == 7 * bytes) {
        ++count->right;
      }
      if (--count->left == 0) test.tell("made " + std::to_string(count->right));
    });
  }
  test.tell("asked");
}

}  // namespace

int work(Channel& test, const std::vector<std::string>& arguments) {
  auto node = std::make_unique<Node>(from_arguments(arguments));
  serve_functions(*node, test);
  serve_autograd(*node, test);
  tell_joined(*node, test);
  while (const auto command = test.hear(Duration(10min))) {
    std::istringstream words(*command);
    std::string verb;
    words >> verb;
    if (verb == "call") {
      std::string peer, function;
      words >> peer >> function;
      call_and_tell(*node, test, peer, function);
    } else if (verb == "call_all") {
      test.tell("answered " + std::to_string(call_all(*node, words)));
    } else if (verb == "make") {
      make_many(*node, test, words);
    } else if (verb == "send") {
      std::string peer;
      std::int64_t bytes = 0;
      words >> peer >> bytes;
      node->call<at::Tensor>(peer, "echo", at::full({bytes}, 7, at::kByte));
    } else if (verb == "incarnation") {
      test.tell("incarnation " + std::to_string(node->inspect().incarnation));
    } else if (verb == "shutdown") {
      node->shutdown();
      test.tell("left");
      break;
    } else if (verb == "close") {
      break;
    } else if (verb == "die_at_step") {
      int step = 0;
      words >> step;
      die_at_step(step);
      test.tell("doomed");
    } else if (verb == "exit") {
      std::exit(0);  // as a program does that forgets its node: it is not destroyed
    } else if (verb == "exit_with_static_node") {
      static const std::unique_ptr<Node> destroyed_last = std::move(node);
      std::exit(0);
    } else if (verb == "vanish") {
      ::_exit(7);
    }
  }
  return 0;
}

}  // namespace hawser::testing
