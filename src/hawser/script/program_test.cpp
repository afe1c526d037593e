#include "hawser/script/program.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/class_type.h>
#include <ATen/core/function.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>

#include <functional>
#include <string>

#include "hawser/tensor/convert.h"
#include "hawser/tensor/trip_for_test.h"
#include "support/outcome.h"

namespace hawser::script {
namespace {

using tensor::Delivery;

constexpr const char* kSource = R"(
def scale(x: Tensor, k: float = 2.0) -> Tensor:
    return x * k

def total(xs: List[int], named: Dict[str, Tensor], extra: Optional[int]) -> Tensor:
    sum = torch.zeros(1)
    for x in xs:
        sum = sum + x
    for name in named:
        sum = sum + named[name]
    if extra is not None:
        sum = sum + extra
    return sum

def forked(x: Tensor) -> Tensor:
    return fork(scale, x).wait()

def fails(x: int) -> int:
    assert x == 0, "x must be nothing"
    return x

def later(x: Tensor) -> Future[Tensor]:
    return fork(scale, x)

def has_x(p: Point) -> int:
    return p.x
)";

// Knows torch, fork and the class Point.
struct Names final : torch::jit::NativeResolver {
  c10::TypePtr point;
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(
      const std::string& name, torch::jit::GraphFunction& in,
      const torch::jit::SourceRange& where) override {
    if (name == "fork") return torch::jit::SpecialFormValue::create(c10::prim::fork);
    return NativeResolver::resolveValue(name, in, where);
  }
  c10::TypePtr resolveType(const std::string& name, const torch::jit::SourceRange&) override {
    return name == "Point" ? point : nullptr;
  }
};

class ScriptProgram : public ::testing::Test {
 protected:
  ScriptProgram() : unit_(std::make_shared<torch::jit::CompilationUnit>()) {
    point_ = c10::ClassType::create(c10::QualifiedName("shapes.Point"), unit_);
    point_->addAttribute("x", c10::IntType::get());
    point_->addAttribute("weights", c10::ListType::ofFloats());
    unit_->register_type(point_);
    auto names = std::make_shared<Names>();
    names->point = point_;
    unit_->define(c10::QualifiedName("model"), kSource, names, nullptr);
    program_.emplace(unit_);
  }

  c10::IValue point(std::int64_t x) {
    auto object = c10::ivalue::Object::create(c10::StrongTypePtr(unit_, point_), 2);
    object->setSlot(0, x);
    object->setSlot(1, c10::List<double>({0.5, 1.5}));
    return object;
  }

  // What a peer that calls gets.
  c10::IValue called(const std::string& name, Stack stack, bool asynchronous = false) {
    Delivery delivery(write_call(std::move(stack), asynchronous));
    c10::IValue result = start(program_->read(name, delivery.received, rule_), run_here_);
    while (result.isFuture()) {
      const auto future = result.toFuture();
      future->waitAndThrow();
      result = future->value();
    }
    return result;
  }

