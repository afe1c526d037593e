// Whatever a store holds under the name of a card, it is read as one or said to be none; and a card
// that was read is written as it was meant.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "hawser/agent/store_directory.h"
#include "hawser/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hawser;
  const std::string text(reinterpret_cast<const char*>(data), size);
  agent::Card card;
  try {
    card = agent::read_card(text);
  } catch (const Error& malformed) {
    if (malformed.kind() != ErrorKind::Invalid) std::abort();
    return 0;
  }
  if (agent::read_card(agent::write_card(card)) != card) std::abort();
  return 0;
}
