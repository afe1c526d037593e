#include "hawser/node/scripts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/class_type.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/ir/irparser.h>

#include <functional>
#include <memory>
#include <string>

#include "hawser/node/ref.h"
#include "hawser/node/script_reference.h"
#include "support/memory_store.h"
#include "support/outcome.h"

namespace hawser {
namespace {

using namespace std::chrono_literals;

constexpr const char* kSource = R"(
def scale(x: Tensor, k: float = 2.0) -> Tensor:
    return x * k
def fetch(r: RRef[Tensor]) -> Tensor:
    return r.to_here()
def look(r: RRef[Tensor]) -> Tensor:
    return r.local_value()
def total(rs: List[RRef[Tensor]]) -> Tensor:
    sum = torch.zeros(2)
    for r in rs:
        sum = sum + r.to_here()
    return sum
def both(r: RRef[Tensor]) -> Dict[str, RRef[Tensor]]:
    return {"one": r, "two": r}
def names(r: RRef[Tensor]) -> Tuple[bool, str, bool]:
    return r.is_owner(), r.owner_name(), r.confirmed_by_owner()
def fails(x: Tensor) -> Tensor:
    assert x.numel() == 0, "x must be empty"
    return x
)";

// Calls m.scale on `to` with x, one way or the other.
constexpr const char* kCallingSync = R"IR(
graph(%to : str, %x : Tensor):
  %function : str = prim::Constant[value="m.scale"]()
  %args : (Tensor) = prim::TupleConstruct(%x)
  %result : Tensor = prim::rpc_sync(%to, %function, %args)
  return (%result))IR";
constexpr const char* kCallingAsync = R"IR(
graph(%to : str, %x : Tensor):
  %function : str = prim::Constant[value="m.scale"]()
  %args : (Tensor) = prim::TupleConstruct(%x)
  %future : Future(Tensor) = prim::rpc_async(%to, %function, %args)
  %result : Tensor = aten::wait(%future)
  return (%result))IR";
constexpr const char* kCreating = R"IR(
graph(%to : str, %x : Tensor):
  %function : str = prim::Constant[value="m.scale"]()
  %args : (Tensor) = prim::TupleConstruct(%x)
  %ref : RRef(Tensor) = prim::rpc_remote(%to, %function, %args)
  return (%ref))IR";

std::shared_ptr<torch::jit::CompilationUnit> compiled() {
  replace_script_operators();
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  unit->define(c10::QualifiedName("m"), kSource, torch::jit::nativeResolver(), nullptr);
  const auto add = [&](const std::string& name, const char* source) {
    auto graph = std::make_shared<torch::jit::Graph>();
    torch::jit::parseIR(source, graph.get());
    unit->create_function(c10::QualifiedName("m." + name), graph);
  };
  add("call", kCallingSync);
  add("call_async", kCallingAsync);
  add("create", kCreating);
  return unit;
}

// "a" and "b" have the same scripts, each compiled for itself; "c" has none.
class ScriptNodes : public ::testing::Test {
 protected:
  NodeOptions options(const std::string& name, std::uint32_t rank, bool with_scripts) {
    NodeOptions options;
    options.name = name;
    options.store = store_;
    options.rank = rank;
    options.world_size = 3;
    options.call_timeout = 20s;
    if (with_scripts) options.scripts = std::make_shared<script::Program>(compiled());
    return options;
  }

  std::shared_ptr<testing::MemoryStore> store_ = std::make_shared<testing::MemoryStore>();
  Node a_{options("a", 0, true)};
  Node b_{options("b", 1, true)};
  Node c_{options("c", 2, false)};
  const at::Tensor ones_ = at::ones({2});
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ScriptNodes, CallsByQualifiedName) {
  EXPECT_TRUE(at::equal(a_.call_script<at::Tensor>("b", "m.scale", ones_).get(), ones_ * 2));
  EXPECT_TRUE(at::equal(a_.call_script<at::Tensor>("b", "m.scale", ones_, 3.0).get(), ones_ * 3));
  // One that has no scripts can call them elsewhere.
  EXPECT_TRUE(at::equal(c_.call_script<at::Tensor>("a", "m.scale", ones_).get(), ones_ * 2));
}

TEST_F(ScriptNodes, MismatchesNameTheSchemaWhereItIsKnown) {
  EXPECT_TRUE(contains(testing::message_of([&] { a_.call_script("b", "m.scale"); }),
                       "missing value for argument 'x'. Declaration: scale(Tensor x"));
  EXPECT_TRUE(contains(testing::message_of([&] { c_.call_script("b", "m.scale").get(); }),
                       "scale(Tensor x"));
  // Nobody waits for an answer: the caller refuses it by itself.
  const std::string wrong = testing::message_of([&] { a_.call_script("b", "m.scale", "text"); });
  EXPECT_TRUE(contains(wrong, "expected a value of type 'Tensor' for argument 'x' but got 'str'"))
      << wrong;
  EXPECT_TRUE(contains(wrong, "Declaration: scale(Tensor x, float k=2.)")) << wrong;
  EXPECT_TRUE(contains(testing::message_of([&] {
                         a_.remote_script<at::Tensor>({.to = "b"}, "m.scale", ones_, "text");
                       }),
                       "for argument 'k'"));
  EXPECT_TRUE(contains(testing::message_of([&] { a_.call_script("b", "m.missing").get(); }),
                       "undefined function missing"));
  EXPECT_TRUE(contains(testing::message_of([&] { a_.call_script("c", "m.scale", ones_).get(); }),
                       "does not run script functions"));
  EXPECT_TRUE(contains(testing::message_of([&] { a_.call_script("b", "m.fails", ones_).get(); }),
                       "x must be empty"));
}

