#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hawser/transport/sim/sim_world.h"
#include "sim_refs/mail.h"

namespace hawser::refs::simulation {

// What is true of the simulated world, kept apart from the ledgers: which values there are, who
// holds tickets to them, which tickets fly, and of what the owners have heard. It knows ids of its
// own and no code of the layer under test. Every event is held against it; what does not fit
// becomes a complaint.
//
//   REF-1  A value that was dropped has no holder and no ticket on its way that is *legitimate*:
//          the owner has heard of it, or its giver lives and is legitimate itself. A use, an
//          adoption or a claim may fail only where that is not so, and then with PeerLost.
//   REF-2  At rest a value exists only where somebody holds it.
//   REF-3  A use finds the value it is meant for, or an error; never another.
//   REF-4  A reference that has not failed can be given on and used at once.
class Model {
 public:
  Model(transport::sim::SimWorld& world, Duration ask_after)
      : world_(world), ask_after_(ask_after) {}

  // --- lives ---
  void started(const Party& party) { alive_[party.name] = party.incarnation; }
  void ended(const Party& party);
  // Ended with everything that was in it.
  void crashed(const Party& party);
  bool is_alive(const Party& party) const;
  // It has given the other up. Stays when it comes back as `heir`, not when it crashes.
  void barred(const Party& by, const Party& other) { bars_.insert({by, other}); }
  bool has_barred(const Party& by, const Party& other) const { return bars_.contains({by, other}); }
  void rejoined(const Party& old, const Party& heir);
  // Was told that nobody of that name can be found: references to it may fail.
  void told_unreachable(const Party& by, const std::string& name);

  // --- values ---
  ValueNumber new_value(const std::string& owner, const Party& creator);
  void created(ValueNumber value, const Party& owner);
  // Its creator does not wait for it any more.
  void creation_over(ValueNumber value) { values_[value].creation_over = true; }
  // The call that creates it has ended, however it ended.
  void creation_ended(ValueNumber value) { values_[value].creating = false; }
  void dropped(ValueNumber value);
  void local(ValueNumber value, int by) { values_[value].local += by; }
  std::optional<Party> owner(ValueNumber value) const { return values_.at(value).owner; }

  // --- tickets ---
  // The creator's own, which it holds from the beginning.
  TicketNumber creates(ValueNumber value, const ForkId& fork, const Party& creator);
  // `from`: the giver's own; none when it is the owner.
  TicketNumber granted(ValueNumber value, const ForkId& fork, const Party& giver,
                       TicketNumber from);
  void flies(TicketNumber number, const Party& to);
  void landed(TicketNumber number) { --tickets_[number].copies; }
  void settled(TicketNumber number);
  void adopted(TicketNumber number, const Party& by, bool at_home);
  void refused(TicketNumber number, const Party& by);
  void held(TicketNumber number, int by) { tickets_[number].handles += by; }
  void used(TicketNumber number, int by) { tickets_[number].uses += by; }
  void failed(TicketNumber number, ErrorKind why);
  void could_not_give(TicketNumber number);
  void could_not_give_own(ValueNumber value, const Party& by);
  // A letter is handed over: what the owner hears by it, if it is the next in order.
  void letter(const Party& from, const Party& to, const Message& message);

  // --- uses ---
  void found(const Envelope& use, const Party& owner, Finding finding,
             std::optional<ValueNumber> value);

  // After every step.
  void check();
  // In a calm world: nothing stays longer than that when nobody holds it.
  void check_promptness(Duration bound);
  // When everything has come to an end, though some still hold references.
  void check_rest();

  void complain(const std::string& what);
  const std::vector<std::string>& complaints() const { return complaints_; }
  struct Counts {
    std::uint64_t values = 0, dropped = 0, tickets = 0, adopted = 0, refused = 0, failed = 0;
    std::uint64_t found = 0, gone = 0, orphans = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Value {
    std::string owner_name;
    std::optional<Party> owner;  // once it was created
    Party creator;
    TimePoint born;
    bool creation_over = false;
    bool dropped = false;
    bool creating = false;
    int local = 0;
    std::optional<TimePoint> unheld_since;
    std::vector<TicketNumber> tickets;
  };
  struct Ticket {
    ValueNumber value = 0;
    Party giver;
    TicketNumber from = 0;
    Party receiver;
    int copies = 0;
    bool in_hand = false;  // of the giver: given and not settled
    std::optional<TimePoint> settled;
    std::optional<Party> holder;
    int handles = 0;
    int uses = 0;  // on their way
    bool was_adopted = false;
    bool heard = false;  // by the owner, while the value was there
    bool failed = false;
    bool excused = false;  // void: its owner has come again
    // May fail, though the value is there: its holder was told that there is nobody of the owner's
    // name; or it was given before the value was created, when a life of the owner had just ended,
    // and the holder may have taken that one for the value's.
    bool shaky = false;
  };

  bool apart(const Party& one, const Party& other) const;
  // It stands for somebody who may use the value.
  bool counts_as_holder(const Ticket& ticket) const;
  bool may_keep(const Ticket& ticket) const;
  bool is_held(const Value& value) const;
  bool is_legitimate(const Ticket& ticket) const;
  bool may_be_denied(const Ticket& ticket) const;
  bool owner_changed_about_birth(const Value& value) const;
  void hear(const ForkId& fork, const Party& owner);
  std::string describe(TicketNumber number) const;

  transport::sim::SimWorld& world_;
  const Duration ask_after_;
  std::map<std::string, Incarnation> alive_;
  std::map<std::string, TimePoint> last_end_;
  std::set<std::pair<Party, Party>> bars_;
  std::map<std::pair<Party, Party>, std::uint64_t> next_record_;  // from, to
  std::vector<Value> values_{1};
  std::vector<Ticket> tickets_{1};
  std::map<ForkId, TicketNumber> by_fork_;
  std::set<ValueNumber> watched_;  // dropped, while somebody might miss them
  std::vector<std::string> complaints_;
  Counts counts_;
};

}  // namespace hawser::refs::simulation
