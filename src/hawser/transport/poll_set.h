#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/base/guarded.h"
#include "hawser/transport/descriptor.h"
#include "hawser/transport/doorbell.h"
#include "hawser/transport/link.h"

namespace hawser::transport {

// Something the poller can run: a request, a callback.
class Task {
 public:
  virtual ~Task() = default;
  virtual void run() = 0;
  // Instead of run(), when there is no thread for it.
  virtual void refuse(const Error& why) = 0;
  // The chain of calls it belongs to, if any: a chain that already holds a thread here must not
  // wait for another one when there are no more.
  virtual ChainId chain() const { return ChainId::None; }
  // Whether it may be refused because too many wait already.
  virtual bool may_be_shed() const { return true; }
  // Whether it is known to return within microseconds.
  virtual bool brief() const { return false; }
};

// Takes what a link receives. Called by the holder of the poll seat; must be quick and must not run
// user code: what is to be run it returns.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual std::shared_ptr<Task> on_frame(wire::InFrame frame) = 0;
  // A task that was put aside while the link was backlogged, and can be run. Asked when the link
  // has no frame, and now and then if it always has one, until there is none.
  virtual std::shared_ptr<Task> resume() { return nullptr; }
  // The last call, once, after all frames.
  virtual void on_closed() = 0;
};

// The links of a node, and how the holder of its poll seat looks at them. Two epoll sets: one holds
// every socket; the other is what the anchors sleep on: the bell, the tick, and the first set,
// which is connected only while the seat is Asleep. A polling thread thus is not doubled by a
// sleeping one that wakes up for each of its packets.
class PollSet {
 public:
  explicit PollSet(Doorbell& bell);
  ~PollSet();

  // Any thread. The set holds both until the link has closed and on_closed() was called, or until
  // clear().
  void add(std::shared_ptr<Link> link, std::shared_ptr<FrameSink> sink);
  // Any thread: link.wants_write() became true.
  void watch_writable(Link& link);
  // Any thread: a link holds frames back until flush(). The seat has to be told (PollSeat::nudge),
  // as of anything else that its holder must look at.
  void note_held_back(std::shared_ptr<Link> link);
  // Has links write what they hold back. How long the first of it has waited.
  Duration flush() { return holds_back() ? flush_links() : Duration{}; }
  bool holds_back() const { return holds_back_.load(std::memory_order_seq_cst); }
  // After the crew has stopped: closes all links and calls on_closed() for each.
  void clear();

  // --- holder of the seat only ---
  struct Arrival {
    FrameSink* sink = nullptr;
    wire::InFrame frame;
    std::shared_ptr<Task> resumed;      // instead of a frame: run it
    std::shared_ptr<FrameSink> closed;  // instead of a frame: call its on_closed()
  };
  // The next frame from any link, fairly; false when a whole round found nothing. The sink is valid
  // until the next call.
  bool next(Arrival& arrival);
  // The seat has been taken: peers need not ring, sockets do not wake the anchor.
  void disarm();
  // Bells and sockets wake the anchor from now on. True when something is there already.
  bool arm_and_look();

  // --- anchors: any number of threads ---
  struct Wakeup {
    bool news = false;  // the bell or a socket: knock
    bool tick = false;
  };
  // Sleeps until the bell, a socket (if armed), the tick or the deadline. Each ring, and each tick,
  // wakes one of those who sleep, or the next one who would.
  Wakeup sleep(Deadline deadline);
  // After PollSeat::lend(), by the lender: starts the tick if it is not running. Stopped by the
  // anchor, which then must compare PollSeat::lends() with what it was before.
  void start_tick();
  void stop_tick();

  std::size_t size() const { return link_count_.load(std::memory_order_relaxed); }

 private:
  struct Watched {
    std::shared_ptr<Link> link;
    std::shared_ptr<FrameSink> sink;
    bool announced = false;  // every frame is, by the descriptor
    bool ready = false;      // the descriptor was, and receive() has not run dry since
    bool watching_writes = false;
    bool ran_long = false;  // has had a whole burst of frames since the sink was last asked
  };
  using Links = std::vector<std::unique_ptr<Watched>>;
  void adopt_added();
  void look_at_sockets();
  bool reads_sockets_unasked() const;
  bool take_from(Watched& watched, Arrival& arrival);
  Duration flush_links();
  static bool resume(Watched& watched, Arrival& arrival);
  void watch(Watched& watched);
  void resume_watching_writes(Watched& watched);
  void connect_sockets(bool connected);
  void forget(std::size_t at);

  Doorbell& bell_;
  Descriptor sockets_;   // epoll of all link descriptors
  Descriptor sleepers_;  // epoll of bell, tick, sockets_
  Descriptor tick_;
  std::atomic<bool> tick_running_{false};
  bool sockets_connected_ = false;          // holder of the seat
  std::atomic<bool> sockets_fired_{false};  // the one shot is used up; the anchor says so
  std::atomic<std::size_t> link_count_{0};
  std::atomic<std::size_t> socket_links_{0};

  Guarded<Links> added_;
  std::atomic<bool> something_added_{false};
  Guarded<std::vector<std::shared_ptr<Link>>> holding_;  // frames back
  std::atomic<bool> holds_back_{false};                  // there may be some

  // Belong to the holder of the seat.
  Links links_;
  std::unordered_map<int, Watched*> by_descriptor_;
  std::size_t cursor_ = 0;
  std::size_t quiet_in_a_row_ = 0;  // links without anything since the last frame
  int burst_ = 0;                   // frames in a row from the link at the cursor
  unsigned rounds_ = 0;
};

}  // namespace hawser::transport
