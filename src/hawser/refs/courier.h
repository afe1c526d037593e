#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hawser/base/clock.h"
#include "hawser/refs/actions.h"
#include "hawser/refs/records.h"
#include "hawser/refs/roster.h"

namespace hawser::refs {

struct CourierOptions {
  Duration first_retry = std::chrono::milliseconds(250);  // doubles
  Duration last_retry = std::chrono::seconds(5);
  std::size_t max_records = 2048;  // in one message
  // As many do not wait for others. Few enough that what they are about is still in the cache.
  std::size_t plenty = 128;
};

// Carries records between this incarnation and others, over messages that may be lost, repeated or
// overtaken.
//
//   POST-1  Records to one incarnation are taken out there once each and in the order of post(),
//           for as long as neither of the two is lost.
//
// Records are numbered from 1 in each direction. What is not acknowledged is kept and sent again,
// after a pause that doubles, or at once when there is a new connection. A receiver skips what it
// had and ignores what comes after a gap. While records are on their way, new ones wait for the
// acknowledgement or until there are plenty of them: nothing waits when there is little to say, and
// many travel together when there is much.
//
// Sans-IO. Not thread-safe.
class Courier {
 public:
  Courier(CourierOptions options, Roster& roster) : options_(options), roster_(roster) {}

  // Dropped if the party is lost.
  void post(const Party& to, Record record);
  // What is new in it, to be acted on.
  std::vector<Record> receive(const Party& from, Message&& message, TimePoint now);
  // There is a connection: whatever was on its way is gone or acknowledged.
  void connected(std::string_view name);
  // Records to and from lives of that node that are over are nobody's business any more.
  void lost(const Roster::Entry& node);
  // To all: this node has a new incarnation.
  void start_over();

  // Looks for what has waited long enough to be sent again.
  void tick(TimePoint now);
  // Not later than the first attempt that is due.
  Deadline next_due() const { return next_due_; }
  // What is to be sent now, as Send. After every event.
  void collect(TimePoint now, Actions& out);

  // Whether collect() would find something.
  bool has_something_to_say() const { return !touched_.empty(); }
  // So much that nothing is gained by collecting later.
  bool has_plenty_to_say() const { return plenty_waiting_; }
  std::size_t unacknowledged() const;
  bool has_mail_for(std::string_view name) const;

 private:
  // Never erased, so that there can be pointers to it; one for each node, of its latest life.
  struct Channel {
    Incarnation incarnation{};
    std::deque<Record> kept{};  // not acknowledged; the first has the number `first`
    std::uint64_t first = 1;
    std::uint64_t unsent = 1;    // number of the first that is not on its way
    std::uint64_t expected = 1;  // of the other's records
    bool owes_ack = false;
    bool touched = false;  // since the last collect()
    Duration pause{};      // until the next attempt
    Deadline retry{};

    std::uint64_t end() const { return first + kept.size(); }
    std::uint64_t waiting() const { return end() - unsent; }
    bool on_the_way() const { return unsent > first; }
  };
  using Channels = std::map<std::string, Channel, std::less<>>;

  Channels::value_type* open(const Party& party);
  void reset(Channel& channel, Incarnation incarnation);
  void touch(Channels::value_type& channel);
  void acknowledged(Channel& channel, std::uint64_t up_to, TimePoint now);
  Message make_message(const Channel& channel) const;
  void watch(Channel& channel, TimePoint now);

  const CourierOptions options_;
  Roster& roster_;
  Channels channels_;
  std::vector<Channels::value_type*> touched_;
  bool plenty_waiting_ = false;
  Deadline next_due_;
};

}  // namespace hawser::refs
