#include "hawser/transport/shm/arena.h"

#include <algorithm>
#include <string>
#include <utility>

#include "hawser/base/error.h"
#include "hawser/base/process_forks.h"
#include "hawser/transport/shm/copy_bytes.h"

namespace hawser::transport::shm {
namespace {

constexpr std::size_t kMostRecent = 16;
constexpr std::size_t kMostChunks = 4096;
constexpr std::size_t kReturnedOffset = 64;

std::uint32_t units_for(std::size_t bytes) {
  return static_cast<std::uint32_t>((bytes + kUnitBytes - 1) / kUnitBytes);
}

std::string name_of(BlockName name) {
  return "block " + std::to_string(name.unit) + " of chunk " + std::to_string(name.chunk);
}

}  // namespace

// ---------------------------------------------------------------------------------- chunk

Chunk::Chunk(const Descriptor& memory, std::uint32_t units)
    : units_(units), mapping_(Mapping::of(memory, total_bytes(units))) {}

std::size_t Chunk::header_bytes(std::uint32_t units) {
  return round_up(kReturnedOffset + round_up(units, 64) / 8, kPageBytes);
}

std::size_t Chunk::total_bytes(std::uint32_t units) {
  return header_bytes(units) + std::size_t{units} * kUnitBytes;
}

void Chunk::return_block(std::uint32_t unit) {
  returned(unit / 64).fetch_or(std::uint64_t{1} << (unit % 64), std::memory_order_acq_rel);
  returns().fetch_add(1, std::memory_order_acq_rel);
}

bool Chunk::any_returned(std::uint64_t& returns_seen) const {
  const std::uint64_t now = returns().load(std::memory_order_acquire);
  return std::exchange(returns_seen, now) != now;
}

// ---------------------------------------------------------------------------------- arena

OutboundArena::OutboundArena(std::size_t limit, std::size_t step, Announce announce)
    : limit_(limit), step_(step) {
  state_.lock()->announce = std::move(announce);
}

std::optional<BlockName> OutboundArena::place(std::span<const std::byte> segment) {
  if (segment.empty() || segment.size() > limit_) return std::nullopt;
  std::byte* target = nullptr;
  FreeBlock block;
  {
    auto state = state_.lock();
    collect_returned(*state);
    const auto found = allocate(*state, units_for(segment.size()));
    if (!found) return std::nullopt;
    block = *found;
    OwnChunk& chunk = state->chunks[block.name.chunk];
    chunk.in_use[block.name.unit] = Block{block.units, segment.size(), false};
    target = chunk.memory->block(block.name.unit);
    ++state->placed;
  }
  copies_done_.load(std::memory_order_acquire);
  copy_bytes(target, segment.data(), segment.size());
  copies_done_.fetch_add(1, std::memory_order_release);
  return block.name;
}

std::optional<OutboundArena::FreeBlock> OutboundArena::allocate(State& state, std::uint32_t units) {
  if (auto block = take_recent(state, units)) return block;
  if (auto block = take_first_fit(state, units)) return block;
  merge_recent(state);
  if (auto block = take_first_fit(state, units)) return block;
  return grow(state, units) ? take_first_fit(state, units) : std::nullopt;
}

std::optional<OutboundArena::FreeBlock> OutboundArena::take_recent(State& state,
                                                                   std::uint32_t units) {
  const auto fits = [units](const FreeBlock& block) {
    return block.units >= units && block.units <= units + units / 4;
  };
  const auto newest = std::find_if(state.recent.rbegin(), state.recent.rend(), fits);
  if (newest == state.recent.rend()) return std::nullopt;
  const FreeBlock block = *newest;
  state.recent.erase(std::next(newest).base());
  return block;
}

std::optional<OutboundArena::FreeBlock> OutboundArena::take_first_fit(State& state,
                                                                      std::uint32_t units) {
  for (std::size_t i = 0; i < state.chunks.size(); ++i) {
    auto& free = state.chunks[i].free;
    const auto range =
        std::find_if(free.begin(), free.end(), [units](auto& r) { return r.second >= units; });
    if (range == free.end()) continue;
    const auto [unit, length] = *range;
    free.erase(range);
    if (length > units) free.emplace(unit + units, length - units);
    return FreeBlock{BlockName{static_cast<std::uint16_t>(i), unit}, units};
  }
  return std::nullopt;
}

bool OutboundArena::grow(State& state, std::uint32_t units) {
  if (!state.announce || state.chunks.size() >= kMostChunks) return false;
  std::uint32_t wanted = std::max(units, units_for(step_));
  while (wanted > units && state.bytes_mapped + Chunk::total_bytes(wanted) > limit_) {
    wanted = std::max(units, wanted / 2);
  }
  if (state.bytes_mapped + Chunk::total_bytes(wanted) > limit_) return false;
  try {
    const Descriptor memory = create_sealed_memory("hawser-arena", Chunk::total_bytes(wanted));
    auto chunk = std::make_unique<Chunk>(memory, wanted);
    ChunkNote note;
    note.index = static_cast<std::uint32_t>(state.chunks.size());
    note.units = wanted;
    if (!state.announce(note, memory)) return false;
    state.bytes_mapped += chunk->mapped_bytes();
    state.chunks.push_back(OwnChunk{std::move(chunk), 0, {}, {{0, wanted}}});
    return true;
  } catch (const Error&) {
    return false;  // no descriptor or address space to be had: the caller has another way
  }
}

void OutboundArena::collect_returned(State& state) {
  for (std::size_t i = 0; i < state.chunks.size(); ++i) {
    OwnChunk& chunk = state.chunks[i];
    if (!chunk.memory->any_returned(chunk.returns_seen)) continue;
    chunk.memory->collect([&](std::uint32_t unit) {
      const BlockName name{static_cast<std::uint16_t>(i), unit};
      const auto block = chunk.in_use.find(unit);
      if (block == chunk.in_use.end() || block->second.held) {
        throw Error(ErrorKind::Invalid,
                    "the peer returned " + name_of(name) + ", which it did not have");
      }
      const std::uint32_t units = block->second.units;
      chunk.in_use.erase(block);
      set_free(state, FreeBlock{name, units});
    });
  }
}

void OutboundArena::set_free(State& state, FreeBlock block) {
  state.recent.push_back(block);
  if (state.recent.size() <= kMostRecent) return;
  const FreeBlock oldest = state.recent.front();
  state.recent.erase(state.recent.begin());
  merge(state.chunks[oldest.name.chunk], oldest.name.unit, oldest.units);
}

void OutboundArena::merge(OwnChunk& chunk, std::uint32_t unit, std::uint32_t units) {
  auto next = chunk.free.lower_bound(unit);
  if (next != chunk.free.end() && unit + units == next->first) {
    units += next->second;
    next = chunk.free.erase(next);
  }
  if (next != chunk.free.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == unit) {
      previous->second += units;
      return;
    }
  }
  chunk.free.emplace_hint(next, unit, units);
}

