#include "hawser/base/buffer_pool.h"

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <list>
#include <map>
#include <new>
#include <string>

#include "hawser/base/error.h"
#include "hawser/base/guarded.h"

namespace hawser {
namespace {

// Blocks come in sizes of four steps per power of two: at most a quarter is wasted, and a block
// that was returned fits the next request of about the same size.
std::size_t rounded_up(std::size_t size) {
  if (size <= 256) return 256;
  const std::size_t step = std::bit_floor(size - 1) / 4;
  return (size + step - 1) / step * step;
}

struct FreeBlock {
  void operator()(void* block) const { std::free(block); }
};
using Block = std::unique_ptr<void, FreeBlock>;

// Below this the C library's own caches do the job. They are for malloc only.
constexpr std::size_t kSmallestKept = 4096;

Block new_block(std::size_t size) {
  return Block(size < kSmallestKept ? std::malloc(size + kBufferAlignment)
                                    : std::aligned_alloc(kBufferAlignment, size));
}

std::byte* aligned(void* block) {
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  return static_cast<std::byte*>(block) + (-address & (kBufferAlignment - 1));
}

}  // namespace

struct BufferPool::Shelves {
  struct Kept {
    std::size_t size;
    Block block;
  };
  struct State {
    std::list<Kept> by_age;  // newest first
    std::multimap<std::size_t, std::list<Kept>::iterator> by_size;
    std::size_t bytes_kept = 0;
    bool pool_is_gone = false;
  };

  explicit Shelves(std::size_t keep) : keep_at_most(keep) {}

  // The most recently returned block of exactly this size: the warmest. None when there is none.
  Block find(std::size_t size) {
    if (size < kSmallestKept) return nullptr;
    auto state = shelves.lock();
    auto [first, last] = state->by_size.equal_range(size);
    if (first == last) return nullptr;
    const auto newest = std::prev(last);
    Block block = std::move(newest->second->block);
    state->bytes_kept -= size;
    state->by_age.erase(newest->second);
    state->by_size.erase(newest);
    return block;
  }

  // Runs in the deleter of a buffer, so it must not throw: what cannot be kept is freed.
  void give_back(Block block, std::size_t size) noexcept {
    bytes_lent.fetch_sub(size, std::memory_order_relaxed);
    if (size < kSmallestKept || size > keep_at_most) return;
    std::list<Kept> entry;  // allocated before, freed after the lock is held
    std::list<Kept> discarded;
    try {
      entry.push_front(Kept{size, std::move(block)});
      auto state = shelves.lock();
      if (state->pool_is_gone) return;
      state->by_size.emplace(size, entry.begin());
      state->by_age.splice(state->by_age.begin(), entry);
      state->bytes_kept += size;
      while (state->bytes_kept > keep_at_most) discard_oldest(*state, discarded);
    } catch (const std::bad_alloc&) {
      return;
    }
  }

  static void discard_oldest(State& state, std::list<Kept>& discarded) {
    const auto oldest = std::prev(state.by_age.end());
    auto [at, end] = state.by_size.equal_range(oldest->size);
    while (at != end && at->second != oldest) ++at;
    state.by_size.erase(at);
    state.bytes_kept -= oldest->size;
    discarded.splice(discarded.end(), state.by_age, oldest);
  }

  void discard_all(bool pool_is_gone) {
    std::list<Kept> discarded;  // freed after the lock is released
    auto state = shelves.lock();
    state->pool_is_gone = pool_is_gone;
    discarded.swap(state->by_age);
    state->by_size.clear();
    state->bytes_kept = 0;
  }

  const std::size_t keep_at_most;
  std::atomic<std::size_t> bytes_lent{0};
  Guarded<State> shelves;
};

BufferPool::BufferPool(std::size_t keep_at_most)
    : shelves_(std::make_shared<Shelves>(keep_at_most)) {}

BufferPool::~BufferPool() { shelves_->discard_all(true); }

Buffer BufferPool::take(std::size_t size) {
  // Larger than any address space; rounding it up would overflow.
  constexpr std::size_t kImpossible = std::numeric_limits<std::ptrdiff_t>::max() / 2;
  const std::size_t block_size = size < kImpossible ? rounded_up(size) : 0;
  Block block;
  if (block_size != 0) {
    block = shelves_->find(block_size);
    if (!block) block = new_block(block_size);
  }
  if (!block) {
    throw Error(ErrorKind::Overloaded, "no memory for " + std::to_string(size) + " bytes");
  }
  shelves_->bytes_lent.fetch_add(block_size, std::memory_order_relaxed);
  std::byte* const data = aligned(block.get());
  auto owner = std::shared_ptr<void>(block.release(), [shelves = shelves_, block_size](void* raw) {
    shelves->give_back(Block(raw), block_size);
  });
  return Buffer(data, size, std::move(owner));
}

BufferPool::Usage BufferPool::usage() const {
  return Usage{shelves_->bytes_lent.load(std::memory_order_relaxed),
               shelves_->shelves.lock()->bytes_kept};
}

void BufferPool::trim() { shelves_->discard_all(false); }

}  // namespace hawser
