#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hawser/base/future.h"
#include "hawser/node/backward.h"
#include "hawser/node/call_context.h"
#include "hawser/node/function.h"
#include "hawser/node/inspect.h"
#include "hawser/node/options.h"
#include "hawser/node/references.h"
#include "hawser/tensor/convert.h"
#include "hawser/trace/call_record.h"

namespace hawser {

// How one call is to be made.
struct CallOptions {
  std::string_view to;
  // Absent: the node's call_timeout, and never longer than what is left of the call being served.
  std::optional<Duration> timeout{};
};

// A call as it travels.
struct WrittenCall {
  wire::TargetKind target = wire::TargetKind::Function;
  std::string function;
  wire::Payload payload;
  std::shared_ptr<RefHandle> on{};  // Method: the value that it is about
  c10::TypePtr returns{};           // of the result, as far as it is known here
  // For profiles: how it is made, its name where `function` is none, and when the program made it,
  // as trace::stamp() says.
  trace::CallStyle style = trace::CallStyle::Async;
  std::string label{};
  std::int64_t called_ns = 0;
};

class Autograd;    // node/autograd.h
class ScriptHost;  // node/scripts.h
template <class T>
class Ref;  // node/ref.h

// A member of a world: serves functions and calls those of others.
//
//   hawser::Node node({.name = "trainer", .rendezvous = "tcp://127.0.0.1:29500", .rank = 0,
//                      .world_size = 2});
//   node.serve("scale", [](at::Tensor x, double k) { return x * k; });
//   at::Tensor y = node.call<at::Tensor>("worker", "scale", x, 2.0).get();
//
// Thread-safe. Several nodes can live in one process. Destroying a node closes it.
class Node {
 public:
  // Joins the world and starts serving. Does not wait for other nodes: a call to one that has not
  // arrived waits for it within its deadline. Throws Error.
  explicit Node(NodeOptions options);
  ~Node();
  Node(const Node&) = delete;

  const std::string& name() const;

  // --- serving ---

  // Serves a function under a name without "::". Arguments and result may be anything that has a
  // Codec (tensor/convert.h); a `const CallContext&` as the first parameter gets the call; a
  // Future<T> as the result answers when it is settled, and so does a coroutine that returns one.
  // The function may run on several threads at once. Replaces an earlier one of that name.
  template <class F>
  void serve(std::string name, F function) {
    serve_function(make_function(std::move(name), std::move(function)));
  }
  // Serves a method of the values that functions of this node leave behind references:
  // serve_method("forward", &Model::forward), or a function whose first parameter is a Model&.
  // It may run on several threads at once, on the same value.
  template <class M>
  void serve_method(std::string name, M method) {
    using Traits = detail::MethodOf<M>;
    auto wrapped = std::make_shared<const Method>(Traits::wrap(name, std::move(method)));
    add_method(typeid(typename Traits::Value), std::move(name), std::move(wrapped));
  }
  // False when nothing of that name was served. Calls that run already are not affected.
  bool withdraw(std::string_view name);

  // --- calling ---

  // Calls `function` on the node of that name (this one included; a call to oneself copies like any
  // other). A name with "::" in it is a libtorch operator, such as "aten::add": its overload is
  // chosen here, and the callee runs it without any registration. Never blocks for the network,
  // except that it waits for room while Limits::max_bytes_in_flight_per_peer are unanswered; it
  // fails with Overloaded when there is none in time.
  //
  // Tensors are not copied before they are sent: do not write to them until the future is settled.
  // Everything else has been copied when this returns.
  template <class R = c10::IValue, class... Args>
  Future<R> call(std::string_view to, std::string_view function, Args&&... args) {
    return call<R>(CallOptions{.to = to}, function, std::forward<Args>(args)...);
  }
  template <class R = c10::IValue, class... Args>
  Future<R> call(const CallOptions& options, std::string_view function, Args&&... args) {
    const std::int64_t called_ns = trace::stamp();
    WrittenCall written = write_call<R>(function, std::forward<Args>(args)...);
    written.called_ns = called_ns;
    return send<R>(options, std::move(written));
  }
  // Calls a TorchScript function by its qualified name. Where this node has it, too
  // (NodeOptions::scripts), the arguments are held against its schema here, and c10::Error says
  // what does not fit; else at the callee.
  template <class R = c10::IValue, class... Args>
  Future<R> call_script(const CallOptions& options, std::string_view function, Args&&... args) {
    return send<R>(options,
                   write_script_call(function, {c10::IValue(std::forward<Args>(args))...}));
  }
  template <class R = c10::IValue, class... Args>
  Future<R> call_script(std::string_view to, std::string_view function, Args&&... args) {
    return call_script<R>(CallOptions{.to = to}, function, std::forward<Args>(args)...);
  }
  // Sends and forgets: no answer, no error, no trace if the callee is not there.
  template <class... Args>
  void notify(std::string_view to, std::string_view function, Args&&... args) {
    notify_written(to, {wire::TargetKind::Function, std::string(function),
                        write_arguments(nullptr, std::forward<Args>(args)...)});
  }

