#include "hawser/trace/pass_record.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace hawser::trace {
namespace {

// Of a thread that nobody watches: one that has done nothing yet.
const at::ThreadLocalState& unwatched() {
  static const at::ThreadLocalState state = [] {
    std::optional<at::ThreadLocalState> fresh;
    std::thread([&] { fresh.emplace(); }).join();
    return *fresh;
  }();
  return state;
}

at::ThreadLocalState recording_for(const std::shared_ptr<Recorder>& recorder) {
  const at::ThreadLocalStateGuard apart(unwatched());
  const Recording recording(recorder);
  return at::ThreadLocalState();
}

std::shared_ptr<Recorder> current_recorder() {
  Recorder* const recorder = Recorder::current();
  return recorder ? recorder->shared_from_this() : nullptr;
}

std::uint32_t wanted_here() {
  const Recorder* const recorder = Recorder::current();
  return (recorder ? recorder->wanted() : 0) | wants_of_torch_profiler();
}

}  // namespace

PassRecord::PassRecord(std::uint64_t pass, wire::TraceProcess self)
    : pass_(pass),
      self_(std::move(self)),
      recorder_(current_recorder()),
      wants_(wanted_here()),
      part_(Part{.start_ns = wall_ns()}) {}

PassRecord::PassRecord(std::uint64_t pass, std::uint32_t wants, wire::TraceProcess self)
    : pass_(pass),
      self_(std::move(self)),
      own_(std::make_shared<Recorder>(wants, self_)),
      recorder_(own_),
      state_(recording_for(own_)),
      wants_(wants),
      part_(Part{.start_ns = wall_ns()}) {}

wire::TraceNote PassRecord::note() const {
  return {.call = 0, .record = wants_, .sent_at_ns = wall_ns(), .received_at_ns = 0};
}

std::shared_ptr<CallRecord> PassRecord::send_gradients(std::string_view to, std::int64_t called_ns,
                                                       std::size_t bytes) const {
  const at::ThreadLocalStateGuard as_watched(state_);
  return std::make_shared<CallRecord>(CallNames{.style = CallStyle::Backward,
                                                .target = wire::TargetKind::Autograd,
                                                .function = "gradients",
                                                .from = self_.name,
                                                .to = to},
                                      self_, called_ns, bytes);
}

void PassRecord::part_begun() { part_.lock()->begun_ns = wall_ns(); }

// Whoever has begun the pass still waits for the others.
void PassRecord::part_done() {
  auto part = part_.lock();
  part->done_ns = wall_ns();
  if (own_) tell(*part);
}

void PassRecord::over() { tell(*part_.lock()); }

void PassRecord::tell(Part& part) {
  if (std::exchange(part.told, true) || !recorder_) return;
  wire::TraceEvent event;
  event.kind = wire::TraceEventKind::Part;
  event.thread = static_cast<std::uint32_t>(at::RecordFunction::currentThreadId());
  event.name = "backward";
  event.start_ns = part.start_ns;
  event.begun_ns = part.begun_ns;
  event.done_ns = part.done_ns;
  event.end_ns = wall_ns();
  event.pass = pass_;
  recorder_->add(std::move(event));
}

PassService::PassService(std::shared_ptr<PassRecord> record,
                         const std::optional<wire::TraceNote>& note, std::uint64_t gradients_of,
                         ServingProfiles& profiles)
    : record_(std::move(record)),
      note_(note),
      gradients_of_(gradients_of),
      profiles_(profiles),
      thread_(static_cast<std::uint32_t>(at::RecordFunction::currentThreadId())),
      served_ns_(wall_ns()) {}

std::optional<wire::TraceReport> PassService::finish(bool is_last) {
  if (gradients_of_ == 0) return std::nullopt;
  const std::int64_t now = wall_ns();
  if (note_ && record_->recorder_ && (note_->record & wire::kTraceTimeline)) {
    wire::TraceEvent service;
    service.kind = wire::TraceEventKind::Service;
    service.thread = thread_;
    service.name = "gradients";
    service.start_ns = note_->received_at_ns;
    // Gradients that overtook the word which functions wait for them were held until it came.
    service.begun_ns = std::clamp(record_->part_.lock()->begun_ns, served_ns_, now);
    service.done_ns = service.end_ns = now;
    service.call = note_->call;
    service.sent = gradients_of_;
    service.pass = record_->pass();
    record_->recorder_->add(std::move(service));
  }
  wire::TraceReport report;
  if (is_last && !record_->begun_here()) {
    Recorded recorded = record_->own_->take();
    if (profiles_.wants() != 0) profiles_.add({recorded, record_->own_->begun_ns()});
    report.processes = std::move(recorded.processes);
    report.events = std::move(recorded.events);
    report.dropped = recorded.dropped;
  }
  if (!note_) return std::nullopt;
  report.received_at_ns = note_->received_at_ns;
  report.answered_at_ns = wall_ns();
  return report;
}

std::shared_ptr<PassRecord> PassRecords::add(std::shared_ptr<PassRecord> record) {
  auto records = records_.lock();
  const auto [added, is_new] = records->try_emplace(record->pass(), record);
  count_.store(records->size(), std::memory_order_relaxed);
  return added->second;
}

void PassRecords::begin(std::uint64_t pass) {
  auto record = std::make_shared<PassRecord>(pass, self_);
  if (record->wants() != 0) add(std::move(record));
}

std::shared_ptr<PassService> PassRecords::serve(std::uint64_t pass,
                                                const std::optional<wire::TraceNote>& note,
                                                std::uint64_t gradients_of) {
  const std::uint32_t wants = (note ? note->record : 0) | profiles_.wants();
  if (wants == 0) return nullptr;
  auto record = find(pass);
  if (!record) record = add(std::make_shared<PassRecord>(pass, wants, self_));
  return std::make_shared<PassService>(std::move(record), note, gradients_of, profiles_);
}

std::shared_ptr<PassRecord> PassRecords::find(std::uint64_t pass) const {
  if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
  auto records = records_.lock();
  const auto found = records->find(pass);
  return found == records->end() ? nullptr : found->second;
}

void PassRecords::end(std::uint64_t pass, bool begun_here) {
  const auto record = find(pass);
  if (!record || record->begun_here() != begun_here) return;
  record->over();
  auto records = records_.lock();
  records->erase(pass);
  count_.store(records->size(), std::memory_order_relaxed);
}

StartingPart::StartingPart(PassRecord* record) {
  if (record) {
    record->part_begun();
    state_.emplace(record->state());
  } else if (is_watched()) {
    state_.emplace(unwatched());
  }
}

}  // namespace hawser::trace
