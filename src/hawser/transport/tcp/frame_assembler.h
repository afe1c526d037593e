#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "hawser/base/buffer_pool.h"
#include "hawser/base/limits.h"
#include "hawser/wire/frame.h"

namespace hawser::transport::tcp {

// Turns a stream of bytes into frames. Small parts go through one read buffer; the rest of a large
// body or segment is to be read straight into its final memory. What a header or size claims is
// held against the limits before memory is taken for it, and a segment's memory is taken when its
// turn comes. One thread at a time.
class FrameAssembler {
 public:
  FrameAssembler(BufferPool& pool, const Limits& limits);

  // Where the next bytes of the stream belong: read at most that many there, then say how many
  // they were. Only after next() returned false.
  std::span<std::byte> landing();
  void landed(std::size_t bytes);

  // The next frame, if all of it has landed. Throws Error(Invalid) when the bytes are no frame and
  // Error(Overloaded) when there is no memory; the stream is of no use after either.
  bool next(wire::InFrame& frame);

  // Whether the stream may end here without cutting a frame.
  bool between_frames() const { return part_ == Part::Header && filled_ == 0 && !has_bytes(); }
  // Bytes have landed that next() has not looked at.
  bool has_bytes() const { return from_ != to_; }
  // Lets go of a frame that will never be complete.
  void abandon();

 private:
  enum class Part { Header, Sizes, Body, Segment };

  std::size_t missing() const { return target_.size() - filled_; }
  void expect(Part part, std::span<std::byte> target);
  void copy_landed();
  // The current part is complete: goes on to the next. True when that was the last.
  bool part_done();
  bool begin_body();
  bool begin_next_segment();

  BufferPool& pool_;
  const Limits limits_;

  std::unique_ptr<std::byte[]> landed_;  // read buffer; bytes [from_, to_) are yet to be looked at
  std::size_t from_ = 0;
  std::size_t to_ = 0;

  Part part_ = Part::Header;
  std::span<std::byte> target_;  // memory of the current part
  std::size_t filled_ = 0;
  wire::FrameHeader header_;
  std::vector<std::uint64_t> sizes_;
  wire::InFrame frame_;
};

}  // namespace hawser::transport::tcp
