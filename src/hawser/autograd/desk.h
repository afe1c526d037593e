#pragma once

#include <cstddef>
#include <unordered_map>
#include <utility>
#include <variant>

#include "hawser/autograd/actions.h"
#include "hawser/base/clock.h"

namespace hawser::autograd {

struct ConductorOptions {
  // How long a pass that has failed waits for others to stop before its error is reported anyway.
  Duration abort_grace = std::chrono::seconds(1);
  // Releases that did not arrive are sent again after a pause that doubles.
  Duration first_retry = std::chrono::milliseconds(250);
  Duration last_retry = std::chrono::seconds(5);
  // For an answer to Release and Inquire.
  Duration errand_timeout = std::chrono::seconds(10);
  // How often a member asks the creator whether its context still exists, and after how many
  // questions without an answer it takes it for dead.
  Duration ask_after = std::chrono::seconds(30);
  int asks_in_vain = 3;
  // How long contexts and passes that are over are remembered, and how many (of contexts, pages).
  // Longer than a message can be on its way.
  Duration remember = std::chrono::seconds(60);
  std::size_t max_remembered = 65'536;
};

// What the parts of a conductor share: who this node is, what is to be done, and for whom each call
// was made.
struct Desk {
  Desk(Self the_self, ConductorOptions the_options)
      : self(std::move(the_self)), options(the_options), numbers(self) {}
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;

  struct ToRelease {
    std::string peer;
  };
  struct ToInquire {
    std::vector<ContextId> contexts;
  };
  using Purpose = std::variant<PassId, ToRelease, ToInquire>;

  // In place: g++ 12 sees ghosts in temporaries of a variant.
  template <class T>
  void act(T action) {
    actions.emplace_back(std::in_place_type<T>, std::move(action));
  }
  Outgoing send(Party to, Message message, Purpose purpose, Duration budget = Duration::max()) {
    const Outgoing call{++last_call};
    calls.emplace(call, std::move(purpose));
    act(Send{std::move(to), call, std::move(message), budget});
    return call;
  }
  void answer(Incoming call, Result<Reply> reply) { act(Answer{call, std::move(reply)}); }

  Self self;
  const ConductorOptions options;
  Numbers numbers;
  Actions actions{};
  std::uint64_t last_call = 0;
  std::unordered_map<Outgoing, Purpose> calls{};  // not answered yet
};

}  // namespace hawser::autograd
