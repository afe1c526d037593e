#include "hawser/script/operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/function.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/ir/irparser.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hawser/tensor/trip_for_test.h"
#include "support/outcome.h"

namespace hawser::script {
namespace {

// Runs calls in this process and remembers them.
class FakeHost final : public Host {
 public:
  explicit FakeHost(std::shared_ptr<torch::jit::CompilationUnit> unit)
      : program_(std::move(unit)) {}

  const Program& program() const override { return program_; }
  c10::intrusive_ptr<c10::ivalue::Future> call(OutgoingCall&& call) override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(call.returns);
    future->markCompleted(call_and_wait(std::move(call)));
    return future;
  }
  c10::IValue call_and_wait(OutgoingCall&& call) override {
    calls.push_back({call.to, call.function, {}, call.returns, call.timeout});
    tensor::Delivery delivery(std::move(call.payload));
    return start(program_.read(call.function, delivery.received, tensor::OperatorRule()),
                 [](std::function<void()> task) { task(); });
  }
  c10::intrusive_ptr<c10::RRefInterface> create(OutgoingCall&&) override { return nullptr; }
  c10::Dict<at::Tensor, at::Tensor> gradients(std::int64_t context) override {
    c10::Dict<at::Tensor, at::Tensor> one;
    one.insert(at::ones({1}), at::full({1}, static_cast<double>(context)));
    return one;
  }
  void backward(std::int64_t context, const std::vector<at::Tensor>& roots,
                bool retain_graph) override {
    passes.emplace_back(context, roots.size(), retain_graph);
  }

  std::vector<OutgoingCall> calls;
  std::vector<std::tuple<std::int64_t, std::size_t, bool>> passes;

 private:
  const Program program_;
};

class FakeReference final : public Reference {
 public:
  explicit FakeReference(bool mine)
      : Reference(1, torch::distributed::rpc::GloballyUniqueId(1, 2), c10::TensorType::get()),
        mine_(mine) {}

  bool isOwner() const override { return mine_; }
  bool confirmedByOwner() const override { return true; }
  std::string ownerName() const override { return "owner"; }
  c10::IValue to_here(std::optional<Duration> timeout, const c10::TypePtr& declared) override {
    asked_for = declared;
    given = timeout;
    return at::ones({2});
  }
  c10::IValue local_value(const c10::TypePtr&) override { return at::ones({3}); }
  std::shared_ptr<ScriptableReference> carried() const override { return nullptr; }

  c10::TypePtr asked_for;
  std::optional<Duration> given;

 private:
  const bool mine_;
};

FakeHost* current = nullptr;
Host* find_host() { return current; }

class ScriptOperators : public ::testing::Test {
 protected:
  ScriptOperators() : unit_(std::make_shared<torch::jit::CompilationUnit>()), host_(unit_) {
    replace_operators(&find_host);
    unit_->define(c10::QualifiedName("m"), R"(
def scale(x: Tensor, k: float = 2.0) -> Tensor:
    return x * k
def fetch(r: RRef[Tensor]) -> Tensor:
    return r.to_here()
def fetch_within(r: RRef[Tensor], seconds: float) -> Tensor:
    return r.to_here(seconds)
def look(r: RRef[Tensor]) -> Tensor:
    return r.local_value()
def describe(r: RRef[Tensor]) -> Tuple[bool, str, bool]:
    return r.is_owner(), r.owner_name(), r.confirmed_by_owner()
)",
                  torch::jit::nativeResolver(), nullptr);
    current = &host_;
  }
  ~ScriptOperators() override { current = nullptr; }

  // One of the operators as a script function of its own: the frontend for them is Python's.
  c10::IValue run_call(const std::string& kind, const std::string& result, Stack arguments) {
    auto graph = std::make_shared<torch::jit::Graph>();
    torch::jit::parseIR(R"IR(
graph(%to : str, %args : (Tensor), %keywords : Dict(str, Any), %timeout : float):
  %function : str = prim::Constant[value="m.scale"]()
  %result : )IR" + result +
                            " = prim::" + kind + R"IR((%to, %function, %args, %keywords, %timeout)
  return (%result))IR",
                        graph.get());
    auto* const function =
        unit_->create_function(c10::QualifiedName("m.caller" + std::to_string(++made_)), graph);
    return (*function)(std::move(arguments));
  }

  Stack arguments(double timeout, c10::impl::GenericDict keywords = no_keywords()) {
    return {"worker", c10::ivalue::Tuple::create(at::ones({2})), keywords, timeout};
  }
  static c10::impl::GenericDict no_keywords() {
    return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get());
  }

  std::shared_ptr<torch::jit::CompilationUnit> unit_;
  FakeHost host_;
  int made_ = 0;
};

