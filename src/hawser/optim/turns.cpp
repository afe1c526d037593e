#include "hawser/optim/turns.h"

#include <c10/util/intrusive_ptr.h>

#include <ranges>
#include <unordered_map>

#include "hawser/base/guarded.h"

namespace hawser::optim {

// The locks of all parameters of the process that have one.
class TurnBook {
 public:
  Turns look_up(std::span<const at::Tensor> parameters) {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.parameter.expired(); });
    std::shared_ptr<Turns::Turn> fresh;
    std::vector<std::shared_ptr<Turns::Turn>> found;
    for (const at::Tensor& parameter : parameters) {
      const auto [entry, is_new] = entries_.try_emplace(
          parameter.unsafeGetTensorImpl(), Entry{Parameter(parameter.getIntrusivePtr()), nullptr});
      if (is_new) {
        if (!fresh) fresh = std::make_shared<Turns::Turn>(next_number_++);
        entry->second.turn = fresh;
      }
      found.push_back(entry->second.turn);
    }
    std::ranges::sort(found, {}, &Turns::Turn::number);
    const auto repeated = std::ranges::unique(found);
    found.erase(repeated.begin(), repeated.end());
    return Turns(std::move(found));
  }

 private:
  using Parameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Parameter parameter;  // keeps the address from being used again
    std::shared_ptr<Turns::Turn> turn;
  };
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  std::uint64_t next_number_ = 0;
};

Turns Turns::of(std::span<const at::Tensor> parameters) {
  static auto* const book = new Guarded<TurnBook>;  // outlives every thread
  return book->lock()->look_up(parameters);
}

void Turns::lock() {
  for (const auto& turn : in_order_) turn->mutex.lock();
}

void Turns::unlock() {
  for (const auto& turn : in_order_ | std::views::reverse) turn->mutex.unlock();
}

}  // namespace hawser::optim
