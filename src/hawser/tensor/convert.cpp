#include "hawser/tensor/convert.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace hawser {

std::string demangled(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : type.name();
}

namespace detail {

Error wrong_count(std::size_t expected, std::string_view of_what, std::size_t got) {
  return Error(ErrorKind::Invalid, "expected " + std::to_string(expected) + " " +
                                       std::string(of_what) + ", got " + std::to_string(got));
}

std::string field_name(std::pair<const char*, const char*> names, std::size_t index) {
  std::string_view rest = names.second;
  for (; index > 0; --index) rest.remove_prefix(std::min(rest.find(',') + 1, rest.size()));
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return std::string(names.first) + "." + std::string(rest.substr(0, rest.find_first_of(", ")));
}

}  // namespace detail
}  // namespace hawser
