#include "hawser/optim/stepper.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace hawser::optim {
namespace {

// A parameter can be given other memory (`module.to`, `.data = ...`).
bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.storage().is_alias_of(b.storage()) &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device();
}

// Calls `visit(rule, slot, gradient)` for every parameter that has one, as long as it says true.
template <class Visit>
bool for_each(const std::vector<Plan::AnyGroup>& groups, const Gradients& gradients, Visit visit) {
  const auto in_group = [&](const auto& group) {
    return std::ranges::all_of(group.slots, [&](const auto& slot) {
      const auto found = gradients.find(slot.leaf);
      return found == gradients.end() || visit(group.rule, slot, found->value());
    });
  };
  return std::ranges::all_of(
      groups, [&](const Plan::AnyGroup& group) { return std::visit(in_group, group); });
}

}  // namespace

void Stepper::lock() {
  mutex_.lock();
  turns_.lock();
}

void Stepper::unlock() {
  turns_.unlock();
  mutex_.unlock();
}

void Stepper::take_turns(Turns turns) {
  turns_.unlock();
  turns_ = std::move(turns);
  turns_.lock();
}

bool Stepper::step(const Gradients& gradients) {
  if (!plan_) return false;
  const bool provided_for = for_each(
      plan_->groups, gradients, [](const auto& rule, const auto& slot, const at::Tensor& gradient) {
        return is_same_memory(slot.leaf, slot.target) &&
               applies(rule, Change{slot.target, gradient}, slot.state);
      });
  if (!provided_for) return false;
  const c10::NoGradGuard not_recorded;
  RECORD_USER_SCOPE(plan_->label);
  for_each(plan_->groups, gradients,
           [](const auto& rule, const auto& slot, const at::Tensor& gradient) {
             apply(rule, Change{slot.target, gradient}, slot.state);
             return true;
           });
  return true;
}

}  // namespace hawser::optim