  // Connects to a node, so that the first call to it does not have to wait for that. Throws
  // Error(Timeout).
  void connect(std::string_view to, Duration timeout = std::chrono::seconds(60));

  // --- references (node/ref.h) ---

  // Calls `function`; its result, an R, stays there, and the reference can be used at once. The
  // time limit is that of the function.
  template <class R = c10::IValue, class... Args>
  Ref<R> remote(std::string_view to, std::string_view function, Args&&... args) {
    return remote<R>(CallOptions{.to = to}, function, std::forward<Args>(args)...);
  }
  template <class R = c10::IValue, class... Args>
  Ref<R> remote(const CallOptions& options, std::string_view function, Args&&... args);
  // The same with a TorchScript function.
  template <class R = c10::IValue, class... Args>
  Ref<R> remote_script(const CallOptions& options, std::string_view function, Args&&... args);
  // A reference to a value of this node. A pointer stands for what it points to.
  template <class T>
  Ref<typename Pointee<std::decay_t<T>>::Type> ref(T&& value);
  // The values of this node behind references, and the references it holds.
  std::vector<RefReport> refs() const;

  // --- distributed autograd (node/autograd_context.h) ---

  // Settled when the gradients of all leaves are there, on every node. Throws Error(Invalid) for
  // roots and contexts that make no sense.
  Future<void> backward(autograd::ContextId context, const std::vector<at::Tensor>& roots,
                        BackwardOptions options = {});
  // The same, and waits: this thread does what work of the pass comes to it meanwhile.
  void run_backward(autograd::ContextId context, const std::vector<at::Tensor>& roots,
                    const BackwardOptions& options);

  // --- the end ---

  // Graceful: serves on until every member of a static world has called it or is lost and no call
  // is running anywhere, then closes. However long that takes, unless a `timeout` other than 0 is
  // given: then throws Error(Timeout), naming who is missing, and the node goes on. In a dynamic
  // world waits for this node's own calls, then leaves. Throws Error(Cancelled) when the node is
  // closed meanwhile.
  void shutdown(Duration timeout = kForever);
  // The first part of it: the node serves on until close(). Throws as shutdown() does.
  void depart(Duration timeout = kForever);
  // The second: lets go of all references that this node holds. What they are is logged: as info,
  // and, where the members of a static world are found to hold each other's values, as warnings.
  void release_references();
  // The third: waits until their owners know and, in a static world, others have let go of the
  // values here, too. False when that was not so in time; shutdown() has kReleasePatience.
  bool await_release(Duration timeout);
  static constexpr Duration kReleasePatience = std::chrono::seconds(5);
  // The fourth: logs as warnings what is still referenced.
  void report_leaks() const;
  // At once: outstanding calls fail, handlers are told that they are cancelled and waited for until
  // the deadline. Idempotent, never throws. False when handlers were still running.
  bool close(Duration patience = std::chrono::seconds(5));
  bool closed() const;

  // --- profiling (docs/profiling.md) ---

  // Records everything that this node does for others until the matching end, which returns it. For
  // what calls do elsewhere, see trace/recorder.h. Nestable.
  void begin_serving_profile(std::uint32_t wants = wire::kTraceRanges);
  trace::ServingProfiles::Served end_serving_profile();
  // This process, as recordings name it.
  wire::TraceProcess process() const;

  NodeReport inspect() const;

  // Of the members of a static world, once all have joined: rank to name. Throws Error(Timeout).
  std::map<std::uint32_t, std::string> members(Duration timeout = kForever);
  // Whether a node of that name is in the world now, and its rank. Throws Error when the rendezvous
  // does not answer in time.
  std::optional<std::uint32_t> look_up(std::string_view name,
                                       Duration timeout = std::chrono::seconds(10));

  // The rank of a member, by name. Asks the rendezvous where it is not known. Throws Error(Invalid)
  // if there is none.
  std::uint32_t rank_of(const std::string& name);

  std::shared_ptr<Scheduler> scheduler() const;

  // --- for bindings to other languages ---

