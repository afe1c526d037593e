#include "hawser/base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "hawser/base/error.h"

namespace hawser {

void SystemRandom::fill(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw Error(ErrorKind::Overloaded, std::string("getrandom: ") + std::strerror(errno));
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

}  // namespace hawser
