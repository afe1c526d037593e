#include "hawser/transport/sim/sim_cable.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hawser::transport::sim {
namespace {

wire::InFrame copy_of(const wire::InFrame& frame) {
  wire::InFrame copy{frame.kind, wire::BodyBytes(frame.body.size()), frame.segments};
  if (frame.body.size() > 0) {
    std::memcpy(copy.body.data(), frame.body.view().data(), frame.body.size());
  }
  return copy;
}

}  // namespace

SimCable::SimCable(SimNetwork& network, std::shared_ptr<SimProcess> initiator,
                   std::shared_ptr<SimProcess> acceptor)
    : network_(network),
      processes_{std::move(initiator), std::move(acceptor)},
      loopback_(processes_[0] == processes_[1]) {}

bool SimCable::joins(const std::string& one, const std::string& another) const {
  return (processes_[0]->name() == one && processes_[1]->name() == another) ||
         (processes_[0]->name() == another && processes_[1]->name() == one);
}

bool SimCable::send(Side from, wire::InFrame frame) {
  const Side to = other(from);
  auto ends = ends_.lock();
  if (ends->end[from].closed || ends->end[from].ended) return false;
  if (ends->severed) return true;
  if (network_.on_sent) {
    network_.on_sent(frame.kind, processes_[from]->name(), processes_[to]->name());
  }
  auto& flying = ends->end[to].flying;
  if (!loopback_ && network_.conditions().loose_kinds.contains(frame.kind)) {
    send_loosely(to, flying, std::move(frame));
  } else {
    flying.push_back(std::move(frame));
    schedule_delivery(to);
  }
  return true;
}

void SimCable::send_loosely(Side to, std::deque<wire::InFrame>& flying, wire::InFrame frame) {
  const NetworkConditions& conditions = network_.conditions();
  const wire::Kind kind = frame.kind;
  if (network_.per_mille(conditions.drop)) return network_.count(kind, Mishap::Dropped);
  if (network_.per_mille(conditions.duplicate)) {
    network_.count(kind, Mishap::Duplicated);
    flying.push_back(copy_of(frame));
    schedule_delivery(to);
  }
  // A frame may overtake others, but not the end of the handshake.
  const auto first = std::find_if_not(flying.begin(), flying.end(), [](const wire::InFrame& f) {
    return wire::is_handshake(f.kind);
  });
  const auto places = static_cast<std::size_t>(flying.end() - first);
  if (places > 0 && network_.per_mille(conditions.reorder)) {
    network_.count(kind, Mishap::Reordered);
    flying.insert(first + static_cast<std::ptrdiff_t>(network_.below(places)), std::move(frame));
  } else {
    flying.push_back(std::move(frame));
  }
  schedule_delivery(to);
}

void SimCable::schedule_delivery(Side to) {
  network_.world().after(network_.draw_delay(),
                         [self = shared_from_this(), to] { self->deliver(to); });
}

// One frame, or the end of the stream. Whichever event comes first delivers the oldest frame, so
// the order is kept whatever delays are drawn.
void SimCable::deliver(Side to) {
  const SimProcess& from = *processes_[other(to)];
  const SimProcess& receiver = *processes_[to];
  {
    auto ends = ends_.lock();
    End& end = ends->end[to];
    if (end.closed || end.ended) return;
    const bool parted = network_.parted(from.name(), receiver.name());
    if (!end.flying.empty()) {
      const wire::Kind kind = end.flying.front().kind;
      if (parted) return network_.count(kind, Mishap::Partition);
      if (receiver.state() == SimProcess::State::Stopped) network_.count(kind, Mishap::Stopped);
      network_.world().note("arrives", wire::to_string(kind), from.name(), receiver.name());
      end.inbox.push_back(std::move(end.flying.front()));
      end.flying.pop_front();
    } else if (!end.ends_after_flying || parted) {
      return;
    } else {
      network_.world().note("ends", from.name(), receiver.name());
      end.ended = true;
    }
  }
  announce(to);
}

void SimCable::announce(Side to) {
  const auto ready = ends_.lock()->end[to].ready;
  if (ready) ready();
}

Link::Received SimCable::receive(Side side, wire::InFrame& frame) {
  auto ends = ends_.lock();
  End& end = ends->end[side];
  if (end.closed) return Link::Received::Closed;
  if (end.inbox.empty()) {
    if (end.ended) return Link::Received::Closed;
    end.other_took = false;
    return Link::Received::Nothing;
  }
  frame = std::move(end.inbox.front());
  end.inbox.pop_front();
  End& sender = ends->end[other(side)];
  if (std::exchange(sender.awaits_other, false)) {
    sender.other_took = true;
    network_.world().after(Duration::zero(), [self = shared_from_this(), from = other(side)] {
      self->announce(from);
    });
  }
  return Link::Received::Frame;
}