  // Calls with arguments that are written already; `on_answer` reads the answer itself (see
  // agent::AnswerHandler for what it may do) and is called exactly once. Returns what cancels the
  // call.
  UniqueFunction<void()> call_written(const CallOptions& options, WrittenCall&& call,
                                      agent::AnswerHandler&& on_answer);
  void notify_written(std::string_view to, WrittenCall&& call);
  void serve_function(std::shared_ptr<Function> function);
  // The result stays at the callee. `on_created` learns how the call ended, as an AnswerHandler;
  // the payload is empty, or a copy of the value that is as good as any later one.
  std::shared_ptr<RefHandle> create_written(
      const CallOptions& options, WrittenCall&& call, std::string type,
      UniqueFunction<void(agent::Answer&&)> on_created = nullptr, std::string origin = {});
  std::shared_ptr<RefHandle> keep(std::shared_ptr<Kept> value, std::string origin = {});
  // Looks after the network while that is worth more than to sleep, or until the event has
  // happened; whether it has.
  bool look_on(Event& event);
  // Of a value of this node, once it is there. Throws its failure, and Error(Timeout): no longer
  // than the call being served.
  Found find_local(const RefHandle& handle, Duration timeout);
  // Of a value of this node.
  bool has_value(const RefHandle& handle);
  References& references() const;
  Autograd& autograd() const;
  std::shared_ptr<const Method> find_method(const std::type_info& type,
                                            std::string_view name) const;
  ScriptHost& scripts() const;
  void set_call_timeout(Duration timeout);
  Duration call_timeout() const;

  // The node of the call that this thread serves, else the one whose future has called back here,
  // else the process's default node (the oldest that is open). Throws Error(Invalid) when there is
  // none.
  static Node& current();
  // The same; null when there is none.
  static Node* find_current();

 private:
  class Machinery;
  static bool is_operator(std::string_view function) {
    return function.find("::") != std::string_view::npos;
  }
  WrittenCall match_operator(std::string_view name, std::vector<c10::IValue> args);
  WrittenCall write_script_call(std::string_view function, std::vector<c10::IValue> args);
  struct Timing {
    TimePoint now;
    Deadline deadline;
    Duration budget;  // until then, from the moment of the call
  };
  Timing timing_of(const CallOptions& options) const;
  // Returns what cancels the call.
  UniqueFunction<void()> send_raw(std::string_view to, Timing timing, WrittenCall&& call,
                                  agent::AnswerHandler&& on_answer,
                                  const wire::Creation* creates = nullptr);
  std::optional<wire::AutogradNote> record(autograd::ContextId context, std::string_view to,
                                           const WrittenCall& call,
                                           agent::AnswerHandler& on_answer);
  std::optional<wire::TraceNote> trace_call(std::string_view to, const WrittenCall& call,
                                            bool creates, agent::AnswerHandler& on_answer);
  References::Use hold_references(std::string_view to, WrittenCall& call,
                                  agent::AnswerHandler& on_answer);
  void add_method(const std::type_info& type, std::string name,
                  std::shared_ptr<const Method> method);

  template <class R, class... Args>
  WrittenCall write_call(std::string_view function, Args&&... args) {
    if (!is_operator(function)) {
      return {wire::TargetKind::Function, std::string(function),
              write_arguments(nullptr, std::forward<Args>(args)...)};
    }
    if constexpr ((std::is_constructible_v<c10::IValue, Args&&> && ...)) {
      return match_operator(function, {c10::IValue(std::forward<Args>(args))...});
    } else {
      throw Error(ErrorKind::Invalid, std::string(function) + " takes IValues; one of " +
                                          signature<R, std::decay_t<Args>...>() + " is none");
    }
  }

  template <class R>
  Future<R> send(const CallOptions& options, WrittenCall&& call) {
    const Timing timing = timing_of(options);
    auto [promise, future] = Promise<R>::pair(scheduler(), timing.deadline);
    future.set_canceller(send_raw(options.to, timing, std::move(call),
                                  [promise = std::move(promise)](agent::Answer&& answer) mutable {
                                    settle(promise, answer);
                                  }));
    return std::move(future);  // a binding: not moved by itself
  }
  template <class R>
  static void settle(Promise<R>& promise, agent::Answer& answer) {
    if (answer.error) return promise.fail(*answer.error);
    promise.settle_with([&] {
      PayloadReader reader(answer.payload);
      return read_result<R>(reader);
    });
  }

  template <class T>
  friend class Ref;

  std::shared_ptr<Machinery> machinery_;
};

}  // namespace hawser
