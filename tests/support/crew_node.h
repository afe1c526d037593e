#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "hawser/agent/crew.h"
#include "hawser/base/buffer_pool.h"
#include "hawser/transport/loopback.h"

// A crew, and what it takes to have it read frames.
namespace hawser::agent {

// Run or refused, exactly once, or the test fails.
class TrapTask final : public Task {
 public:
  struct Nature {
    ChainId chain = ChainId::None;
    bool brief = false;
  };
  TrapTask(std::function<void()> body, std::function<void(const Error&)> refusal, Nature nature)
      : body_(std::move(body)), refusal_(std::move(refusal)), nature_(nature) {}
  ~TrapTask() override { EXPECT_EQ(completions_.load(), 1) << "neither run nor refused, or both"; }

  void run() override {
    ++completions_;
    body_();
  }
  void refuse(const Error& why) override {
    ++completions_;
    if (!refusal_) {
      ADD_FAILURE() << "refused: " << why.what();
    } else {
      refusal_(why);
    }
  }
  ChainId chain() const override { return nature_.chain; }
  bool brief() const override { return nature_.brief; }

 private:
  const std::function<void()> body_;
  const std::function<void(const Error&)> refusal_;
  const Nature nature_;
  std::atomic<int> completions_{0};
};

inline std::shared_ptr<Task> task(std::function<void()> body, TrapTask::Nature nature = {},
                                  std::function<void(const Error&)> refusal = nullptr) {
  return std::make_shared<TrapTask>(std::move(body), std::move(refusal), nature);
}

// Requests and replies without a network: a frame carries the number of what it stands for.
class TestSink final : public transport::FrameSink {
 public:
  std::shared_ptr<Task> on_frame(wire::InFrame frame) override {
    const auto words = frame.body.view();
    std::size_t number = 0;
    std::memcpy(&number, words.data(), sizeof number);
    const std::lock_guard lock(mutex_);
    if (frame.kind == wire::Kind::Call) return std::exchange(requests_.at(number), nullptr);
    if (frame.kind == wire::Kind::Reply) {
      last_reply_read_by = std::this_thread::get_id();
      replies_.at(number)->set();
    } else {
      notices_.at(number)();
    }
    return nullptr;
  }
  void on_closed() override { ++closed; }

  std::size_t add(std::shared_ptr<Task> request) {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
    return requests_.size() - 1;
  }
  std::size_t add(Event& reply) {
    const std::lock_guard lock(mutex_);
    replies_.push_back(&reply);
    return replies_.size() - 1;
  }
  std::size_t add(std::function<void()> notice) {
    const std::lock_guard lock(mutex_);
    notices_.push_back(std::move(notice));
    return notices_.size() - 1;
  }
  std::atomic<int> closed{0};
  std::atomic<std::thread::id> last_reply_read_by{};

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Task>> requests_;
  std::vector<Event*> replies_;
  std::vector<std::function<void()>> notices_;  // called by the thread that reads them
};

// A node that consists of its threads and a link to itself.
class TestNode {
 public:
  explicit TestNode(CrewOptions options = {})
      : crew_(std::make_shared<Crew>(bell_, set_, options)),
        link_(transport::make_loopback({}, bell_, std::make_shared<BufferPool>(0))) {
    set_->add(link_, sink_);
    crew_->start();
  }
  ~TestNode() {
    crew_->stop(patience_);
    set_->clear();
    EXPECT_EQ(sink_->closed, 1);
  }

  Crew& crew() { return *crew_; }
  bool is_polled() const { return !bell_->announced_asleep(); }
  void do_not_wait_for_handlers() { patience_ = Deadline(TimePoint{}); }
  void request(std::shared_ptr<Task> task) { send(wire::Kind::Call, sink_->add(std::move(task))); }
  void reply(Event& to) { send(wire::Kind::Reply, sink_->add(to)); }
  void notify(std::function<void()> notice) {
    send(wire::Kind::Cancel, sink_->add(std::move(notice)));
  }
  std::thread::id last_reply_read_by() const { return sink_->last_reply_read_by; }

 private:
  void send(wire::Kind kind, std::size_t number) {
    EXPECT_TRUE(
        link_->send({.kind = kind, .body = std::as_bytes(std::span(&number, 1)), .segments = {}}));
  }

  const std::shared_ptr<transport::Doorbell> bell_ = std::make_shared<transport::Doorbell>();
  const std::shared_ptr<transport::PollSet> set_ = std::make_shared<transport::PollSet>(*bell_);
  const std::shared_ptr<TestSink> sink_ = std::make_shared<TestSink>();
  const std::shared_ptr<Crew> crew_;
  const std::shared_ptr<transport::Link> link_;
  Deadline patience_ = Deadline::never();
};

inline Deadline soon() { return Deadline::after(SteadyClock(), std::chrono::milliseconds(20)); }

}  // namespace hawser::agent
