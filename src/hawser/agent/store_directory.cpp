#include "hawser/agent/store_directory.h"

#include <pthread.h>
#include <signal.h>

#include <charconv>
#include <deque>
#include <sstream>
#include <utility>

#include "hawser/base/log.h"

namespace hawser::agent {
namespace {

constexpr char kHex[] = "0123456789abcdef";

std::string random_hex(Random& random, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    std::byte one{};
    random.fill(std::span(&one, 1));
    text += kHex[static_cast<unsigned>(one) >> 4];
    text += kHex[static_cast<unsigned>(one) & 15];
  }
  return text;
}

template <class Number>
Number parse_number(const std::string& text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorKind::Invalid, "not a number: '" + text + "'");
  }
  return value;
}

// Numbered over the whole world: an incarnation is nobody else's, whatever the ranks and names.
Card publish(WorldStore& store, Card card) {
  card.incarnation = Incarnation{static_cast<std::uint64_t>(store.add("incarnation", 1))};
  store.set("card/" + card.name, write_card(card));
  return card;
}

}  // namespace

std::string write_card(const Card& card) {
  std::ostringstream text;
  text << card.name << '\n' << card.rank << '\n' << number(card.incarnation) << '\n';
  for (const std::string& endpoint : card.endpoints) text << endpoint << '\n';
  return text.str();
}

Card read_card(const std::string& text) {
  std::istringstream lines(text);
  Card card;
  std::string rank, incarnation;
  if (!std::getline(lines, card.name) || !std::getline(lines, rank) ||
      !std::getline(lines, incarnation)) {
    throw Error(ErrorKind::Invalid, "the directory holds something that is not a card");
  }
  card.rank = parse_number<std::uint32_t>(rank);
  card.incarnation = Incarnation{parse_number<std::uint64_t>(incarnation)};
  for (std::string endpoint; std::getline(lines, endpoint);) {
    card.endpoints.push_back(std::move(endpoint));
  }
  return card;
}

struct StoreDirectory::Shared {
  struct State {
    std::deque<UniqueFunction<void(WorldStore&)>> questions;
    bool stopping = false;
    bool ended = false;
  };

  void answer_questions() {
    for (;;) {
      UniqueFunction<void(WorldStore&)> question;
      {
        auto held = state.lock();
        changed.wait(held, [&] { return held->stopping || !held->questions.empty(); });
        if (held->questions.empty()) break;
        question = std::move(held->questions.front());
        held->questions.pop_front();
      }
      question(*store);
    }
    state.lock()->ended = true;
    changed.notify_all();
  }

  std::shared_ptr<WorldStore> store;
  Guarded<State> state;
  Condition changed;
};

StoreDirectory::StoreDirectory(std::shared_ptr<WorldStore> store)
    : shared_(std::make_shared<Shared>()) {
  shared_->store = std::move(store);
}

StoreDirectory::~StoreDirectory() {
  stop(Deadline(std::chrono::steady_clock::now() + std::chrono::seconds(1)));
}

WorldId StoreDirectory::agree_on_world(Random& random) {
  const std::string text = shared_->store->get_or_set("world", random_hex(random, 16));
  WorldId world;
  if (text.size() != 2 * world.bytes.size()) {
    throw Error(ErrorKind::Invalid, "the store holds a world id that is none of ours");
  }
  for (std::size_t i = 0; i < world.bytes.size(); ++i) {
    const char* const end = text.data() + 2 * i + 2;
    if (std::from_chars(end - 2, end, world.bytes[i], 16).ptr != end) {
      throw Error(ErrorKind::Invalid, "the store holds a world id that is none of ours");
    }
  }
  return world;
}

std::string StoreDirectory::agree_on_secret(Random& random) {
  return shared_->store->get_or_set("secret", random_hex(random, 32));
}

Card StoreDirectory::join_now(Card card, bool claim_rank) {
  if (claim_rank) {
    const std::string holder =
        shared_->store->get_or_set("rank/" + std::to_string(card.rank), card.name);
    if (holder != card.name) {
      throw Error(ErrorKind::Invalid, "rank " + std::to_string(card.rank) + " belongs to '" +
                                          holder + "', so '" + card.name + "' cannot take it");
    }
  }
  return publish(*shared_->store, std::move(card));
}

std::optional<std::string> StoreDirectory::name_of_rank(std::uint32_t rank) {
  return shared_->store->get("rank/" + std::to_string(rank));
}

void StoreDirectory::start() {
  sigset_t all, before;  // signals belong to the program's own threads
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([shared = shared_] {
    ::pthread_setname_np(::pthread_self(), "hawser-dir");
    shared->answer_questions();
  });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void StoreDirectory::stop(Deadline deadline) {
  if (!thread_.joinable()) return;
  bool ended = false;
  {
    auto held = shared_->state.lock();
    held->stopping = true;
    shared_->changed.notify_all();
    ended = shared_->changed.wait_until(held, deadline, [&] { return held->ended; });
  }
  if (ended) {
    thread_.join();
  } else {
    log::Line(log::Level::Warning, "agent") << "the rendezvous store does not answer; leaving it";
    thread_.detach();
  }
}

void StoreDirectory::enqueue(UniqueFunction<void(WorldStore&)> question) {
  {
    auto held = shared_->state.lock();
    if (held->stopping) return;
    held->questions.push_back(std::move(question));
  }
  shared_->changed.notify_all();
}

void StoreDirectory::join(Card card, UniqueFunction<void(Result<Card>)> done) {
  enqueue([card = std::move(card), done = std::move(done)](WorldStore& store) mutable {
    try {
      done(publish(store, std::move(card)));
    } catch (const Error& error) {
      done(error);
    }
  });
}

void StoreDirectory::look_up(std::string name,
                             UniqueFunction<void(Result<std::optional<Card>>)> done) {
  enqueue([name = std::move(name), done = std::move(done)](WorldStore& store) mutable {
    try {
      const auto text = store.get("card/" + name);
      std::optional<Card> card;
      if (text) card = text->empty() ? Card{.name = name, .endpoints = {}} : read_card(*text);
      done(std::move(card));
    } catch (const Error& error) {
      done(error);
    }
  });
}

void StoreDirectory::leave(const Card& card) {
  enqueue([card](WorldStore& store) {
    try {
      // Not if a newer incarnation of the same name has published its own since.
      if (store.get("card/" + card.name) == write_card(card)) store.set("card/" + card.name, "");
    } catch (const Error& error) {
      log::Line(log::Level::Info, "agent") << "cannot take back the card: " << error.message();
    }
  });
}

}  // namespace hawser::agent
