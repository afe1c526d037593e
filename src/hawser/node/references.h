#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hawser/agent/agent.h"
#include "hawser/agent/incoming_call.h"
#include "hawser/base/clock.h"
#include "hawser/base/guarded.h"
#include "hawser/base/timers.h"
#include "hawser/node/kept.h"
#include "hawser/refs/ledger.h"
#include "hawser/tensor/value_codec.h"

namespace hawser::agent {
class Crew;
}
namespace hawser::transport {
class Doorbell;
}

namespace hawser {

class Node;
class References;

// A reference as the program holds it: to a value of this node, or to one elsewhere. When the last
// handle is gone, the owner hears of it soon.
//
// Thread-safe. The destructor takes no lock and waits for nothing: it may run in a finaliser.
class RefHandle final : public ScriptableReference {
 public:
  // `fork` is empty for a value of this node.
  RefHandle(std::shared_ptr<References> references, std::string owner, refs::RefId id,
            std::optional<refs::ForkId> fork, std::string type);
  ~RefHandle() override;
  RefHandle(const RefHandle&) = delete;

  References& references() const { return *references_; }
  const std::string& owner() const { return owner_; }
  bool is_owner() const { return !fork_.has_value(); }
  const refs::RefId& id() const { return id_; }
  const std::optional<refs::ForkId>& fork() const { return fork_; }
  const std::string& type() const { return type_; }  // as far as its creator knew
  const std::string& origin() const { return origin_; }

  // The owner has this reference on its list.
  bool confirmed() const;
  // Why it can be used no more, if so.
  std::optional<Error> error() const;
  // It came in a message, and was not created here.
  bool received() const { return received_; }
  c10::intrusive_ptr<c10::RRefInterface> as_rref(std::shared_ptr<ScriptableReference> self,
                                                 c10::TypePtr element) const override;
  // Gives it up now instead of with the last handle. What is on its way is not affected.
  void release();
  bool released() const { return released_.load(std::memory_order_acquire); }

 private:
  friend class References;
  const std::shared_ptr<References> references_;
  const std::string owner_;
  const refs::RefId id_;
  const std::optional<refs::ForkId> fork_;
  const std::string type_;
  std::string origin_;     // where it was created, if that is recorded; set before it is shared
  bool received_ = false;  // likewise
  std::atomic<bool> released_{false};
};

// One reference, or one value of this node, for those who look.
struct RefReport {
  std::string id;
  std::string owner;
  bool mine = false;
  std::string state;                 // "pending", "ready", "failed", "creating", "confirmed", ...
  std::string type;                  // empty while it is not known
  std::string made_by;               // the function that made it
  std::size_t bytes = 0;             // of a value of this node
  std::vector<std::string> holders;  // other nodes that hold it; of a value of this node
  std::uint32_t handles = 0;         // of this node
  Duration age{};
  std::string origin;  // where it was created, if that is recorded
};

// How the error of a reference begins whose value was perhaps never created.
inline constexpr std::string_view kNotCreated = "the value was not created: ";

// What keeps shutdown from being clean, and how much there is of it.
struct RefCounts {
  std::size_t values = 0;     // of this node
  std::size_t shared = 0;     // of those, held elsewhere, too
  std::size_t forks = 0;      // of those, at other nodes
  std::size_t held = 0;       // of values elsewhere
  std::size_t creating = 0;   // not confirmed yet, of those and of values
  std::size_t unsettled = 0;  // records that others have not acknowledged
};

// The references of a node: joins the ledger (refs/PROTOCOL.md, which says what is called when) to
// the agent, and keeps the values. One lock is around the ledger and the values; what the ledger
// wants done is done after it is released, and no value is destroyed under it.
//
//   HANDLE-1   A handle's end, and that a value was created, is put on a list without a lock.
//              Whoever next takes the lock tells the ledger first; while there are handles a timer
//              does it every kTidyInterval. (Only create() leaves the list alone: its caller is in
//              a hurry.)
//   LEISURE-1  Owners do not wake a creator to tell it that a value is there: it finds that out
//              when it is awake, or by a timer that has it look at its links.
//
// Thread-safe; never blocks.
class References : public std::enable_shared_from_this<References> {
 public:
  struct Surroundings {
    agent::Agent& agent;
    Timers& timers;
    const Clock& clock;
    std::shared_ptr<agent::Crew> crew;
    std::shared_ptr<transport::Doorbell> bell;
    Node& node;
    // While this is there, so is all of the above (but the node, which ends with close()).
    std::weak_ptr<void> alive;
  };
  References(refs::Self self, Surroundings surroundings);
  ~References();