void OutboundArena::merge_recent(State& state) {
  for (const FreeBlock& block : std::exchange(state.recent, {})) {
    merge(state.chunks[block.name.chunk], block.name.unit, block.units);
  }
}

Buffer OutboundArena::reclaim(BlockName name, std::size_t size) {
  std::byte* data = nullptr;
  {
    auto state = state_.lock();
    if (name.chunk < state->chunks.size()) {
      OwnChunk& chunk = state->chunks[name.chunk];
      const auto block = chunk.in_use.find(name.unit);
      if (block != chunk.in_use.end() && !block->second.held && block->second.size == size) {
        block->second.held = true;
        data = chunk.memory->block(name.unit);
      }
    }
  }
  if (!data) {
    throw Error(ErrorKind::Invalid, "the peer handed back " + name_of(name) + " with " +
                                        std::to_string(size) + " bytes, which it did not have");
  }
  auto let_go = [self = shared_from_this(), name, forks = process_forks()](void*) {
    if (process_forks() == forks) self->release(name);
  };
  return Buffer(data, size, std::shared_ptr<void>(data, std::move(let_go)));
}

void OutboundArena::release(BlockName name) {
  auto state = state_.lock();
  OwnChunk& chunk = state->chunks[name.chunk];
  const auto block = chunk.in_use.find(name.unit);
  const std::uint32_t units = block->second.units;
  chunk.in_use.erase(block);
  set_free(*state, FreeBlock{name, units});
}

void OutboundArena::trim() {
  auto state = state_.lock();
  collect_returned(*state);
  merge_recent(*state);
  for (const OwnChunk& chunk : state->chunks) {
    for (const auto& [unit, units] : chunk.free) {
      give_back_pages(chunk.memory->block(unit), std::size_t{units} * kUnitBytes);
    }
  }
}

void OutboundArena::close() {
  Announce dropped;  // dies after the lock
  auto state = state_.lock();
  std::swap(dropped, state->announce);
  state.unlock();
}

OutboundArena::Usage OutboundArena::usage() {
  auto state = state_.lock();
  Usage usage{state->bytes_mapped, 0, state->placed};
  for (const OwnChunk& chunk : state->chunks) usage.blocks_in_use += chunk.in_use.size();
  return usage;
}

}  // namespace hawser::transport::shm
