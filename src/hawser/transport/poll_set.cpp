#include "hawser/transport/poll_set.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "hawser/base/error.h"
#include "hawser/base/step.h"

namespace hawser::transport {
namespace {

// From one link before the next gets its turn.
constexpr int kMaxBurst = 32;
// Rings are looked at in every round; sockets that announce only trouble, now and then. Where few
// carry frames, trying to read each costs less than asking first which of them could be read.
constexpr unsigned kRoundsBetweenSocketLooks = 64;
constexpr std::size_t kFewSockets = 2;
constexpr long kTickNanoseconds = 4'000'000;

Descriptor make_epoll() {
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) {
    throw Error(ErrorKind::Overloaded,
                std::string("cannot create an epoll set: ") + std::strerror(errno));
  }
  return epoll;
}

void control(int epoll, int operation, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  ::epoll_ctl(epoll, operation, fd, &event);
}

int milliseconds_until(Deadline deadline) {
  if (deadline.is_never()) return -1;
  const auto left = deadline.remaining(std::chrono::steady_clock::now());
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

}  // namespace

PollSet::PollSet(Doorbell& bell) : bell_(bell), sockets_(make_epoll()), sleepers_(make_epoll()) {
  tick_ = Descriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!tick_) {
    throw Error(ErrorKind::Overloaded,
                std::string("cannot create a timer: ") + std::strerror(errno));
  }
  // By edge: one ring wakes one of those who sleep, and the latest of them.
  control(sleepers_.get(), EPOLL_CTL_ADD, bell_.event_fd(), EPOLLIN | EPOLLET);
  control(sleepers_.get(), EPOLL_CTL_ADD, tick_.get(), EPOLLIN | EPOLLET);
  control(sleepers_.get(), EPOLL_CTL_ADD, sockets_.get(), 0);
}

PollSet::~PollSet() { clear(); }

void PollSet::add(std::shared_ptr<Link> link, std::shared_ptr<FrameSink> sink) {
  auto watched = std::make_unique<Watched>();
  watched->link = std::move(link);
  watched->sink = std::move(sink);
  added_.lock()->push_back(std::move(watched));
  link_count_.fetch_add(1, std::memory_order_relaxed);
  something_added_.store(true, std::memory_order_seq_cst);
  bell_.ring();
}

void PollSet::watch_writable(Link& link) {
  // Fails if the link is not yet adopted: watch() asks wants_write() when it is.
  control(sockets_.get(), EPOLL_CTL_MOD, link.descriptor(), EPOLLIN | EPOLLOUT);
}

void PollSet::clear() {
  adopt_added();
  Links closing = std::exchange(links_, {});
  holding_.lock()->clear();
  by_descriptor_.clear();
  socket_links_.store(0, std::memory_order_relaxed);
  cursor_ = 0;
  for (auto& watched : closing) {
    watched->link->close();
    link_count_.fetch_sub(1, std::memory_order_relaxed);
    watched->sink->on_closed();
  }
}

void PollSet::adopt_added() {
  if (!something_added_.load(std::memory_order_relaxed)) return;
  something_added_.store(false, std::memory_order_seq_cst);
  Links added = std::exchange(*added_.lock(), {});
  for (auto& watched : added) {
    watch(*watched);
    links_.push_back(std::move(watched));
  }
}

void PollSet::watch(Watched& watched) {
  watched.ready = true;  // bytes may have arrived before we watched
  const int fd = watched.link->descriptor();
  if (fd < 0) return;
  by_descriptor_[fd] = &watched;
  watched.announced = watched.link->announced_by_descriptor();
  if (watched.announced) socket_links_.fetch_add(1, std::memory_order_relaxed);
  control(sockets_.get(), EPOLL_CTL_ADD, fd, EPOLLIN);
  resume_watching_writes(watched);
}

// A sender may have called watch_writable() just before we told the kernel not to watch for
// writing. So the wish is looked at after that, as the sender tells the kernel after wishing.
void PollSet::resume_watching_writes(Watched& watched) {
  HAWSER_STEP();
  watched.watching_writes = watched.link->wants_write();
  if (watched.watching_writes) watch_writable(*watched.link);
}

void PollSet::forget(std::size_t at) {
  const Watched& watched = *links_[at];
  const int fd = watched.link->descriptor();
  if (fd >= 0) {
    control(sockets_.get(), EPOLL_CTL_DEL, fd, 0);
    by_descriptor_.erase(fd);
    if (watched.announced) socket_links_.fetch_sub(1, std::memory_order_relaxed);
  }
  links_.erase(links_.begin() + static_cast<std::ptrdiff_t>(at));
  link_count_.fetch_sub(1, std::memory_order_relaxed);
  if (cursor_ >= links_.size()) cursor_ = 0;
}

void PollSet::look_at_sockets() {
  epoll_event events[16];
  const int count = ::epoll_wait(sockets_.get(), events, 16, 0);
  for (int i = 0; i < count; ++i) {
    const auto found = by_descriptor_.find(events[i].data.fd);
    if (found == by_descriptor_.end()) continue;
    found->second->ready = true;
    if (events[i].events & EPOLLOUT) found->second->watching_writes = true;
  }
}

