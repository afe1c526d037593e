#include "hawser/trace/service.h"

#include <utility>

#include "hawser/base/error.h"

namespace hawser::trace {
namespace {
// Beside so much plain data in one frame there may be no room for events.
constexpr std::size_t kLargeAnswer = std::size_t{32} << 20;
}  // namespace

void ServingProfiles::begin(std::uint32_t wants) {
  auto open = open_.lock();
  open->push_back({wants, wall_ns()});
  wants_.store(wants_.load() | wants);
}

ServingProfiles::Served ServingProfiles::end() {
  auto open = open_.lock();
  if (open->empty()) {
    throw Error(ErrorKind::Invalid, "no profile of the calls that are served has been begun");
  }
  Served served = std::move(open->back().served);
  open->pop_back();
  std::uint32_t rest = 0;
  for (const Profile& profile : *open) rest |= profile.wants;
  wants_.store(rest);
  return served;
}

void ServingProfiles::add(const ServedCall& call) {
  auto open = open_.lock();
  for (Profile& profile : *open) {
    if (profile.begun_ns > call.begun_ns) continue;
    if (profile.served.calls.size() < kMostCalls) {
      profile.served.calls.push_back(call);
    } else {
      ++profile.served.dropped;
    }
  }
}

Service::Service(std::string function, const std::optional<wire::TraceNote>& note,
                 std::uint64_t received, ServingProfiles& profiles, wire::TraceProcess self)
    : function_(std::move(function)),
      note_(note),
      received_(received),
      profiles_(profiles),
      recorder_(std::make_shared<Recorder>((note ? note->record : 0) | profiles.wants(),
                                           std::move(self))),
      thread_(static_cast<std::uint32_t>(at::RecordFunction::currentThreadId())) {}

void Service::function_returned() {
  std::int64_t unknown = 0;
  returned_ns_.compare_exchange_strong(unknown, wall_ns());
}

std::optional<wire::TraceReport> Service::finish(const wire::Payload& answer, std::uint64_t sent) {
  if (finished_.exchange(true)) return std::nullopt;
  function_returned();
  Recorded recorded = recorder_->take();
  if (profiles_.wants() != 0) profiles_.add({recorded, recorder_->begun_ns()});
  if (!note_) return std::nullopt;
  wire::TraceReport report;
  report.received_at_ns = note_->received_at_ns;
  report.processes = std::move(recorded.processes);
  report.events = std::move(recorded.events);
  report.dropped = recorded.dropped;
  if (answer.value.size() > kLargeAnswer) {
    report.dropped += std::exchange(report.events, {}).size();
  }
  report.answered_at_ns = wall_ns();
  if (note_->record & wire::kTraceTimeline) {
    if (report.events.size() == wire::kMaxTraceEvents) {  // this one matters more
      report.events.pop_back();
      ++report.dropped;
    }
    wire::TraceEvent service;
    service.kind = wire::TraceEventKind::Service;
    service.thread = thread_;
    service.name = function_;
    service.start_ns = note_->received_at_ns;
    service.begun_ns = recorder_->begun_ns();
    service.done_ns = returned_ns_.load();
    service.end_ns = report.answered_at_ns;
    service.call = note_->call;
    service.bytes = static_cast<std::int64_t>(answer.total_bytes());
    service.received = received_;
    service.sent = sent;
    report.events.push_back(std::move(service));
  }
  return report;
}

}  // namespace hawser::trace