  // Throws Error(Invalid) when it is closed.
  Node& node();

  // ------ for the program ------
  // `origin` says where in the program that is; may be empty.
  std::shared_ptr<RefHandle> keep(std::shared_ptr<Kept> value, std::string origin = {});
  struct Creation {
    std::shared_ptr<RefHandle> handle;
    wire::Creation note{};  // for the call that creates the value
  };
  Creation create(const std::string& owner, std::string_view function, std::string type,
                  std::string origin = {});
  // That call has ended; exactly once.
  void creation_ended(const RefHandle& handle, const agent::Answer& answer);

  // What happens when the owner has confirmed the reference or it has failed; null once it has.
  std::shared_ptr<Event> answer_of_owner(const RefHandle& handle);

  // Around each call on a reference. Throws the reason when it cannot be used.
  enum class Use : std::uint64_t { Safe = 0 };
  Use begin_use(const RefHandle& handle);
  void end_use(const RefHandle& handle, Use use);
  // The call that this use is. While it is not certain that there will be a value, it ends when
  // that is known (unless the use is Safe).
  void cancel_with(const RefHandle& handle, Use use, const agent::CallHandle& call);

  // Of a value of this node: `then` is called with it, or with its failure, at once or later on the
  // crew. It must be brief. Returns a number for stop_waiting(), after which it is not called
  // unless that has begun.
  std::uint64_t when_there(const RefHandle& handle, UniqueFunction<void(Found)> then);
  void stop_waiting(const refs::RefId& id, std::uint64_t number);
  // Of a value of this node: it exists.
  bool has_value(const RefHandle& handle);

  // ------ for messages ------
  // Makes tickets of the references in a payload for that node. Throws when one cannot be used;
  // the payload is then as it was.
  std::vector<refs::ForkId> give(wire::Payload& payload, std::string_view to);
  // The message is out of our hands; `sent_to` as in Ledger::settled().
  void given(const std::vector<refs::ForkId>& forks, std::string_view to,
             std::optional<Incarnation> sent_to);
  // A payload has been received, and later frames have not been looked at. Null where a reference
  // has come too late.
  void adopt(wire::ReceivedPayload& payload);

  // ------ for serving ------
  // The value that a call is to make. Unless it is told what became of it, that is a failure.
  class Expected {
   public:
    Expected(std::shared_ptr<References> references, refs::RefId id)
        : references_(std::move(references)), id_(id) {}
    ~Expected();
    Expected(const Expected&) = delete;
    // The first one counts. `at_the_end`: on a hand of the crew that has nothing more to do than to
    // return; it then sees to those who wait for a copy of the value.
    void fulfil(std::shared_ptr<Kept> value, bool at_the_end);
    void fail(KeptFailure failure, bool at_the_end);

   private:
    const std::shared_ptr<References> references_;
    const refs::RefId id_;
    std::atomic<bool> done_{false};
  };
  // A call with `creates` has been received. Null when it must not run.
  std::shared_ptr<Expected> accept(const wire::Creation& creation, std::string_view function,
                                   const agent::Caller& from);
  // Serves a call on a value of this node: at once, or when the value is there.
  void serve(const CallContext& context);
  // The same where no user code may run: a call that needs some is left alone (false).
  bool serve_without_running(const CallContext& context);

  // ------ what the agent reports ------
  void connected(const std::string& peer, Incarnation incarnation);
  void disconnected(const std::string& peer);
  void barred(const std::string& peer, Incarnation incarnation);
  void given_up(const std::string& peer);
  void rejoined(Incarnation incarnation);
  void received(const std::string& peer, Incarnation incarnation, wire::References&& message);

  // ------ the end, and looking ------
  // Each reference to a value elsewhere that the program still has.
  std::vector<std::string> describe_held();
  // This node holds values of others, and others hold values of this node that it does not hold
  // itself: if that does not end by itself, some of them hold each other.
  bool entangled();
  // Lets go of every reference to values elsewhere; what the program still has can be used no more.
  void release_all();
  // Nothing of this node is held elsewhere, and the other way round.
  bool idle();
  std::vector<std::string> describe_leaks();
  // The node is closed: all values go, and handles are of no more use.
  void close();

  std::vector<RefReport> report();
  RefCounts count();