bool PollSet::reads_sockets_unasked() const {
  return socket_links_.load(std::memory_order_relaxed) <= kFewSockets;
}

bool PollSet::take_from(Watched& watched, Arrival& arrival) {
  if (std::exchange(watched.ran_long, false) && resume(watched, arrival)) return true;
  const bool had_descriptor_news = std::exchange(watched.ready, false);
  switch (watched.link->receive(arrival.frame)) {
    case Link::Received::Frame:
      watched.ready = had_descriptor_news;  // there may be more behind it
      arrival.sink = watched.sink.get();
      return true;
    case Link::Received::Closed:
      arrival.closed = watched.sink;
      return true;
    case Link::Received::Nothing:
      break;
  }
  if (watched.watching_writes && !watched.link->wants_write()) {
    HAWSER_STEP();
    control(sockets_.get(), EPOLL_CTL_MOD, watched.link->descriptor(), EPOLLIN);
    resume_watching_writes(watched);
  }
  return resume(watched, arrival);
}

bool PollSet::resume(Watched& watched, Arrival& arrival) {
  arrival.resumed = watched.sink->resume();
  if (!arrival.resumed) return false;
  watched.ready = true;  // there may be more of them
  return true;
}

void PollSet::note_held_back(std::shared_ptr<Link> link) {
  holding_.lock()->push_back(std::move(link));
  HAWSER_STEP();
  holds_back_.store(true, std::memory_order_seq_cst);
}

Duration PollSet::flush_links() {
  holds_back_.store(false, std::memory_order_seq_cst);
  HAWSER_STEP();
  Duration waited{};
  for (const auto& link : std::exchange(*holding_.lock(), {})) {
    waited = std::max(waited, link->flush());
  }
  return waited;
}

bool PollSet::next(Arrival& arrival) {
  adopt_added();
  const bool unasked = reads_sockets_unasked();
  for (; quiet_in_a_row_ < links_.size(); ++quiet_in_a_row_) {
    if (cursor_ >= links_.size()) cursor_ = 0;
    Watched& watched = *links_[cursor_];
    if ((watched.ready || (unasked && watched.announced) || watched.link->pending()) &&
        take_from(watched, arrival)) {
      quiet_in_a_row_ = 0;
      if (arrival.closed) {
        burst_ = 0;
        forget(cursor_);
      } else if (++burst_ >= kMaxBurst) {
        burst_ = 0;
        watched.ran_long = true;
        ++cursor_;
        if (!unasked) look_at_sockets();  // they too get their turn beside a ring never dry
      }
      return true;
    }
    burst_ = 0;
    ++cursor_;
  }
  quiet_in_a_row_ = 0;
  if (!unasked || ++rounds_ % kRoundsBetweenSocketLooks == 0) look_at_sockets();
  return false;
}

void PollSet::disarm() {
  HAWSER_STEP();
  bell_.announce_awake();
  if (socket_links_.load(std::memory_order_relaxed) != 0) connect_sockets(false);
}

bool PollSet::arm_and_look() {
  bell_.announce_sleep();
  HAWSER_STEP();
  look_at_sockets();
  adopt_added();
  for (const auto& watched : links_) {
    if (watched->ready || watched->link->pending()) return true;
  }
  HAWSER_STEP();
  connect_sockets(true);
  return something_added_.load(std::memory_order_seq_cst) || holds_back();
}

void PollSet::connect_sockets(bool connected) {
  // One shot: the anchor is woken once, whatever arrives until somebody has looked. Connecting a
  // set in which something is ready already wakes at once.
  const bool fired = sockets_fired_.exchange(false);
  if (connected == sockets_connected_ && !fired) return;
  sockets_connected_ = connected;
  // That has disconnected it. Should an anchor have said so late, of an earlier shot, one wakes in
  // vain.
  if (!connected && fired) return;
  control(sleepers_.get(), EPOLL_CTL_MOD, sockets_.get(), connected ? EPOLLIN | EPOLLONESHOT : 0u);
}

PollSet::Wakeup PollSet::sleep(Deadline deadline) {
  epoll_event events[4];
  const int count = ::epoll_wait(sleepers_.get(), events, 4, milliseconds_until(deadline));
  HAWSER_STEP();
  Wakeup wakeup;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == tick_.get()) {
      std::uint64_t expirations = 0;
      wakeup.tick = ::read(tick_.get(), &expirations, sizeof expirations) > 0;
      continue;
    }
    wakeup.news = true;
    if (events[i].data.fd == sockets_.get()) sockets_fired_.store(true);
  }
  return wakeup;
}

void PollSet::start_tick() {
  if (tick_running_.load(std::memory_order_seq_cst) ||
      tick_running_.exchange(true, std::memory_order_seq_cst)) {
    return;
  }
  itimerspec every{};
  every.it_interval.tv_nsec = kTickNanoseconds;
  every.it_value.tv_nsec = kTickNanoseconds;
  ::timerfd_settime(tick_.get(), 0, &every, nullptr);
}

void PollSet::stop_tick() {
  const itimerspec never{};
  HAWSER_STEP();
  ::timerfd_settime(tick_.get(), 0, &never, nullptr);
  tick_running_.store(false, std::memory_order_seq_cst);
}

}  // namespace hawser::transport
