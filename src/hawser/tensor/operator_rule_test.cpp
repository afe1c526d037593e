#include "hawser/tensor/operator_rule.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <gtest/gtest.h>

#include "hawser/base/error.h"

namespace hawser::tensor {
namespace {

bool allowed(const OperatorRule& rule, const char* name, const char* overload = "") {
  try {
    rule.check(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema());
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Refused);
    return false;
  }
}

TEST(OperatorRule, WithoutNamesAnyIsAllowedThatOpensNoFile) {
  const OperatorRule rule;
  EXPECT_TRUE(allowed(rule, "aten::add", "Tensor"));
  EXPECT_TRUE(allowed(rule, "aten::_reshape_alias"));
  EXPECT_TRUE(allowed(rule, "aten::empty", "memory_format"));
  EXPECT_FALSE(allowed(rule, "aten::from_file"));
  EXPECT_FALSE(allowed(rule, "aten::from_file", "out"));
}

TEST(OperatorRule, ANamespaceIsItsPublicOperators) {
  const OperatorRule rule({"aten::*"});
  EXPECT_TRUE(allowed(rule, "aten::add", "Tensor"));
  EXPECT_TRUE(allowed(rule, "aten::as_strided"));
  EXPECT_TRUE(allowed(rule, "aten::zeros"));
  EXPECT_FALSE(allowed(rule, "aten::from_file"));
  EXPECT_FALSE(allowed(rule, "aten::_reshape_alias"));          // checks no bounds
  EXPECT_FALSE(allowed(rule, "aten::empty", "memory_format"));  // whatever was in that memory
  EXPECT_FALSE(allowed(rule, "aten::new_empty"));
  EXPECT_FALSE(allowed(rule, "aten::resize_"));
  EXPECT_FALSE(allowed(rule, "aten::set_data"));
  EXPECT_FALSE(allowed(rule, "aten::segment_reduce"));
  EXPECT_FALSE(allowed(rule, "aten::fbgemm_pack_gemm_matrix_fp16"));
  EXPECT_FALSE(allowed(rule, "quantized::add"));
}

TEST(OperatorRule, ANameIsThatOperatorWhateverItIs) {
  const OperatorRule rule({"aten::from_file", "quantized::*", "aten::add"});
  EXPECT_TRUE(allowed(rule, "aten::from_file"));
  EXPECT_TRUE(allowed(rule, "quantized::add"));
  EXPECT_TRUE(allowed(rule, "aten::add", "Scalar"));
  EXPECT_FALSE(allowed(rule, "aten::add_", "Tensor"));
  EXPECT_FALSE(allowed(rule, "aten::sub", "Tensor"));
  EXPECT_FALSE(allowed(OperatorRule(std::vector<std::string>{}), "aten::add", "Tensor"));
}

TEST(OperatorRule, OtherPatternsAreAnError) {
  for (const char* wrong : {"add", "*", "aten::", "::add", "aten::add.Tensor", ""}) {
    EXPECT_THROW(OperatorRule(std::vector<std::string>{wrong}), Error) << wrong;
  }
}

}  // namespace
}  // namespace hawser::tensor
