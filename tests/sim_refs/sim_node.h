#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hawser/refs/ledger.h"
#include "sim_refs/model.h"

namespace hawser::refs::simulation {

// What a node needs of its world.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual transport::sim::SimWorld& world() = 0;
  virtual Model& model() = 0;
  virtual transport::sim::SeededRandom& whims() = 0;
  // The incarnation it was sent to; nothing when there is no connection and none can be made.
  virtual std::optional<Incarnation> send(Envelope envelope) = 0;
  virtual void reach(const Party& from, const std::string& to) = 0;
  virtual void tell_lost(const Party& from, const Party& to) = 0;
  // Runs the task then, if this life of the node still goes on.
  virtual void later(const Party& whose, Duration delay, UniqueFunction<void()> task) = 0;
  virtual CallNumber next_call() = 0;
  virtual std::vector<std::string> others(const std::string& than) = 0;
};

LedgerOptions ledger_options();
Duration longest_call();

// One life of a node: a real Ledger, and a program above it that creates, shares, uses and drops.
class SimNode {
 public:
  SimNode(Surroundings& out, Party self, std::uint32_t rank);

  const Party& self() const { return self_; }
  const Ledger& ledger() const { return ledger_; }

  // --- the program ---
  void do_something();
  void use_everything();
  void drop_everything();

  // --- the world ---
  void receive(const Envelope& envelope);
  void met(const Party& party);
  void disconnected(const std::string& peer);
  // It has given up this incarnation.
  void lost(const Party& party);
  void rejoin(Incarnation incarnation);

  // Compares the ledger with what the program holds.
  void check_tables();
  // Nothing is on its way, though references may be held.
  void check_rest();
  // All were dropped everywhere.
  void check_empty();

 private:
  struct Handle {
    ValueNumber value = 0;
    TicketNumber ticket = 0;  // of a value elsewhere
    ForkId fork{};            // the same
    RefId ref{};
    bool at_home = false;
  };
  struct Call {
    Kind kind{};
    std::string to;
    std::optional<Incarnation> sent_to{};  // nothing: it has not left
    std::vector<SimTicket> tickets{};      // given
    std::optional<SimTicket> creates{};
    std::optional<Handle> uses{};
  };

  // Events of the ledger come with this.
  TimePoint now() { return out_.world().now(); }
  void perform();
  void arm_timer();

  void make_value();
  void create_elsewhere();
  void share();
  void ask_for_tickets();
  void use(const Handle& handle);
  void drop(std::size_t which);
  std::optional<SimTicket> give(const Handle& handle, const std::string& to);
  void call(Call call, Envelope envelope);
  bool post(CallNumber number, Envelope envelope);
  void end(CallNumber number, const Envelope* reply, ErrorKind why);
  std::optional<std::size_t> any_handle();

  void take_tickets(const std::vector<SimTicket>& tickets);
  void serve_creation(const Envelope& envelope);
  void serve_carry(const Envelope& envelope);
  void serve_use(const Envelope& envelope);
  void answer_use(const Envelope& use, Finding finding);

  Surroundings& out_;
  Party self_;
  const std::uint32_t rank_;
  Ledger ledger_;
  std::map<RefId, ValueNumber> values_;
  std::map<RefId, ValueNumber> in_the_making_;
  std::vector<Handle> handles_;
  std::map<CallNumber, Call> calls_;
  std::map<Waiter, Envelope> waiting_;
  std::map<ForkId, TicketNumber> tickets_;  // that it holds, to name them
  Deadline timer_;
};

}  // namespace hawser::refs::simulation
