#include "hawser/transport/tcp/outbox.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace hawser::transport::tcp {
namespace {

constexpr std::size_t kChunkBytes = 64 * 1024;
// Up to here copying is cheaper than a part of its own in the write.
constexpr std::size_t kCopyBytes = 4 * 1024;

std::size_t bytes_left(const auto& piece) {
  if constexpr (requires { piece.segment; }) {
    return piece.segment.size() - piece.from;
  } else {
    return piece.to - piece.from;
  }
}

}  // namespace

void Outbox::push(wire::OutFrame& frame) {
  const wire::FrameHeader header = frame.header();
  copy(std::as_bytes(std::span(&header, 1)));
  for (const Buffer& segment : frame.segments) {
    const std::uint64_t size = segment.size();
    copy(std::as_bytes(std::span(&size, 1)));
  }
  copy(frame.body);
  for (Buffer& segment : frame.segments) {
    if (segment.size() <= kCopyBytes) {
      copy(segment.bytes());
      continue;
    }
    bytes_ += segment.size();
    pieces_.emplace_back(Kept{std::move(segment), 0});
  }
}

void Outbox::prepend(Outbox earlier) {
  bytes_ += std::exchange(earlier.bytes_, 0);
  for (auto piece = earlier.pieces_.rbegin(); piece != earlier.pieces_.rend(); ++piece) {
    pieces_.push_front(std::move(*piece));
  }
}

std::size_t Outbox::gather(std::span<iovec> parts, std::size_t max_bytes) {
  std::size_t count = 0;
  for (Piece& piece : pieces_) {
    if (count == parts.size() || max_bytes == 0) break;
    const std::size_t take =
        std::min(std::visit([](auto& p) { return bytes_left(p); }, piece), max_bytes);
    auto* kept = std::get_if<Kept>(&piece);
    std::byte* start = kept ? kept->segment.data() + kept->from
                            : std::get<Copied>(piece).memory.get() + std::get<Copied>(piece).from;
    parts[count++] = iovec{start, take};
    max_bytes -= take;
  }
  return count;
}

void Outbox::consume(std::size_t bytes, std::vector<Buffer>& finished) {
  bytes_ -= bytes;
  while (bytes > 0) {
    Piece& piece = pieces_.front();
    const std::size_t left = std::visit([](auto& p) { return bytes_left(p); }, piece);
    const std::size_t take = std::min(left, bytes);
    std::visit([take](auto& p) { p.from += take; }, piece);
    bytes -= take;
    if (take < left) return;
    if (auto* kept = std::get_if<Kept>(&piece)) finished.push_back(std::move(kept->segment));
    pieces_.pop_front();
  }
}

// Appending to a chunk never moves what is already in it: it may just be on its way to the kernel.
void Outbox::copy(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    auto* chunk = pieces_.empty() ? nullptr : std::get_if<Copied>(&pieces_.back());
    if (!chunk || chunk->to == chunk->capacity) {
      const std::size_t capacity = std::max(kChunkBytes, bytes.size());
      pieces_.emplace_back(
          Copied{std::unique_ptr<std::byte[]>(new std::byte[capacity]), capacity, 0, 0});
      continue;
    }
    const std::size_t take = std::min(bytes.size(), chunk->capacity - chunk->to);
    std::memcpy(chunk->memory.get() + chunk->to, bytes.data(), take);
    chunk->to += take;
    bytes = bytes.subspan(take);
  }
}

}  // namespace hawser::transport::tcp
