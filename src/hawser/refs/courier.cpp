#include "hawser/refs/courier.h"

#include <algorithm>
#include <utility>

#include "hawser/refs/fault.h"

namespace hawser::refs {

// ------------------------------------------------------------------------------- channels

Courier::Channels::value_type* Courier::open(const Party& party) {
  if (roster_.is_over(party)) return nullptr;
  auto& named = *channels_.try_emplace(party.name).first;
  if (named.second.incarnation != party.incarnation) reset(named.second, party.incarnation);
  return &named;
}

void Courier::reset(Channel& channel, Incarnation incarnation) {
  const bool touched = channel.touched;
  channel = Channel{};
  channel.incarnation = incarnation;
  channel.touched = touched;
  channel.pause = options_.first_retry;
}

void Courier::touch(Channels::value_type& channel) {
  if (std::exchange(channel.second.touched, true)) return;
  touched_.push_back(&channel);
}

void Courier::connected(std::string_view name) {
  const auto found = channels_.find(name);
  if (found == channels_.end()) return;
  found->second.unsent = found->second.first;
  found->second.pause = options_.first_retry;
  touch(*found);
}

void Courier::lost(const Roster::Entry& node) {
  const auto found = channels_.find(node.name);
  if (found != channels_.end() && node.is_over(found->second.incarnation)) {
    reset(found->second, Incarnation{});
  }
}

void Courier::start_over() {
  for (auto& [name, channel] : channels_) reset(channel, Incarnation{});
}

// ------------------------------------------------------------------------------- in

std::vector<Record> Courier::receive(const Party& from, Message&& message, TimePoint now) {
  auto* const named = open(from);
  if (!named) return {};
  touch(*named);
  Channel& channel = named->second;
  acknowledged(channel, message.expected, now);
  if (message.records.empty()) return {};
  channel.owes_ack = !HAWSER_FAULT(kDropAck);
  const std::uint64_t end = message.first + message.records.size();
  const bool gap = message.first > channel.expected && !HAWSER_FAULT(kSkipGap);
  const bool known = end <= channel.expected && !HAWSER_FAULT(kDeliverTwice);
  if (gap || known) return {};
  std::vector<Record> fresh = std::move(message.records);
  if (message.first < channel.expected && !HAWSER_FAULT(kDeliverTwice)) {
    const auto had = static_cast<std::ptrdiff_t>(channel.expected - message.first);
    fresh.erase(fresh.begin(), fresh.begin() + had);
  }
  channel.expected = std::max(channel.expected, end);
  return fresh;
}

void Courier::acknowledged(Channel& channel, std::uint64_t up_to, TimePoint now) {
  // A connection that was made anew has us send again what is acknowledged meanwhile: up to end().
  up_to = std::min(up_to, channel.end());
  if (up_to <= channel.first) return;
  const auto count = static_cast<std::ptrdiff_t>(up_to - channel.first);
  channel.kept.erase(channel.kept.begin(), channel.kept.begin() + count);
  channel.first = up_to;
  channel.unsent = std::max(channel.unsent, up_to);
  channel.pause = options_.first_retry;
  if (channel.on_the_way()) watch(channel, now);
}

// ------------------------------------------------------------------------------- out

void Courier::post(const Party& to, Record record) {
  auto* const named = open(to);
  if (!named) return;
  Channel& channel = named->second;
  channel.kept.push_back(std::move(record));
  if (channel.waiting() >= options_.plenty) plenty_waiting_ = true;
  touch(*named);
}

void Courier::tick(TimePoint now) {
  if (!next_due_.passed(now)) return;
  next_due_ = Deadline::never();
  for (auto& named : channels_) {
    Channel& channel = named.second;
    if (!channel.on_the_way()) continue;
    if (!channel.retry.passed(now)) {
      next_due_ = std::min(next_due_, channel.retry);
      continue;
    }
    if (HAWSER_FAULT(kForgetRetry)) continue;
    channel.unsent = channel.first;
    channel.pause = std::min(channel.pause * 2, options_.last_retry);
    touch(named);
  }
}

void Courier::collect(TimePoint now, Actions& out) {
  plenty_waiting_ = false;
  for (auto* const named : std::exchange(touched_, {})) {
    Channel& channel = named->second;
    channel.touched = false;
    while (channel.waiting() > 0 &&
           (!channel.on_the_way() || channel.waiting() >= options_.plenty)) {
      Message message = make_message(channel);
      channel.unsent += message.records.size();
      channel.owes_ack = false;
      watch(channel, now);
      out.push_back(Send{{named->first, channel.incarnation}, std::move(message)});
    }
    if (std::exchange(channel.owes_ack, false)) {
      out.push_back(
          Send{{named->first, channel.incarnation}, {channel.expected, channel.end(), {}}});
    }
  }
}

Message Courier::make_message(const Channel& channel) const {
  const auto begin =
      channel.kept.begin() + static_cast<std::ptrdiff_t>(channel.unsent - channel.first);
  const auto count = std::min<std::uint64_t>(channel.waiting(), options_.max_records);
  return {channel.expected, channel.unsent, {begin, begin + static_cast<std::ptrdiff_t>(count)}};
}

void Courier::watch(Channel& channel, TimePoint now) {
  channel.retry = Deadline(now + channel.pause);
  next_due_ = std::min(next_due_, channel.retry);
}

std::size_t Courier::unacknowledged() const {
  std::size_t count = 0;
  for (const auto& [name, channel] : channels_) count += channel.kept.size();
  return count;
}

bool Courier::has_mail_for(std::string_view name) const {
  const auto found = channels_.find(name);
  return found != channels_.end() && !found->second.kept.empty();
}

}  // namespace hawser::refs
