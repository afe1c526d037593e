#include "hawser/transport/loopback.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <utility>

#include "hawser/base/guarded.h"

namespace hawser::transport {
namespace {

class LoopbackLink final : public Link {
 public:
  LoopbackLink(PeerIdentity self, std::shared_ptr<Doorbell> bell, std::shared_ptr<BufferPool> pool)
      : self_(std::move(self)), bell_(std::move(bell)), pool_(std::move(pool)) {}

  std::string_view transport() const override { return "self"; }
  const PeerIdentity& peer() const override { return self_; }
  int descriptor() const override { return -1; }
  bool wants_write() const override { return false; }
  bool announced_by_descriptor() const override { return false; }
  std::optional<std::string> close_reason() const override { return std::nullopt; }
  bool pending() const override { return pending_.load(std::memory_order_seq_cst); }
  bool backlogged(std::size_t) override { return false; }  // it has arrived when it is sent

  bool send(wire::OutFrame frame) override {
    wire::InFrame copy = copied(frame);
    const std::size_t bytes = frame.total_bytes();
    {
      auto inbox = inbox_.lock();
      if (inbox->closed) return false;
      inbox->frames.push_back(std::move(copy));
      ++inbox->stats.frames_sent;
      inbox->stats.bytes_sent += bytes;
      pending_.store(true, std::memory_order_seq_cst);
    }
    bell_->ring_if_asleep();
    return true;
  }

  Received receive(wire::InFrame& frame) override {
    wire::InFrame next;  // what `frame` held before must not die under the lock
    {
      auto inbox = inbox_.lock();
      if (inbox->frames.empty()) {
        if (inbox->closed) return Received::Closed;
        pending_.store(false, std::memory_order_seq_cst);
        return Received::Nothing;
      }
      next = std::move(inbox->frames.front());
      inbox->frames.pop_front();
      ++inbox->stats.frames_received;
      inbox->stats.bytes_received += next.total_bytes();
    }
    frame = std::move(next);
    return Received::Frame;
  }

  // What was sent has arrived, so it is still received.
  void close() override {
    {
      auto inbox = inbox_.lock();
      inbox->closed = true;
      pending_.store(true, std::memory_order_seq_cst);  // receive() has to say so
    }
    bell_->ring();
  }

  LinkStats stats() const override { return inbox_.lock()->stats; }

 private:
  struct Inbox {
    std::deque<wire::InFrame> frames;
    LinkStats stats;
    bool closed = false;
  };

  wire::InFrame copied(const wire::OutFrame& frame) {
    wire::InFrame copy;
    copy.kind = frame.kind;
    copy.body = wire::BodyBytes(frame.body.size());
    if (!frame.body.empty()) std::memcpy(copy.body.data(), frame.body.data(), frame.body.size());
    copy.segments.reserve(frame.segments.size());
    for (const Buffer& segment : frame.segments) {
      Buffer& own = copy.segments.emplace_back(pool_->take(segment.size()));
      if (!segment.empty()) std::memcpy(own.data(), segment.data(), segment.size());
    }
    return copy;
  }

  const PeerIdentity self_;
  const std::shared_ptr<Doorbell> bell_;
  const std::shared_ptr<BufferPool> pool_;
  mutable Guarded<Inbox> inbox_;
  std::atomic<bool> pending_{false};
};

}  // namespace

std::shared_ptr<Link> make_loopback(PeerIdentity self, std::shared_ptr<Doorbell> bell,
                                    std::shared_ptr<BufferPool> pool) {
  return std::make_shared<LoopbackLink>(std::move(self), std::move(bell), std::move(pool));
}

}  // namespace hawser::transport