bool SimCable::backlogged(Side from, std::size_t limit) {
  if (loopback_) return false;
  auto ends = ends_.lock();
  const End& receiver = ends->end[other(from)];
  if (ends->end[from].closed || ends->severed) return false;
  std::size_t bytes = 0;
  for (const wire::InFrame& frame : receiver.flying) bytes += frame.total_bytes();
  for (const wire::InFrame& frame : receiver.inbox) bytes += frame.total_bytes();
  if (bytes > limit) ends->end[from].awaits_other = true;
  return bytes > limit;
}

bool SimCable::pending(Side side) const {
  auto ends = ends_.lock();
  const End& end = ends->end[side];
  return end.closed || end.ended || end.other_took || !end.inbox.empty();
}

void SimCable::close(Side side) {
  std::deque<wire::InFrame> inbox, flying;
  {
    auto ends = ends_.lock();
    End& own = ends->end[side];
    if (std::exchange(own.closed, true)) return;
    inbox.swap(own.inbox);
    flying.swap(own.flying);
    if (!loopback_ && !ends->severed) {
      End& end = ends->end[other(side)];
      if (!end.flying.empty() && network_.per_mille(network_.conditions().close_resets)) {
        lose_tail(end.flying, Mishap::Cut);
      }
      end.ends_after_flying = true;
      schedule_delivery(other(side));
    }
  }
  network_.world().after(Duration::zero(),
                         [self = shared_from_this(), side] { self->announce(side); });
}

void SimCable::on_ready(Side side, std::function<void()> callback) {
  auto ends = ends_.lock();
  ends->end[side].ready.swap(callback);
  ends.unlock();  // before the one that was there dies
}

// ---------------------------------------------------------------------------------- faults

void SimCable::lose_from(std::size_t first, std::deque<wire::InFrame>& frames, Mishap mishap) {
  for (std::size_t i = first; i < frames.size(); ++i) network_.count(frames[i].kind, mishap);
  frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(first), frames.end());
}

void SimCable::lose_tail(std::deque<wire::InFrame>& flying, Mishap mishap) {
  lose_from(network_.below(flying.size() + 1), flying, mishap);
}

void SimCable::cut(Duration initiator_learns, Duration acceptor_learns) {
  auto ends = ends_.lock();
  if (std::exchange(ends->severed, true)) return;
  for (End& end : ends->end) lose_tail(end.flying, Mishap::Cut);
  end_stream(0, initiator_learns);
  end_stream(1, acceptor_learns);
}

void SimCable::end_stream(Side to, Duration delay) {
  network_.world().after(delay, [self = shared_from_this(), to] {
    {
      auto ends = self->ends_.lock();
      End& end = ends->end[to];
      if (end.closed || end.ended) return;
      self->lose_from(0, end.flying, Mishap::Cut);
      end.ended = true;
    }
    self->network_.world().note("breaks", self->processes_[to]->name());
    self->announce(to);
  });
}

void SimCable::process_killed(const SimProcess& process, bool host_vanishes) {
  for (Side side : {Side{0}, Side{1}}) {
    if (processes_[side].get() != &process) continue;
    std::function<void()> ready;  // dies after the lock is released
    auto ends = ends_.lock();
    End& dead = ends->end[side];
    End& survivor = ends->end[other(side)];
    const bool was_open = !std::exchange(dead.closed, true);
    lose_from(0, dead.flying, Mishap::Killed);
    lose_from(0, dead.inbox, Mishap::Killed);
    ready.swap(dead.ready);
    if (loopback_) return ends.unlock();
    if (host_vanishes) {
      lose_from(0, survivor.flying, Mishap::Killed);
      ends->severed = true;
    } else if (was_open && !ends->severed) {
      lose_tail(survivor.flying, Mishap::Killed);
      survivor.ends_after_flying = true;
      schedule_delivery(other(side));
    }
    ends.unlock();
  }
}

void SimCable::healed() {
  auto ends = ends_.lock();
  for (Side side : {Side{0}, Side{1}}) {
    const End& end = ends->end[side];
    for (std::size_t i = 0; i < end.flying.size(); ++i) schedule_delivery(side);
    if (end.ends_after_flying) schedule_delivery(side);
  }
}

}  // namespace hawser::transport::sim
