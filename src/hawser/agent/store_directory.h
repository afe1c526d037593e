#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "hawser/agent/directory.h"
#include "hawser/agent/world_store.h"
#include "hawser/base/clock.h"
#include "hawser/base/error.h"
#include "hawser/base/guarded.h"
#include "hawser/base/random.h"

namespace hawser::agent {

// A directory in a key-value store:
//
//   world               id of the world, random, set by whoever comes first
//   secret              agreed the same way, where none is given from outside
//   incarnation         counts the lives of all nodes
//   card/<name>         its card; empty after it left
//   rank/<number>       the name of that rank (static worlds)
//
// Stores block, so one thread asks them, one question at a time.
class StoreDirectory final : public Directory {
 public:
  explicit StoreDirectory(std::shared_ptr<WorldStore> store);
  ~StoreDirectory() override;

  // What all nodes of the world agree on. Blocking; called while a node starts, before start().
  WorldId agree_on_world(Random& random);
  std::string agree_on_secret(Random& random);
  // Publishes the card; blocking, for a node that starts. Throws Error(Invalid) when another member
  // has the rank.
  Card join_now(Card card);

  // With a world size it learns in the background which names the ranks have: as it looks up their
  // cards, and all at once when all have joined. Whoever hosts the store may be gone when the names
  // are needed.
  void start(std::optional<std::uint32_t> world_size = std::nullopt);
  // Takes no more questions, and waits for those that are queued, at most until the deadline.
  // Idempotent.
  void stop(Deadline deadline);

  void join(Card card, UniqueFunction<void(Result<Card>)> done) override;
  void look_up(std::string name, UniqueFunction<void(Result<std::optional<Card>>)> done) override;
  void leave(const Card& card) override;

  struct Roll {
    std::map<std::uint32_t, std::string> members;  // by rank, as far as they are known
    std::optional<Error> trouble;                  // why nothing is learnt at present
  };
  // A member is here. Where it has not said its rank, and that is not known, it is looked up in the
  // background.
  void meet(const std::string& member, std::optional<std::uint32_t> rank);
  // What is known by now. From the first time on it looks for the rest more often. Does not block.
  Roll roll();

 private:
  struct Shared;
  void enqueue(UniqueFunction<void(WorldStore&)> question);

  // Shared with the thread, which may be left behind in a store that does not answer.
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

std::string write_card(const Card& card);
// Throws Error(Invalid).
Card read_card(const std::string& text);

}  // namespace hawser::agent
