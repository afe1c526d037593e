#pragma once

namespace hawser {

// One function object of several, for std::visit.
template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;  // clang 14 needs to be told

}  // namespace hawser
