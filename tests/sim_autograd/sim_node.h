#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hawser/autograd/conductor.h"
#include "sim_autograd/local_engine.h"
#include "sim_autograd/surroundings.h"

namespace hawser::autograd::simulation {

// One life of a node: a real Conductor, and above it what the layer above will be: programs that
// call each other, a local graph, an engine.
class SimNode {
 public:
  SimNode(Surroundings& out, Party self, std::uint16_t rank);

  const Party& self() const { return self_; }

  // --- the program ---
  // A context: forward, backward as often as it likes, and release.
  void run_a_context();

  // --- the world ---
  void receive(const Party& from, CallNumber call, Parcel parcel);
  void met(const Party& party);
  void disconnected(const std::string& peer);
  void lost(const Party& party);
  void rejoin(Incarnation incarnation);

  void check_gradients(ContextId context);
  void check_is_gone(PassId pass);
  // All contexts were released everywhere.
  void check_empty();

 private:
  struct LocalContext {
    std::map<MessageId, FunctionNumber> sends{};
    std::map<MessageId, FunctionNumber> recvs{};
    std::map<FunctionNumber, MessageId> recv_ids{};
    std::map<FunctionNumber, Gradient> gradients{};
    std::vector<Value> put_aside{};
  };
  struct LocalPass {
    ContextId context{};
    std::vector<Value> roots{};
    bool retain_graph = true;
    std::optional<LocalEngine> engine{};
    bool stepping = false;
    bool ended = false;
  };
  struct Received {
    PassId pass{};
    std::vector<Gradient> gradients{};
  };
  // Values that one run of a program has at hand.
  struct Frame {
    ContextId context{};
    Order order{};
    std::vector<Value> values{};
    int steps = 0;
    int unanswered = 0;
    UniqueFunction<void(const std::shared_ptr<Frame>&)> finish{};
    bool in_a_hurry = false;  // does not wait for all its calls
  };
  using FramePtr = std::shared_ptr<Frame>;

  TimePoint now() { return out_.world().now(); }
  void perform();
  void arm_timer();
  void act(Send& action);
  void act(Answer& action);
  void act(Explore& action);
  void act(StartLocal& action);
  void act(Deliver& action);
  void act(AbortLocal& action);
  void act(CommitLocal& action);
  void act(Finished& action);
  void act(DropContext& action);

  void step_later(PassId pass);
  void step(PassId pass);
  void end_local(PassId pass, Result<void> result);

  // --- sim_program.cpp ---
  void go_on(const FramePtr& frame);
  void finish_if_ready(const FramePtr& frame);
  void make_value(Frame& frame);
  void call_somebody(const FramePtr& frame);
  Value sum_of(Frame& frame, std::size_t terms);
  Value sum_of_all(Frame& frame);
  void serve(const Party& from, CallNumber call, const Parcel& parcel);
  std::optional<std::vector<Value>> take(const Parcel& parcel, const Party& from);
  Parcel pack(ContextId context, const Party& to, const std::vector<Value>& values);
  void begin_passes(const FramePtr& frame, int left);
  void begin_pass(Frame& frame, bool last);
  void release_when_quiet(ContextId context, int patience);

  Surroundings& out_;
  Party self_;
  const std::uint16_t rank_;
  Conductor conductor_;
  std::deque<Action> to_do_;
  bool performing_ = false;
  std::map<ContextId, LocalContext> contexts_;
  std::map<PassId, LocalPass> passes_;
  std::map<GradientHandle, Received> gradients_;
  std::map<Incoming, GradientHandle> came_with_;
  std::uint64_t last_handle_ = 0;
  std::vector<FunctionNumber> leaves_;
  Deadline timer_;
};

}  // namespace hawser::autograd::simulation