TEST_F(ScriptNodes, ScriptsCallScripts) {
  for (const char* const name : {"m.call", "m.call_async"}) {
    // On "b", which calls "a".
    EXPECT_TRUE(at::equal(a_.call_script<at::Tensor>("b", name, "a", ones_).get(), ones_ * 2))
        << name;
  }
  // On this thread: the oldest node of the process makes the call.
  EXPECT_TRUE(at::equal(a_.scripts().program().get("m.call")({"b", ones_}).toTensor(), ones_ * 2));
}

TEST_F(ScriptNodes, ResultsStayBehindReferences) {
  const Ref<at::Tensor> ref = a_.remote_script<at::Tensor>({.to = "b"}, "m.scale", ones_);
  EXPECT_TRUE(at::equal(ref.fetch().get(), ones_ * 2));
  EXPECT_TRUE(at::equal(a_.call<at::Tensor>("b", "aten::add", ones_, 1).get(), ones_ * 2));
}

TEST_F(ScriptNodes, ReferencesAreArgumentsAndResults) {
  const Ref<at::Tensor> ref = a_.remote_script<at::Tensor>({.to = "b"}, "m.scale", ones_);
  const c10::IValue value(ref.handle()->as_rref(ref.handle(), c10::TensorType::get()));
  for (const char* const to : {"a", "b"}) {
    EXPECT_TRUE(at::equal(a_.call_script<at::Tensor>(to, "m.fetch", value).get(), ones_ * 2)) << to;
  }
  EXPECT_TRUE(at::equal(a_.call_script<at::Tensor>("b", "m.look", value).get(), ones_ * 2));
  EXPECT_TRUE(contains(testing::message_of([&] { a_.call_script("a", "m.look", value).get(); }),
                       "non-owner RRef"));
  c10::impl::GenericList list(c10::RRefType::create(c10::TensorType::get()));
  list.push_back(value);
  list.push_back(value);
  EXPECT_TRUE(at::equal(a_.call_script<at::Tensor>("b", "m.total", list).get(), ones_ * 4));
  const c10::IValue both = a_.call_script("b", "m.both", value).get();
  const auto returned = both.toGenericDict().at("two").toRRef();
  EXPECT_EQ(returned->ownerName(), "b");
  EXPECT_EQ(returned->owner(), 1);
  auto* const reference = dynamic_cast<ScriptReference*>(returned.get());
  ASSERT_NE(reference, nullptr);
  EXPECT_TRUE(at::equal(reference->to_here(std::nullopt, nullptr).toTensor(), ones_ * 2));
}

TEST_F(ScriptNodes, ReferencesTellAboutThemselves) {
  const Ref<at::Tensor> ref = a_.remote_script<at::Tensor>({.to = "b"}, "m.scale", ones_);
  ref.fetch().get();
  const c10::IValue value(ref.handle()->as_rref(ref.handle(), nullptr));
  EXPECT_EQ(*value.toRRef()->type(), *c10::TensorType::get());
  const auto told = a_.call_script("b", "m.names", value).get().toTupleRef().elements().vec();
  EXPECT_TRUE(told[0].toBool());
  EXPECT_EQ(told[1].toStringRef(), "b");
  const auto own = a_.ref(at::ones({3}));
  const c10::IValue here(own.handle()->as_rref(own.handle(), nullptr));
  EXPECT_EQ(*here.toRRef()->type(), *c10::TensorType::get());
}

TEST_F(ScriptNodes, ScriptsCreateReferences) {
  const c10::IValue made = a_.call_script("b", "m.create", "a", ones_).get();
  EXPECT_EQ(made.toRRef()->ownerName(), "a");
  EXPECT_TRUE(made.toRRef()->isOwner());
  EXPECT_TRUE(at::equal(a_.call_script<at::Tensor>("b", "m.fetch", made).get(), ones_ * 2));
}

TEST_F(ScriptNodes, AFailedCreationIsSaidWhereTheValueIsWanted) {
  const Ref<at::Tensor> ref = a_.remote_script<at::Tensor>({.to = "b"}, "m.fails", ones_);
  const c10::IValue value(ref.handle()->as_rref(ref.handle(), c10::TensorType::get()));
  EXPECT_TRUE(contains(testing::message_of([&] { a_.call_script("a", "m.fetch", value).get(); }),
                       "x must be empty"));
}

TEST(ScriptErrors, HaveTheWordsThatProgramsLookFor) {
  const auto text = [](const Error& error) { return std::string(as_call_error(error).what()); };
  EXPECT_TRUE(contains(
      text(Error(ErrorKind::Timeout, "late", {.node = "b", .function = "f", .budget = 500ms})),
      "RPC ran for more than set timeout (500 ms)"));
  EXPECT_TRUE(contains(text(Error(ErrorKind::Timeout, std::string(kNotCreated) + "late")),
                       "RRef creation via rpc.remote() timed out, and it is possible"));
  EXPECT_TRUE(contains(text(Error(ErrorKind::PeerLost, std::string(kNotCreated) + "gone")),
                       "RRef creation via rpc.remote() failed (gone), and"));
  EXPECT_EQ(text(Error(ErrorKind::Remote, "as it is")), "as it is");
}

}  // namespace
}  // namespace hawser