  std::shared_ptr<torch::jit::CompilationUnit> unit_;
  c10::ClassTypePtr point_;
  std::optional<Program> program_;
  tensor::OperatorRule rule_;
  int launched_ = 0;
  Launcher run_here_ = [this](std::function<void()> task) {
    ++launched_;
    task();
  };
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ScriptProgram, RunsAFunctionByItsName) {
  EXPECT_TRUE(at::equal(called("model.scale", {at::ones({2}), 3.0}).toTensor(), at::ones({2}) * 3));
}

TEST_F(ScriptProgram, FillsInWhatTheCallerDoesNotKnow) {
  EXPECT_TRUE(at::equal(called("model.scale", {at::ones({2})}).toTensor(), at::ones({2}) * 2));
}

TEST_F(ScriptProgram, ContainersGetTheTypesThatTravelLost) {
  c10::Dict<std::string, at::Tensor> named;
  named.insert("a", at::ones({1}));
  EXPECT_EQ(
      called("model.total", {c10::List<std::int64_t>({1, 2}), named, 5}).toTensor().item<double>(),
      9);
  // Nothing says what an empty container is made of.
  EXPECT_EQ(called("model.total",
                   {c10::List<std::int64_t>(), c10::Dict<std::string, at::Tensor>(), c10::IValue()})
                .toTensor()
                .item<double>(),
            0);
}

TEST_F(ScriptProgram, ForksRunWhereTheLauncherSays) {
  EXPECT_TRUE(at::equal(called("model.forked", {at::ones({2})}).toTensor(), at::ones({2}) * 2));
  EXPECT_GE(launched_, 1);
}

TEST_F(ScriptProgram, AsynchronousFunctionsAnswerWithTheirFuture) {
  EXPECT_TRUE(
      at::equal(called("model.later", {at::ones({2})}, true).toTensor(), at::ones({2}) * 2));
  EXPECT_TRUE(contains(testing::message_of([&] { called("model.scale", {at::ones({2})}, true); }),
                       "must return an IValue of Future type, but got Tensor"));
}

TEST_F(ScriptProgram, WhatAFunctionRaisesIsThrown) {
  EXPECT_TRUE(
      contains(testing::message_of([&] { called("model.fails", {1}); }), "x must be nothing"));
}

TEST_F(ScriptProgram, ArgumentsThatDoNotFitNameTheSchema) {
  const std::string message = testing::message_of([&] { called("model.scale", {"text"}); });
  EXPECT_TRUE(contains(message, "scale(Tensor x, float k=2.)")) << message;
}

TEST_F(ScriptProgram, RefusesFunctionsThatAreNotThere) {
  EXPECT_TRUE(contains(testing::message_of([&] { called("model.missing", {}); }),
                       "attempted to get undefined function missing"));
  EXPECT_TRUE(contains(testing::message_of([&] { program_->get("model.missing"); }),
                       "attempted to get undefined function missing"));
  EXPECT_EQ(program_->find("model.missing"), nullptr);
}

TEST_F(ScriptProgram, RunsOperatorsOfTheInterpreterThatTheRuleAllows) {
  const auto interpreted = [&](const std::string& name, Stack stack) {
    PayloadWriter out;
    const auto inside = out.nest();
    out.tuple(stack.size());
    for (const c10::IValue& value : stack) write_ivalue(out, value);
    Delivery delivery(out.finish());
    return start(program_->read(name, delivery.received, rule_), run_here_);
  };
  const auto refusal = [&](const std::string& name, Stack stack) {
    return testing::message_of([&] { interpreted(name, std::move(stack)); });
  };
  constexpr const char* kRefused = "cannot be called by another node";
  EXPECT_EQ(interpreted("op:aten::add.int", {2, 3}).toInt(), 5);
  EXPECT_TRUE(contains(refusal("op:aten::save", {1, "file"}), kRefused));
  EXPECT_TRUE(contains(refusal("op:prim::exit", {}), kRefused));
  EXPECT_TRUE(contains(refusal("op:aten::no_such", {}), "no operator"));

  // It has no result, and must not have run when that is noticed.
  ASSERT_TRUE(c10::GradMode::is_enabled());
  EXPECT_TRUE(contains(refusal("op:aten::set_grad_enabled", {false}), kRefused));
  EXPECT_TRUE(c10::GradMode::is_enabled());

  rule_ = tensor::OperatorRule({"aten::sub"});
  EXPECT_EQ(interpreted("op:aten::sub.int", {2, 3}).toInt(), -1);
  EXPECT_TRUE(contains(refusal("op:aten::add.int", {2, 3}), kRefused));
}

// ------------------------------------------------------------------------------- classes

TEST_F(ScriptProgram, KnowsRegisteredClassesUnlessToldOtherwise) {
  const std::string name = "__torch__.torch.classes.quantized.LinearPackedParamsBase";
  EXPECT_NE(program_->find_type(name), nullptr);
  const Program careful(unit_, nullptr, Program::RegisteredClasses::Unknown);
  EXPECT_EQ(careful.find_type(name), nullptr);
  EXPECT_EQ(careful.find_type("shapes.Point"), point_);
}

TEST_F(ScriptProgram, InstancesOfClassesTravel) {
  EXPECT_EQ(called("model.has_x", {point(7)}).toInt(), 7);

  Delivery delivery(write_result(nullptr, point(3)));
  const c10::IValue arrived = program_->read_result(delivery.received, point_);
  EXPECT_EQ(arrived.toObjectRef().getAttr("x").toInt(), 3);
  EXPECT_EQ(arrived.toObjectRef().getAttr("weights").toDoubleVector(),
            (std::vector<double>{0.5, 1.5}));
}

TEST_F(ScriptProgram, RefusesInstancesThatAreOtherwiseHere) {
  const auto read = [&](const std::function<void(PayloadWriter&)>& write) {
    PayloadWriter out;
    {
      const auto inside = out.nest();
      write(out);
    }
    Delivery delivery(out.finish());
    return testing::message_of([&] { program_->read_result(delivery.received, nullptr); });
  };
  EXPECT_TRUE(contains(read([](PayloadWriter& out) {
                         out.record("torch.object", 1);
                         out.string(std::string_view("shapes.Circle"));
                       }),
                       "'shapes.Circle' is not known here"));
  EXPECT_TRUE(contains(read([](PayloadWriter& out) {
                         out.record("torch.object", 2);
                         out.string(std::string_view("shapes.Point"));
                         out.integer(1);
                       }),
                       "has 2 attributes here, 1 were sent"));
  EXPECT_TRUE(contains(read([](PayloadWriter& out) {
                         out.record("torch.object", 3);
                         out.string(std::string_view("shapes.Point"));
                         out.string(std::string_view("one"));
                         out.null();
                       }),
                       "'shapes.Point.x' is a int here, a str was sent"));
  EXPECT_TRUE(contains(read([](PayloadWriter& out) {
                         out.record("torch.state", 2);
                         out.string(std::string_view("shapes.Point"));
                         out.null();
                       }),
                       "no __setstate__"));
  EXPECT_TRUE(
      contains(read([](PayloadWriter& out) { out.record("torch.object", 0); }), "malformed value"));
}

TEST_F(ScriptProgram, ReadsTypesByTheirNames) {
  EXPECT_EQ(*program_->parse_type("List[Tensor]"), *c10::ListType::ofTensors());
  EXPECT_EQ(program_->parse_type("shapes.Point"), point_);
  EXPECT_EQ(program_->parse_type("no type at all"), nullptr);
  EXPECT_EQ(program_->parse_type(""), nullptr);
}

TEST_F(ScriptProgram, LooksUpOnceAndOnlyWhenItMay) {
  int looked = 0;
  const Program guarded(unit_, [&](const std::function<void()>& look) {
    ++looked;
    look();
  });
  EXPECT_EQ(guarded.find("model.scale"), program_->find("model.scale"));
  EXPECT_EQ(guarded.find("model.scale"), program_->find("model.scale"));
  EXPECT_EQ(looked, 1);
}

// ------------------------------------------------------------------------------- writing

TEST_F(ScriptProgram, StacksAreCompletedByKeywordsAndDefaults) {
  const auto& schema = program_->get("model.scale").getSchema();
  EXPECT_EQ(complete_stack(schema, {at::ones({1})}, {}).at(1).toDouble(), 2);
  EXPECT_EQ(complete_stack(schema, {at::ones({1})}, {{"k", 3}}).at(1).toDouble(), 3);
  const auto refused = [&](Stack positional, std::unordered_map<std::string, c10::IValue> named) {
    return testing::message_of([&] { complete_stack(schema, std::move(positional), named); });
  };
  EXPECT_TRUE(contains(refused({}, {}), "missing value for argument 'x'. Declaration: "));
  EXPECT_TRUE(contains(refused({at::ones({1}), 1.0, 2.0}, {}), "expected at most 2"));
  EXPECT_TRUE(contains(refused({at::ones({1})}, {{"z", 1}}), "Unknown keyword argument 'z'"));
  EXPECT_TRUE(contains(refused({at::ones({1})}, {{"k", "text"}}), "type 'float'"));
}

TEST_F(ScriptProgram, PositionalArgumentsAreFittedToTheirTypes) {
  const auto& schema = program_->get("model.scale").getSchema();
  Stack stack{at::ones({1}), 3};
  fit_types(schema, stack);
  EXPECT_TRUE(stack.at(1).isDouble());
  stack = {"text"};
  const std::string refused = testing::message_of([&] { fit_types(schema, stack); });
  EXPECT_TRUE(contains(refused, "expected a value of type 'Tensor' for argument 'x' but got 'str'"))
      << refused;
  EXPECT_TRUE(contains(refused, "Declaration: scale(Tensor x, float k=2.)")) << refused;
}

}  // namespace
}  // namespace hawser::script
