#include "hawser/autograd/releases.h"

#include <algorithm>
#include <utility>

#include "hawser/autograd/fault.h"

namespace hawser::autograd {

void Releases::post(const Party& to, ContextId context) {
  Box& box = boxes_[to.name];
  box.waiting.emplace(context, to.incarnation);
  if (box.on_the_way.empty() && box.retry.is_never()) send(to.name, box);
}

// To whoever has the name: a later life has nothing to release, and is not harmed.
void Releases::send(const std::string& peer, Box& box) {
  box.on_the_way = std::exchange(box.waiting, {});
  box.retry = Deadline::never();
  Release release;
  for (const auto& [context, life] : box.on_the_way) release.contexts.push_back(context);
  box.call = desk_.send({peer, {}}, std::move(release), Desk::ToRelease{peer},
                        desk_.options.errand_timeout);
}

void Releases::answered(const std::string& peer, Outgoing call, bool arrived, TimePoint now) {
  const auto at = boxes_.find(peer);
  if (at == boxes_.end() || at->second.call != call) return;
  Box& box = at->second;
  if (arrived || HAWSER_FAULT(kReleaseOnce)) {
    box.on_the_way.clear();
    box.pause = {};
    if (box.waiting.empty()) {
      boxes_.erase(at);
    } else {
      send(peer, box);
    }
    return;
  }
  box.waiting.merge(box.on_the_way);
  box.on_the_way.clear();
  box.pause = std::clamp(box.pause * 2, desk_.options.first_retry, desk_.options.last_retry);
  box.retry = Deadline(now + box.pause);
}

void Releases::lost(const Party& party) {
  const auto at = boxes_.find(party.name);
  if (at == boxes_.end()) return;
  const auto is_over = [&](const auto& word) { return word.second <= party.incarnation; };
  std::erase_if(at->second.waiting, is_over);
  std::erase_if(at->second.on_the_way, is_over);
  if (at->second.waiting.empty() && at->second.on_the_way.empty()) boxes_.erase(at);
}

void Releases::tick(TimePoint now) {
  for (auto& [peer, box] : boxes_) {
    if (box.retry.passed(now)) send(peer, box);
  }
}

Deadline Releases::next_due() const {
  Deadline due;
  for (const auto& [peer, box] : boxes_) due = std::min(due, box.retry);
  return due;
}

}  // namespace hawser::autograd
