#include "hawser/tensor/convert.h"

namespace hawser::detail {

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

}  // namespace hawser::detail
