#include "hawser/tensor/operators.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hawser/base/error.h"
#include "hawser/tensor/convert.h"
#include "hawser/tensor/trip_for_test.h"

namespace hawser::tensor {
namespace {

using Args = std::vector<c10::IValue>;

// Through the wire, as a remote call would do it.
Args call(std::string_view name, const Args& args, const OperatorCatalog::Keywords& keywords = {}) {
  OperatorCatalog catalog;
  MatchedOperator matched = catalog.match(name, args, keywords);
  PayloadWriter out;
  write_value(out, std::move(matched.stack));
  Delivery delivery(out.finish());
  PayloadReader in(delivery.received);
  Args stack = read_value<Args>(in);
  in.finish();
  return run_operator(matched.name, std::move(stack), OperatorRule());
}

std::string chosen(std::string_view name, const Args& args) {
  return OperatorCatalog().match(name, args).name;
}

std::string refusal(std::string_view name, const Args& args,
                    const OperatorCatalog::Keywords& keywords = {}) {
  try {
    return "accepted as " + OperatorCatalog().match(name, args, keywords).name;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Invalid);
    return error.message();
  }
}

TEST(Operators, OverloadIsChosenByTheArguments) {
  const at::Tensor x = at::ones({2});
  EXPECT_EQ(chosen("aten::add", {x, x}), "aten::add.Tensor");
  EXPECT_EQ(chosen("aten::add", {x, 2}), "aten::add.Scalar");
  EXPECT_EQ(chosen("aten::add.Tensor", {x, x}), "aten::add.Tensor");
  EXPECT_EQ(chosen("aten::sum", {x}), "aten::sum");
  EXPECT_EQ(chosen("aten::sum", {x, std::vector<std::int64_t>{0}}), "aten::sum.dim_IntList");
  EXPECT_EQ(chosen("aten::std", {x}), "aten::std");
  EXPECT_EQ(chosen("aten::pow", {x, 2.0}), "aten::pow.Tensor_Scalar");
  EXPECT_EQ(chosen("aten::pow", {2.0, x}), "aten::pow.Scalar");
  EXPECT_EQ(chosen("aten::transpose", {x, 0, 0}), "aten::transpose.int");
}

TEST(Operators, ResultsAreThoseOfTheOperator) {
  const at::Tensor x = at::rand({3, 4}), y = at::rand({3, 4});
  EXPECT_TRUE(at::equal(call("aten::add", {x, y})[0].toTensor(), x.add(y)));
  EXPECT_TRUE(at::equal(call("aten::add", {x, y}, {{"alpha", 2}})[0].toTensor(), x.add(y, 2)));
  EXPECT_TRUE(at::equal(call("aten::sub", {2, x})[0].toTensor(), at::full({3, 4}, 2).sub(x)));
  EXPECT_EQ(call("aten::sub", {2, x})[0].toTensor().scalar_type(), c10::kFloat);
  EXPECT_EQ(call("aten::max", {x, 1}).size(), 2u);
  EXPECT_TRUE(at::equal(call("aten::zeros", {std::vector<std::int64_t>{2, 2}})[0].toTensor(),
                        at::zeros({2, 2})));
  EXPECT_TRUE(at::equal(call("aten::cat", {std::vector<at::Tensor>{x, y}})[0].toTensor(),
                        call("aten::cat", {std::vector<at::Tensor>{x, y}, 0})[0].toTensor()));
}

TEST(Operators, ListsThatLostTheirTypeOnTheWay) {
  const at::Tensor x = at::rand({1, 1, 8, 8});
  // int[2] from a single int, an empty int[], an optional list of optional tensors.
  EXPECT_EQ(call("aten::max_pool2d", {x, 2})[0].toTensor().sizes(), at::IntArrayRef({1, 1, 4, 4}));
  EXPECT_TRUE(
      at::equal(call("aten::mean", {x, std::vector<std::int64_t>{}})[0].toTensor(), x.mean()));
  c10::List<std::optional<at::Tensor>> index;
  index.push_back(at::zeros({1}, c10::kLong));
  EXPECT_TRUE(at::equal(call("aten::index", {x, index})[0].toTensor(), x));
}

TEST(Operators, NumberToFloatAndNumberToComplex) {
  const at::Tensor x = at::rand({3});
  EXPECT_TRUE(at::equal(call("aten::leaky_relu", {x, 1})[0].toTensor(), x));
  EXPECT_EQ(chosen("aten::dropout", {x, 1, false}), "aten::dropout");
}

TEST(Operators, RefusalsNameTheCandidates) {
  const at::Tensor x = at::ones({2});
  const std::string none = refusal("aten::add", {x, "two"});
  EXPECT_NE(none.find("aten::add.Tensor(Tensor self"), std::string::npos) << none;
  EXPECT_NE(none.find("argument 'other': expected"), std::string::npos) << none;
  EXPECT_NE(refusal("aten::clamp", {x}).find("fit equally well"), std::string::npos);
  EXPECT_NE(refusal("aten::no_such_operator", {x}).find("no operator"), std::string::npos);
  EXPECT_NE(refusal("aten::add.NoSuch", {x}).find("no operator"), std::string::npos);
  EXPECT_NE(refusal("add", {x}).find("namespace::name"), std::string::npos);
  EXPECT_NE(refusal("aten::relu", {x, 1}).find("too many"), std::string::npos);
  EXPECT_NE(refusal("aten::relu", {x}, {{"slope", 1}}).find("no argument of such a name"),
            std::string::npos);
  // Numbers become tensors only in arithmetic.
  EXPECT_NE(refusal("aten::relu", {1}).find("expected Tensor, got int"), std::string::npos);
}

TEST(Operators, RunningChecksThePeersStack) {
  const auto kind_of = [](std::string_view name, Args stack) {
    try {
      run_operator(name, std::move(stack), OperatorRule());
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::Remote;
  };
  EXPECT_EQ(kind_of("aten::relu", {}), ErrorKind::Invalid);
  EXPECT_EQ(kind_of("aten::relu", {5}), ErrorKind::Invalid);
  EXPECT_EQ(kind_of("aten::sum.dim_IntList", {at::ones({2}), "x", false, c10::IValue()}),
            ErrorKind::Invalid);
  EXPECT_EQ(kind_of("aten::nothing", {}), ErrorKind::Invalid);
  EXPECT_EQ(kind_of("aten::from_file", {}), ErrorKind::Refused);
}

TEST(Operators, WhatTheOperatorThrowsPassesThrough) {
  EXPECT_THROW(call("aten::mm", {at::ones({2, 3}), at::ones({2, 3})}), c10::Error);
}

}  // namespace
}  // namespace hawser::tensor
