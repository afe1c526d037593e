#include "hawser/agent/store_directory.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <sstream>
#include <utility>

#include "hawser/base/log.h"

namespace hawser::agent {
namespace {

// Between looks for members that have not joined: while nobody asks for them, and once somebody
// has.
constexpr Duration kFirstLook = std::chrono::milliseconds(50);
constexpr Duration kLongestRest = std::chrono::seconds(1);
constexpr Duration kFirstLookWhenAsked = std::chrono::milliseconds(5);
constexpr Duration kLongestRestWhenAsked = std::chrono::milliseconds(200);

constexpr char kHex[] = "0123456789abcdef";
constexpr std::string_view kMember = " member";  // behind the rank on a card

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

std::string key_of(std::uint32_t rank) { return "rank/" + std::to_string(rank); }

// Numbered over the whole world: an incarnation is nobody else's, whatever the ranks and names.
Card publish(WorldStore& store, Card card) {
  card.incarnation = Incarnation{static_cast<std::uint64_t>(store.add("incarnation", 1))};
  store.set("card/" + card.name, write_card(card));
  return card;
}

}  // namespace

std::string write_card(const Card& card) {
  std::ostringstream text;
  text << card.name << '\n' << card.rank << (card.is_member ? kMember : "") << '\n';
  text << number(card.incarnation) << '\n';
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
  card.is_member = rank.ends_with(kMember);
  if (card.is_member) rank.resize(rank.size() - kMember.size());
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

    std::uint32_t world_size = 0;  // 0: its members are not looked for
    Roll roll;
    bool asked_for = false;
    Deadline next_look = Deadline::never();
    Duration rest = kFirstLook;
  };

  void answer_questions() {
    for (;;) {
      UniqueFunction<void(WorldStore&)> question;
      {
        auto held = state.lock();
        changed.wait_until(held, held->next_look, [&] {
          return held->stopping || !held->questions.empty() ||
                 held->next_look.passed(std::chrono::steady_clock::now());
        });
        if (!held->questions.empty()) {
          question = std::move(held->questions.front());
          held->questions.pop_front();
        } else if (held->stopping) {
          break;
        }
      }
      if (question) {
        question(*store);
      } else {
        look_for_members();
      }
    }
    state.lock()->ended = true;
    changed.notify_all();
  }

  void look_for_members() {
    std::vector<std::uint32_t> missing;
    bool one_by_one = false;
    {
      auto held = state.lock();
      for (std::uint32_t rank = 0; rank < held->world_size; ++rank) {
        if (!held->roll.members.contains(rank)) missing.push_back(rank);
      }
      one_by_one = held->asked_for;
    }
    std::optional<Error> trouble;
    try {
      if (one_by_one || have_joined(missing)) {
        for (const std::uint32_t rank : missing) {
          if (auto name = store->get(key_of(rank))) {
            state.lock()->roll.members.emplace(rank, std::move(*name));
          }
        }
      }
    } catch (const Error& error) {
      trouble = error;
    }
    auto held = state.lock();
    held->roll.trouble = std::move(trouble);
    const bool complete = held->roll.members.size() == held->world_size;
    held->next_look = complete ? Deadline::never() : Deadline::after(SteadyClock(), held->rest);
    held->rest = std::min(2 * held->rest, held->asked_for ? kLongestRestWhenAsked : kLongestRest);
  }

  void learn(const Card& card) {
    if (!card.is_member) return;  // a guest in this world
    auto held = state.lock();
    if (card.rank < held->world_size) held->roll.members.emplace(card.rank, card.name);
  }

  bool have_joined(const std::vector<std::uint32_t>& ranks) {
    std::vector<std::string> keys;
    for (const std::uint32_t rank : ranks) keys.push_back(key_of(rank));
    return !keys.empty() && store->has_all(keys);
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

Card StoreDirectory::join_now(Card card) {
  if (card.is_member) {
    const std::string holder = shared_->store->get_or_set(key_of(card.rank), card.name);
    if (holder != card.name) {
      throw Error(ErrorKind::Invalid, "rank " + std::to_string(card.rank) + " belongs to '" +
                                          holder + "', so '" + card.name + "' cannot take it");
    }
  }
  if (card.is_member) shared_->state.lock()->roll.members.emplace(card.rank, card.name);
  return publish(*shared_->store, std::move(card));
}

void StoreDirectory::start(std::optional<std::uint32_t> world_size) {
  if (world_size) {
    auto held = shared_->state.lock();
    held->world_size = *world_size;
    held->next_look = Deadline::after(SteadyClock(), kFirstLook);
  }
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

void StoreDirectory::meet(const std::string& member, std::optional<std::uint32_t> rank) {
  {
    auto held = shared_->state.lock();
    auto& known = held->roll.members;
    if (rank && *rank < held->world_size) known.emplace(*rank, member);
    if (known.size() >= held->world_size ||
        std::any_of(known.begin(), known.end(),
                    [&](const auto& each) { return each.second == member; })) {
      return;
    }
  }
  look_up(member, [](const Result<std::optional<Card>>&) {});
}

StoreDirectory::Roll StoreDirectory::roll() {
  auto held = shared_->state.lock();
  if (!std::exchange(held->asked_for, true)) {
    held->roll.trouble.reset();
    held->rest = kFirstLookWhenAsked;
    if (!held->next_look.is_never()) held->next_look = Deadline(std::chrono::steady_clock::now());
    shared_->changed.notify_all();
  }
  return held->roll;
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
  enqueue([shared = shared_.get(), name = std::move(name),
           done = std::move(done)](WorldStore& store) mutable {
    try {
      const auto text = store.get("card/" + name);
      std::optional<Card> card;
      if (text) card = text->empty() ? Card{.name = name, .endpoints = {}} : read_card(*text);
      if (card && !text->empty()) shared->learn(*card);
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
