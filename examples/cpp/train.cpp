// Trains a network whose two layers live in two processes, without Python. Starts the second
// process itself; on two hosts, each process would make its node with .rendezvous = "tcp://...".
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "hawser/hawser.h"

namespace {

constexpr double kRate = 0.05;
constexpr int kSteps = 200;

// A layer and the step of its training: its gradients are in the context, on its own node.
class Layer {
 public:
  Layer(std::int64_t inputs, std::int64_t outputs)
      : weight_(at::randn({inputs, outputs}).mul_(0.5).set_requires_grad(true)),
        bias_(at::zeros({outputs}).set_requires_grad(true)) {}

  at::Tensor forward(at::Tensor x) const { return x.mm(weight_) + bias_; }

  void step(const hawser::Gradients& gradients) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters_) parameter.sub_(gradients.at(parameter) * kRate);
  }

 private:
  at::Tensor weight_, bias_;
  std::vector<at::Tensor> parameters_{weight_, bias_};
};

hawser::NodeOptions options(const std::string& name, std::uint32_t rank, const std::string& path) {
  return {.name = name, .rendezvous = "file://" + path, .rank = rank, .world_size = 2};
}

int serve(const std::string& path) {
  at::manual_seed(1);
  Layer output(16, 1);
  auto forward =
      hawser::make_function("forward", [&](at::Tensor hidden) { return output.forward(hidden); });
  auto step = hawser::make_function("step", [&](const hawser::CallContext& call) {
    output.step(hawser::autograd::gradients(call.node(), *call.autograd_context()));
  });
  auto with_functions = options("worker", 1, path);
  with_functions.functions = {forward, step};
  hawser::Node(with_functions).shutdown();
  return 0;
}

int train(const std::string& path) {
  at::manual_seed(0);
  hawser::Node node(options("trainer", 0, path));
  Layer hidden(2, 16);
  const at::Tensor x = at::rand({64, 2}) * 2 - 1;
  const at::Tensor wanted = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);
  double first = 0, last = 0;
  for (int i = 0; i < kSteps; ++i) {
    hawser::autograd::Context context(node);
    const at::Tensor out =
        node.call<at::Tensor>("worker", "forward", hidden.forward(x).tanh()).get();
    const at::Tensor loss = (out - wanted).square().mean();
    context.backward({loss});
    // Both layers step at the same time, each with the gradients that it has in this context.
    const auto stepped = node.call<void>("worker", "step");
    hidden.step(context.gradients());
    stepped.get();
    last = loss.item<double>();
    if (i == 0) first = last;
    if (i % 40 == 0 || i == kSteps - 1) std::printf("step %3d  loss %.4f\n", i, last);
  }
  node.shutdown();
  return last < first / 4 ? 0 : 1;
}

}  // namespace

int main() {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("hawser-train-" + std::to_string(::getpid())))
          .string();
  const pid_t worker = ::fork();  // before either process has a thread
  if (worker == 0) return serve(path);
  const int outcome = train(path);
  int status = 0;
  ::waitpid(worker, &status, 0);
  std::filesystem::remove(path);
  return outcome != 0 ? outcome : WEXITSTATUS(status);
}
