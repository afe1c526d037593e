#include "sim/sim_directory.h"

#include <utility>

namespace hawser::simulation {

template <class Answer>
void SimDirectory::ask(UniqueFunction<Answer()> question,
                       UniqueFunction<void(Result<Answer>)> done) {
  const auto delay = [this] {
    return rendezvous_.random.between(Duration::zero(), rendezvous_.longest_delay);
  };
  rendezvous_.world.after(delay(), [&rendezvous = rendezvous_, process = process_, back = delay(),
                                    question = std::move(question),
                                    done = std::move(done)]() mutable {
    const bool fails = rendezvous.random.per_mille(rendezvous.failures);
    Result<Answer> answer =
        fails ? Result<Answer>(Error(ErrorKind::Overloaded, "the store does not answer"))
              : Result<Answer>(question());
    process->schedule_after(back, [answer = std::move(answer), done = std::move(done)]() mutable {
      done(std::move(answer));
    });
  });
}

void SimDirectory::join(agent::Card card, UniqueFunction<void(Result<agent::Card>)> done) {
  ask<agent::Card>(
      [&rendezvous = rendezvous_, card = std::move(card)]() mutable {
        card.incarnation = Incarnation{++rendezvous.lives[card.name]};
        rendezvous.world.note("joins", card.name, number(card.incarnation));
        rendezvous.cards[card.name] = card;
        if (rendezvous.on_join) rendezvous.on_join(card);
        return card;
      },
      std::move(done));
}

void SimDirectory::look_up(std::string name,
                           UniqueFunction<void(Result<std::optional<agent::Card>>)> done) {
  ask<std::optional<agent::Card>>(
      [&rendezvous = rendezvous_, name = std::move(name)]() -> std::optional<agent::Card> {
        const auto found = rendezvous.cards.find(name);
        if (found == rendezvous.cards.end()) return std::nullopt;
        return found->second;
      },
      std::move(done));
}

void SimDirectory::leave(const agent::Card& card) {
  rendezvous_.world.after(Duration::zero(), [&rendezvous = rendezvous_, card] {
    const auto found = rendezvous.cards.find(card.name);
    if (found != rendezvous.cards.end() && found->second == card) found->second.endpoints.clear();
  });
}

}  // namespace hawser::simulation
