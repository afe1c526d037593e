#include <algorithm>

#include "sim/stories.h"

namespace hawser::simulation {
namespace {

using namespace std::chrono_literals;

class CallsStory final : public Story {
 public:
  CallsStory(std::uint64_t seed, StoryOptions options)
      : Story(seed, options), loose_(dice_.per_mille(150)) {}

  Outcome tell() {
    for (const auto& name : stage_.names) {
      stage_.world.after(dice_.between(0ms, 300ms), [this, name] { start(name); });
    }
    if (loose_) {
      stage_.model.everything_disturbed();
      loosen({wire::Kind::Call, wire::Kind::Reply, wire::Kind::Failure, wire::Kind::Cancel,
              wire::Kind::Heartbeat, wire::Kind::HeartbeatEcho});
    }
    stage_.world.after(50ms, [this] { next_call(); });
    run_for(500ms);
    start_trouble();
    lie_in_wait({wire::Kind::Hello, wire::Kind::Challenge, wire::Kind::Proof, wire::Kind::Welcome,
                 wire::Kind::Refusal, wire::Kind::Call, wire::Kind::Reply, wire::Kind::Failure,
                 wire::Kind::Cancel, wire::Kind::Heartbeat, wire::Kind::HeartbeatEcho,
                 wire::Kind::Goodbye});
    run_for(3s + dice_.between(0s, 3s));
    calling_ = false;
    call_off();
    if (loose_) stage_.model.everything_disturbed();
    stop_trouble();
    settle();
    probe();
    return outcome();
  }

 private:
  void next_call() {
    if (!calling_) return;
    stage_.world.after(dice_.between(1ms, 40ms), [this] { next_call(); });
    const auto names = running_names();
    if (names.empty()) return;
    SimNode& from = node(dice_.one_of(names));
    if (from.process().state() != SimProcess::State::Running) return;
    if (dice_.per_mille(100)) return change_mind(from);
    const auto function = static_cast<Function>(dice_.below(8));
    // Nobody could stop a one-way call that hangs.
    const bool one_way =
        function == Function::Relay || (function != Function::Hang && dice_.per_mille(50));
    const std::string& to = dice_.one_of(stage_.names);
    from.call(to, function, draw_deadline(one_way), one_way, 0);
  }

  // Where frames get lost, a call without a deadline may wait for ever.
  Deadline draw_deadline(bool one_way) {
    const auto in = [&](Duration budget) { return Deadline(stage_.world.now() + budget); };
    switch (dice_.below(loose_ && !one_way ? 3 : 4)) {
      case 0:
        return in(dice_.between(100us, 5ms));
      case 1:
        return in(dice_.between(5ms, 500ms));
      case 2:
        return in(dice_.between(500ms, 4s));
      default:
        return Deadline::never();
    }
  }

  void change_mind(SimNode& from) {
    const auto calls = from.calls_in_flight();
    if (!calls.empty()) from.cancel(dice_.one_of(calls));
  }

  void settle() {
    for (int i = 0; i < 5; ++i) {
      for (const auto& name : running_names()) {
        SimNode& each = node(name);
        for (const CallNumber number : each.calls_in_flight()) {
          if (stage_.model.call(number).deadline.is_never()) each.cancel(number);
        }
      }
      run_for(i == 0 ? 4s : 500ms);
    }
    if (!stage_.model.complaints().empty()) return;
    stage_.model.check_rest();
    for (const auto& name : running_names()) node(name).check_rest();
  }

  // In peace everybody reaches everybody. A first call may still find out that a connection, or a
  // whole incarnation, is gone; a later one may not.
  void probe() {
    constexpr int kTries = 3;
    for (const auto& from : running_names()) {
      for (const auto& to : running_names()) {
        bool reached = false;
        for (int i = 0; i < kTries && !reached; ++i) {
          if (!stage_.model.complaints().empty()) return;
          const auto before = stage_.model.succeeded();
          const CallNumber number =
              node(from).call(to, Function::Echo, Deadline(stage_.world.now() + 2s), false, 0);
          for (int j = 0; j < 400 && !stage_.model.call(number).done; ++j) run_for(5ms);
          reached = stage_.model.succeeded() > before;
        }
        if (!reached) stage_.model.complain(from + " cannot reach " + to + " in peace");
      }
    }
  }

  const bool loose_;
  bool calling_ = true;
};

}  // namespace

Outcome tell_calls(std::uint64_t seed, StoryOptions options) {
  return CallsStory(seed, options).tell();
}

}  // namespace hawser::simulation