TEST_F(ScriptOperators, CallsGoThroughTheHost) {
  EXPECT_TRUE(
      at::equal(run_call("rpc_sync", "Tensor", arguments(-1)).toTensor(), at::ones({2}) * 2));
  ASSERT_EQ(host_.calls.size(), 1u);
  EXPECT_EQ(host_.calls[0].to, "worker");
  EXPECT_EQ(host_.calls[0].function, "m.scale");
  EXPECT_EQ(*host_.calls[0].returns, *c10::TensorType::get());
  EXPECT_FALSE(host_.calls[0].timeout);

  const auto future = run_call("rpc_async", "Future(Tensor)", arguments(-1)).toFuture();
  EXPECT_TRUE(at::equal(future->value().toTensor(), at::ones({2}) * 2));
}

TEST_F(ScriptOperators, TimeLimitsMeanWhatTheySay) {
  run_call("rpc_sync", "Tensor", arguments(0));
  run_call("rpc_sync", "Tensor", arguments(0.0005));
  run_call("rpc_sync", "Tensor", arguments(1e300));
  EXPECT_EQ(host_.calls[0].timeout, Duration::max());
  EXPECT_EQ(host_.calls[1].timeout, std::chrono::microseconds(500));
  EXPECT_EQ(host_.calls[2].timeout, Duration::max());
  EXPECT_NE(
      testing::message_of([&] { run_call("rpc_sync", "Tensor", arguments(-2)); }).find("negative"),
      std::string::npos);
}

TEST_F(ScriptOperators, KeywordsAreHeldAgainstTheSchema) {
  auto keywords = no_keywords();
  keywords.insert("k", 4.0);
  EXPECT_TRUE(at::equal(run_call("rpc_sync", "Tensor", arguments(-1, keywords)).toTensor(),
                        at::ones({2}) * 4));
  keywords.insert("other", 1);
  const std::string message =
      testing::message_of([&] { run_call("rpc_sync", "Tensor", arguments(-1, keywords)); });
  EXPECT_NE(message.find("Unknown keyword argument 'other'"), std::string::npos) << message;
  EXPECT_NE(message.find("scale(Tensor x, float k=2.)"), std::string::npos) << message;
}

TEST_F(ScriptOperators, ReferencesAreAskedThemselves) {
  const auto reference = c10::make_intrusive<FakeReference>(false);
  const c10::IValue value{c10::intrusive_ptr<c10::RRefInterface>(reference)};
  EXPECT_TRUE(at::equal(unit_->get_function(c10::QualifiedName("m.fetch"))({value}).toTensor(),
                        at::ones({2})));
  EXPECT_FALSE(reference->given);  // the node's own limit
  EXPECT_EQ(*reference->asked_for, *c10::TensorType::get());
  unit_->get_function(c10::QualifiedName("m.fetch_within"))({value, 2.5});
  EXPECT_EQ(reference->given, std::chrono::milliseconds(2500));
  const auto described =
      unit_->get_function(c10::QualifiedName("m.describe"))({value}).toTupleRef().elements().vec();
  EXPECT_FALSE(described[0].toBool());
  EXPECT_EQ(described[1].toStringRef(), "owner");
  EXPECT_TRUE(described[2].toBool());
  EXPECT_NE(testing::message_of([&] {
              unit_->get_function(c10::QualifiedName("m.look"))({value});
            }).find("Can't call RRef.local_value() on a non-owner RRef."),
            std::string::npos);
  const c10::IValue mine(
      c10::intrusive_ptr<c10::RRefInterface>(c10::make_intrusive<FakeReference>(true)));
  EXPECT_TRUE(at::equal(unit_->get_function(c10::QualifiedName("m.look"))({mine}).toTensor(),
                        at::ones({3})));
}

// With Python they are then torch's own: tests/python/test_scripts.py.
TEST_F(ScriptOperators, AutogradGoesThroughTheHost) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(R"IR(
graph(%context : int, %roots : Tensor[], %retain : bool):
  aten::dist_backward(%context, %roots, %retain)
  %gradients : Dict(Tensor, Tensor) = aten::get_gradients(%context)
  return (%gradients))IR",
                      graph.get());
  auto* const step = unit_->create_function(c10::QualifiedName("m.step"), graph);
  const std::vector<at::Tensor> roots{at::ones({}), at::ones({})};
  const c10::IValue gradients = (*step)({7, roots, true});
  EXPECT_EQ(gradients.toGenericDict().begin()->value().toTensor().item<double>(), 7);
  ASSERT_EQ(host_.passes.size(), 1u);  // it was not optimised away
  EXPECT_EQ(host_.passes[0], std::tuple(7, 2u, true));
}

TEST_F(ScriptOperators, WithoutAHostTheySaySo) {
  current = nullptr;
  EXPECT_NE(testing::message_of([&] {
              run_call("rpc_sync", "Tensor", arguments(-1));
            }).find("no node in this process"),
            std::string::npos);
  EXPECT_TRUE(host_.calls.empty());
}

}  // namespace
}  // namespace hawser::script
