#include "hawser/tensor/operator_rule.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "hawser/base/error.h"

namespace hawser::tensor {
namespace {

constexpr std::string_view kEverythingIn = "::*";

constexpr std::array<std::string_view, 2> kOpenFiles = {"aten::from_file", "aten::save"};

constexpr std::array<std::string_view, 5> kPrivate = {
    "aten::segment_reduce",                // `unsafe` turns its checks off
    "aten::to_here", "aten::local_value",  // of references
    "aten::get_gradients",                 // of any context
    "aten::wait"};

constexpr std::array<std::string_view, 5> kPrivateBeginnings = {
    "aten::empty", "aten::new_empty", "aten::resize",  // memory as it was found
    "aten::set",                                       // of another tensor, at any offset
    "aten::fbgemm_"};                                  // pointers in tensors

std::string_view namespace_of(std::string_view name) { return name.substr(0, name.find("::")); }

bool opens_files(std::string_view name) {
  return std::ranges::find(kOpenFiles, name) != kOpenFiles.end();
}

}  // namespace

bool is_public(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  if (schema.returns().empty() || opens_files(name)) return false;
  if (name.substr(namespace_of(name).size()).starts_with("::_")) return false;
  if (std::ranges::find(kPrivate, name) != kPrivate.end()) return false;
  return std::ranges::none_of(
      kPrivateBeginnings, [&](std::string_view beginning) { return name.starts_with(beginning); });
}

OperatorRule::OperatorRule(const std::vector<std::string>& allowed) : any_(false) {
  for (const std::string& one : allowed) {
    const std::size_t colons = one.find("::");
    const bool complete = colons != std::string::npos && colons > 0 && colons + 2 < one.size();
    if (!complete || one.find('.') != std::string::npos) {
      throw Error(ErrorKind::Invalid,
                  "operators are given as namespace::name or namespace::*, not '" + one + "'");
    }
    if (one.ends_with(kEverythingIn)) {
      namespaces_.insert(one.substr(0, colons));
    } else {
      names_.insert(one);
    }
  }
}

bool OperatorRule::allows(const c10::FunctionSchema& schema) const {
  const std::string& name = schema.name();
  if (any_) return !opens_files(name);
  if (names_.contains(name)) return true;
  return namespaces_.contains(namespace_of(name)) && is_public(schema);
}

void OperatorRule::check(const c10::FunctionSchema& schema) const {
  if (allows(schema)) return;
  throw Error(ErrorKind::Refused, schema.name() + " cannot be called by another node" +
                                      (any_ ? "" : ": it is not among its `operators`"));
}

}  // namespace hawser::tensor