 private:
  friend class RefHandle;
  struct Value {
    std::shared_ptr<Kept> value{};
    std::unique_ptr<KeptFailure> failure{};  // large, and rare
    std::string made_by{};
    std::string origin{};
    bool not_created = false;  // the call that should have made it failed as a call
  };
  // Those who want to know how it goes on with a reference that is not confirmed.
  struct Watchers {
    std::unordered_map<std::uint64_t, agent::CallHandle> uses{};  // that end when it fails
    std::vector<std::shared_ptr<Event>> waiting{};                // for the owner to answer
  };
  struct Handle {
    std::weak_ptr<RefHandle> handle{};
    std::unique_ptr<Watchers> watchers{};  // null: none

    Watchers& watched() {
      if (!watchers) watchers = std::make_unique<Watchers>();
      return *watchers;
    }
  };
  // Somebody who waits for a value of this node.
  struct Waiting {
    UniqueFunction<void(Found)> then{};
    refs::RefId id{};
    bool brief = false;
  };
  struct State {
    explicit State(refs::Self self)
        : incarnation(self.incarnation), ledger(std::move(self), refs::LedgerOptions{}) {}
    Incarnation incarnation;
    refs::Ledger ledger;
    std::unordered_map<refs::RefId, Value, refs::IdHash> values{};
    std::unordered_map<refs::ForkId, Handle, refs::IdHash> handles{};
    std::unordered_map<std::uint64_t, Waiting> waiting{};
    std::uint64_t next_number = 1;  // of waiters and uses
    std::size_t creating = 0;       // calls on their way that create values elsewhere
    TimePoint last_creation{};
    TimePoint timer_due = TimePoint::max();
    bool closed = false;
  };
  // What the ledger is yet to be told: a handle has ended, or the creation of what it refers to
  // has, well. (HANDLE-1)
  struct Slip {
    refs::RefId id;
    std::optional<refs::ForkId> fork;
    std::optional<Incarnation> created_by{};
    Slip* next = nullptr;
  };
  static constexpr Duration kTidyInterval = std::chrono::milliseconds(20);
  // How long records wait for others to travel with. Nobody waits for them but who shuts down.
  static constexpr Duration kPostInterval = std::chrono::milliseconds(10);
  // How long the end of a creation may lie unseen (LEISURE-1).
  static constexpr Duration kLookInterval = std::chrono::milliseconds(2);
  // Of a creation that is older than that one need not know so soon how it ended.
  static constexpr Duration kQuickCreation = std::chrono::milliseconds(4);

  // Runs `event` on the state, under the lock, after the ledger has been told what is on the slips;
  // then does what the ledger wants done. False when the node is closed.
  // What it wants said to others waits for the next post, unless that is now or it is plenty.
  enum class Post { Later, Now };
  struct Manner {
    Post post = Post::Later;
    bool at_the_end = false;  // as in Expected
    bool slips_first = true;
  };
  using Happening = c10::function_ref<void(State& state, TimePoint now)>;
  bool tell(Happening event, Manner manner);
  bool tell(Happening event) { return tell(event, Manner{}); }
  // The same; throws when the node is closed.
  void ask(Happening event, Manner manner);
  void ask(Happening event) { ask(event, Manner{}); }
  void perform(refs::Actions&& actions, bool at_the_end);
  void wake(const refs::Wake& wake, bool at_the_end);
  Watchers take_watchers(const refs::ForkId& fork);
  void read_slips(State& state, TimePoint now);
  void leave_slip(Slip slip);
  void ended(const RefHandle& handle);
  std::optional<TimePoint> next_timer(State& state, TimePoint now);
  void timer_fired();
  std::shared_ptr<RefHandle> new_handle(State& state, std::string owner, refs::RefId id,
                                        std::optional<refs::ForkId> fork, std::string type);
  Found found(const State& state, const refs::RefId& id, refs::Finding finding) const;
  void settle(const refs::RefId& id, Found outcome, bool at_the_end);
  std::optional<Found> find_or_wait(State& state, TimePoint now, std::uint64_t number,
                                    Waiting& waiting);
  void stop_waiting_when_cancelled(const CallContext& context, const refs::RefId& id,
                                   std::uint64_t number);

  const Surroundings out_;
  const std::string self_;
  const std::uint32_t rank_;
  Guarded<State> state_;
  std::atomic<Slip*> slips_{nullptr};  // the latest first
  std::atomic<std::size_t> handles_alive_{0};
  std::atomic<std::size_t> creating_own_{0};  // calls to oneself that create values
};

}  // namespace hawser
