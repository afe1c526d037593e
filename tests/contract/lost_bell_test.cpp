// Two nodes call each other over real links, with random delays at every step of the protocols that
// decide who is woken (doorbell.h, poll_seat.h, poll_set.h, crew.h, shm/ring.h). Nothing here has a
// deadline: a wake-up that is lost hangs the test, and the time limit of the test runner, the only
// clock, says so.

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hawser/agent/crew.h"
#include "hawser/base/buffer_pool.h"
#include "hawser/base/random.h"
#include "hawser/base/step.h"
#include "hawser/transport/control_loop.h"
#include "hawser/transport/doorbell.h"
#include "hawser/transport/loopback.h"
#include "hawser/transport/poll_set.h"
#include "hawser/transport/shm/shm_transport.h"
#include "hawser/transport/tcp/tcp_transport.h"

namespace hawser {
namespace {

using namespace std::chrono_literals;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCalls = 20'000;
#else
constexpr int kCalls = 200'000;
#endif
// Where others compute, a call can take a time slice: then fewer are enough. What is lost hangs.
constexpr Duration kCallFor = 15s;
constexpr int kWindow = 16;
constexpr std::size_t kSegmentBytes = 600;

std::minstd_rand& dice() {
  static std::atomic<unsigned> seed{1};
  thread_local std::minstd_rand mine(seed.fetch_add(1));
  return mine;
}
bool one_in(unsigned n) { return dice()() % n == 0; }

// Mostly nothing, often a moment, now and then long enough for others to go to sleep.
[[maybe_unused]] void dawdle() {
  if (!one_in(4)) return;
  if (one_in(128)) {
    std::this_thread::sleep_for(std::chrono::microseconds(dice()() % 200));
  } else if (one_in(4)) {
    ::sched_yield();
  } else {
    for (unsigned i = dice()() % 64; i > 0; --i)
      std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

class Dawdling {
 public:
#ifdef HAWSER_DELIBERATE_FAULTS
  Dawdling() { testing::step_hook = &dawdle; }
  ~Dawdling() { testing::step_hook = nullptr; }
#endif
};

// One call on its way. Its address is what travels: both nodes live in this process.
struct Call {
  Event done;
  std::atomic<int> times_answered{0};
};

struct Letter {
  Call* call = nullptr;
  std::uint32_t size = 0;  // of the whole body; the rest is filling
  bool brief = false;
  bool calls_back = false;
};

class TestNode;

// Runs on the callee; answers, now and then after a call of its own. Not while anything is queued.
class Answer final : public transport::Task, public std::enable_shared_from_this<Answer> {
 public:
  Answer(TestNode& node, const Letter& letter) : node_(node), letter_(letter) {}
  void run() override;
  void refuse(const Error& why) override { ADD_FAILURE() << "refused: " << why.what(); }
  bool brief() const override { return letter_.brief; }

 private:
  TestNode& node_;
  const Letter letter_;
};

class TestNode final : public transport::Host, public transport::FrameSink {
 public:
  TestNode(std::string name, Duration spin_limit) : name_(std::move(name)) {
    // What is held back is late here, with all these delays; it is held back all the same.
    const agent::CrewOptions options{.spin_limit = spin_limit, .many_replies = 0, .hold_limit = 1h};
    crew_ = std::make_shared<agent::Crew>(bell_, set_, options);
    crew_->start();
  }

  // --- transport::Host ---
  transport::Identity identity() const override {
    transport::Identity identity;
    identity.name = name_;
    identity.world.bytes.fill(7);
    identity.secret.assign(32, std::byte{1});
    return identity;
  }
  std::optional<wire::Refusal> admit(const wire::Hello&) override { return std::nullopt; }
  void accepted(std::shared_ptr<transport::Link> link) override { accepted_.set_value(link); }
  void turned_away(std::string_view why) override { ADD_FAILURE() << why; }
  void watch_writable(transport::Link& link) override { set_->watch_writable(link); }
  bool held_back(std::shared_ptr<transport::Link> link) override {
    return crew_->held_back(std::move(link));
  }

  // --- transport::FrameSink ---
  std::shared_ptr<transport::Task> on_frame(wire::InFrame frame) override {
    Letter letter;
    std::memcpy(&letter, frame.body.data(), sizeof letter);
    if (frame.body.size() != letter.size) ADD_FAILURE() << "a frame of the wrong size";
    if (frame.kind == wire::Kind::Call) return std::make_shared<Answer>(*this, letter);
    crew_->reply_arrived();
    calls_made_.load(std::memory_order_acquire);
    if (letter.call->times_answered.fetch_add(1) != 0) ADD_FAILURE() << "answered twice";
    letter.call->done.set();
    return nullptr;
  }
  std::shared_ptr<transport::Task> resume() override {
    if (link_->backlogged(0)) return nullptr;
    auto aside = aside_.lock();
    if (aside->empty()) return nullptr;
    auto task = std::move(aside->front());
    aside->pop_front();
    return task;
  }
  void on_closed() override {}

  // As agent::Session does (FLOW-2), and without its limit: that happens too seldom for a test.
  bool put_aside(const std::shared_ptr<transport::Task>& task) {
    if (!link_->backlogged(0)) return false;
    aside_.lock()->push_front(task);
    HAWSER_STEP();
    if (link_->backlogged(0)) return true;
    auto aside = aside_.lock();
    return std::erase(*aside, task) == 0;
  }

  void use(std::shared_ptr<transport::Link> link) {
    link_ = std::move(link);
    set_->add(link_, std::shared_ptr<transport::FrameSink>(std::shared_ptr<void>(), this));
  }
  std::shared_ptr<transport::Link> accepted_link() { return accepted_.get_future().get(); }

  void send(wire::Kind kind, Letter letter) {
    std::array<std::byte, kLargest> body{};
    letter.size = sizeof letter + (one_in(8) ? dice()() % (kLargest - sizeof letter) : 0);
    std::memcpy(body.data(), &letter, sizeof letter);
    // shm: in the arena, where it waits to be taken although the ring is not full.
    std::vector<Buffer> segments;
    if (one_in(8)) segments.push_back(segment_);
    wire::OutFrame frame{
        .kind = kind, .body = std::span(body).first(letter.size), .segments = std::move(segments)};
    const bool with_more = kind == wire::Kind::Call && one_in(2);
    EXPECT_TRUE(with_more ? link_->send_with_more(std::move(frame))
                          : link_->send(std::move(frame)));
  }
  void ask(Call& call, bool calls_back) {
    crew_->expect_reply();
    calls_made_.fetch_add(1, std::memory_order_acq_rel);
    send(wire::Kind::Call, {.call = &call, .brief = one_in(2), .calls_back = calls_back});
  }
  void wait(Call& call) { EXPECT_TRUE(crew_->wait(call.done, Deadline::never())); }

  // Both nodes, before either of them closes its link: an answer may have arrived before the send()
  // that sent it returns.
  void stop() { EXPECT_TRUE(crew_->stop(Deadline::never())); }
  void close() {
    set_->clear();
    link_.reset();
  }

  agent::Crew& crew() { return *crew_; }
  std::shared_ptr<transport::Doorbell> bell() { return bell_; }

 private:
  static constexpr std::size_t kLargest = 3000;  // a small ring holds one and a piece of the next
  const std::string name_;
  std::shared_ptr<transport::Doorbell> bell_ = std::make_shared<transport::Doorbell>();
  std::shared_ptr<transport::PollSet> set_ = std::make_shared<transport::PollSet>(*bell_);
  std::shared_ptr<agent::Crew> crew_;
  std::promise<std::shared_ptr<transport::Link>> accepted_;
  std::shared_ptr<transport::Link> link_;
  const Buffer segment_ = BufferPool(0).take(kSegmentBytes);
  Guarded<std::deque<std::shared_ptr<transport::Task>>> aside_;
  // What the lock of the call table is in a real node: whoever completes a call has seen it made.
  // ThreadSanitizer cannot see that through a socket, or through memory that is mapped twice.
  std::atomic<std::uint64_t> calls_made_{0};
};

void Answer::run() {
  if (node_.put_aside(shared_from_this())) return;
  if (letter_.calls_back) {
    Call nested;
    node_.ask(nested, /*calls_back=*/false);
    node_.wait(nested);
  }
  node_.send(wire::Kind::Reply, {.call = letter_.call});
}

// One caller: sync calls, windows of async ones, and callbacks.
void call_many(TestNode& node, int calls) {
  const Deadline enough(std::chrono::steady_clock::now() + kCallFor);
  for (int made = 0; made < calls && !enough.passed(std::chrono::steady_clock::now());) {
    if (one_in(3)) {
      std::array<Call, kWindow> window;
      for (Call& call : window) node.ask(call, one_in(32));
      for (Call& call : window) node.wait(call);
      made += kWindow;
    } else if (one_in(32)) {
      Event posted;
      node.crew().post([&posted] { posted.set(); });
      EXPECT_TRUE(node.crew().wait(posted, Deadline::never()));
    } else {
      Call call;
      node.ask(call, one_in(16));
      node.wait(call);
      ++made;
    }
  }
}

// Few callers find what is lost when nothing follows that would wake the sleeper after all; many
// find what is lost between them.
struct Callers {
  const char* name;
  int left;
  int right;
};
constexpr Callers kLonely{"lonely", 1, 0};
constexpr Callers kCrowd{"crowd", 3, 3};

void call_each_other(TestNode& left, TestNode& right, const Callers& callers) {
  const int all = callers.left + callers.right;
  std::vector<std::thread> threads;
  for (int i = 0; i < all; ++i) {
    TestNode& node = i < callers.left ? left : right;
    threads.emplace_back([&node, all] { call_many(node, kCalls / all); });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Medium {
  const char* name;
  std::unique_ptr<transport::Transport> (*create)(transport::ControlLoop&, TestNode&, Random&,
                                                  BufferPool&);
};

std::unique_ptr<transport::Transport> shm_of(std::size_t ring_bytes,
                                             transport::ControlLoop& control, TestNode& node,
                                             Random& random, BufferPool& pool) {
  transport::shm::ShmOptions options;
  options.ring_bytes = ring_bytes;
  options.inline_limit = kSegmentBytes - 1;
  return transport::shm::create_shm(control, node, random, pool, *node.bell(), Limits{}, options);
}

const Medium kShm{"shm", [](auto& control, auto& node, auto& random, auto& pool) {
                    return shm_of(std::size_t{256} << 10, control, node, random, pool);
                  }};
const Medium kSmallShm{"shm_with_a_small_ring",
                       [](auto& control, auto& node, auto& random, auto& pool) {
                         return shm_of(4096, control, node, random, pool);
                       }};
const Medium kTcp{"tcp", [](auto& control, auto& node, auto& random, auto& pool) {
                    transport::tcp::TcpOptions options;
                    options.address = "127.0.0.1";
                    return transport::tcp::create_tcp(control, node, random, pool, Limits{},
                                                      options);
                  }};

class LostBell : public ::testing::TestWithParam<std::tuple<Medium, Callers, Duration>> {};

TEST_P(LostBell, EveryCallIsAnswered) {
  const auto& [medium, callers, spin_limit] = GetParam();
  SystemRandom random;
  BufferPool pool(std::size_t{16} << 20);
  TestNode left("left", spin_limit);
  TestNode right("right", spin_limit);
  transport::ControlLoop control;
  control.start();
  auto from = medium.create(control, left, random, pool);
  auto to = medium.create(control, right, random, pool);
  std::promise<transport::ConnectOutcome> connected;
  from->connect(to->listen(), "right", Deadline::never(),
                [&](auto outcome) { connected.set_value(std::move(outcome)); });
  left.use(std::get<std::shared_ptr<transport::Link>>(connected.get_future().get()));
  right.use(right.accepted_link());
  {
    [[maybe_unused]] const Dawdling dawdling;
    call_each_other(left, right, callers);
  }
  from->close();
  to->close();
  left.stop();
  right.stop();
  left.close();
  right.close();
  control.stop();
}

std::string name_of(const ::testing::TestParamInfo<LostBell::ParamType>& config) {
  const auto& [medium, callers, spin_limit] = config.param;
  return std::string(medium.name) + "_" + callers.name +
         (spin_limit == 0us ? "_asleep" : "_spinning");
}

INSTANTIATE_TEST_SUITE_P(, LostBell,
                         ::testing::Combine(::testing::Values(kShm, kSmallShm, kTcp),
                                            ::testing::Values(kLonely, kCrowd),
                                            ::testing::Values(0us, 50us)),
                         name_of);

// A node that calls itself: the same bell, rung from within.
TEST(LostBellToOneself, EveryCallIsAnswered) {
  TestNode node("self", 0us);
  transport::PeerIdentity self;
  self.name = "self";
  node.use(transport::make_loopback(self, node.bell(),
                                    std::make_shared<BufferPool>(std::size_t{1} << 20)));
  {
    [[maybe_unused]] const Dawdling dawdling;
    call_each_other(node, node, kCrowd);
  }
  node.stop();
  node.close();
}

}  // namespace
}  // namespace hawser
