#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "hawser/base/event.h"
#include "hawser/base/guarded.h"
#include "hawser/base/name_map.h"
#include "hawser/bindings/py_object.h"
#include "hawser/bindings/py_value.h"
#include "hawser/node/node.h"

namespace hawser::bindings {

// A node and what Python has attached to it. The hooks are read and set with the interpreter lock.
class NodeCore : public std::enable_shared_from_this<NodeCore> {
 public:
  // What others may have run here. Functions: what was served, operators that NodeOptions allow,
  // scripts. Nothing that they send is unpickled, imported, or looked up in a Python object.
  enum class Trust { Full, Functions };

  // Without the interpreter lock: joining takes a while.
  struct Hooks {
    AnywhereObject pickler;             // null: hawser's own
    AnywhereObject describe_exception;  // null: that of hawser.errors
    AnywhereObject make_exception;
  };
  using Served = std::vector<std::pair<std::string, AnywhereObject>>;  // from the start
  static std::shared_ptr<NodeCore> start(NodeOptions options, Trust trust, Hooks hooks,
                                         Served served);
  ~NodeCore();
  NodeCore(const NodeCore&) = delete;

  Node& node() { return *node_; }
  Trust trust() const { return trust_; }

  const script::Program& scripts() const { return *scripts_; }

  Hooks& hooks() { return hooks_; }
  Picklers picklers() const;

  // The arguments may be null. Throws what keeps the call from being written.
  WrittenCall write_call(PyObject* function, PyObject* args, PyObject* kwargs) const;

  bool records_origins() const { return records_origins_; }

  // Whether what a function leaves behind references has lately been so small and unchangeable that
  // a copy came along with the answer: then who wants the value waits for that instead of asking.
  // By the function's name; null when it has none or there are too many. Lives as long as the node.
  struct Habit {
    static constexpr int kSure = 4;
    static constexpr int kMost = 16;
    int copies_in_a_row = 0;

    bool brings_copies() const { return copies_in_a_row >= kSure; }
    void learn(bool brought) {
      copies_in_a_row = brought ? std::min(copies_in_a_row + 1, kMost) : 0;
    }
  };
  Habit* habit_of(std::string_view function);

  // A function under a name, for callers in any language.
  void serve(std::string name, PyObject* function);

  // Lets others call that method of values of the class, or of one that is derived from it, where
  // not every method can be called anyway. With the interpreter lock.
  void serve_method(PyTypeObject* type, std::string name);
  bool may_call(PyObject* value, std::string_view method) const;  // takes the lock if need be
  // Throws Error(Refused) when it may not. With the interpreter lock.
  void check_may_call(PyObject* value, std::string_view method) const;

  // The Python exception for a call that failed.
  Object exception_for(const Error& error, wire::ReceivedPayload& payload) const;

 private:
  std::shared_ptr<Function> served_function(std::string name, AnywhereObject function);
  NodeCore(Trust trust, Hooks hooks, bool records_origins,
           std::shared_ptr<const script::Program> scripts)
      : trust_(trust),
        scripts_(std::move(scripts)),
        hooks_(std::move(hooks)),
        records_origins_(records_origins) {}

  const Trust trust_;
  const std::shared_ptr<const script::Program> scripts_;
  Hooks hooks_;
  const bool records_origins_;
  // With the interpreter lock.
  NameMap<Habit> habits_;
  std::vector<std::pair<AnywhereObject, std::string>> methods_;  // class, name
  std::unique_ptr<Node> node_;
};

// Whether values of that type are of one that has a name, or contain such: they are read as what
// the type says, and that may run a script (__setstate__).
bool has_named_type(const c10::Type& type);

// A call that was made from Python. The answer is kept as it came; it is read by who waits.
class PendingCall {
 public:
  // `declared` is the type that TorchScript has for the result; null if it has none.
  explicit PendingCall(std::shared_ptr<NodeCore> core, c10::TypePtr declared = nullptr)
      : core_(std::move(core)), declared_(std::move(declared)) {}

  NodeCore& core() const { return *core_; }
  const Event& answered() const { return answered_; }
  Event& mutable_answered() { return answered_; }

  void set_answer(agent::Answer&& answer) {
    answer_ = std::move(answer);
    answered_.set();
  }
  bool failed() const { return answer_.error.has_value(); }  // once answered

  // With the interpreter lock, which is let go meanwhile. False when `patience` passed first.
  // Throws PythonErrorSet on an interrupt.
  bool wait(Duration patience = kForever);

  // Once answered, with the interpreter lock: the value, or PythonErrorSet. A value can be read
  // once; an error any number of times.
  Object read();
  // The same as a value of TorchScript, without the interpreter lock. Throws Error. Of a call that
  // has not failed.
  c10::IValue read_for_script();
  const c10::TypePtr& declared() const { return declared_; }

 private:
  const std::shared_ptr<NodeCore> core_;
  const c10::TypePtr declared_;
  Event answered_;
  agent::Answer answer_;
};

// Of a node that was started by Python. Throws Error(Invalid) when it is closed.
std::shared_ptr<NodeCore> core_of(const Node& node);

// Closes every node that is open, without the interpreter lock.
void close_all_nodes();

// Waits with the interpreter lock let go, and looks after signals where that is this thread's job.
bool wait_interruptibly(Scheduler& scheduler, Event& event, Deadline deadline);
bool wait_interruptibly(const std::function<bool(Deadline)>& wait, Deadline deadline);

// Sets the Python error for what is being handled; for the boundary to Python.
void set_python_error(const NodeCore* core);

}  // namespace hawser::bindings
