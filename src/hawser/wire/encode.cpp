#include <utility>

#include "hawser/wire/message.h"
#include "hawser/wire/protocol_generated.h"

namespace hawser::wire {
namespace {

// The schema names these values for other readers; the code uses the enums of our headers.
template <class Ours, class Schemas>
constexpr bool agree(Ours ours, Schemas schemas) {
  return static_cast<int>(ours) == static_cast<int>(schemas);
}
static_assert(agree(Kind::None, fb::Kind::None));
static_assert(agree(Kind::Hello, fb::Kind::Hello));
static_assert(agree(Kind::Challenge, fb::Kind::Challenge));
static_assert(agree(Kind::Proof, fb::Kind::Proof));
static_assert(agree(Kind::Welcome, fb::Kind::Welcome));
static_assert(agree(Kind::Refusal, fb::Kind::Refusal));
static_assert(agree(Kind::Call, fb::Kind::Call));
static_assert(agree(Kind::Reply, fb::Kind::Reply));
static_assert(agree(Kind::Failure, fb::Kind::Failure));
static_assert(agree(Kind::Cancel, fb::Kind::Cancel));
static_assert(agree(Kind::Heartbeat, fb::Kind::Heartbeat));
static_assert(agree(Kind::HeartbeatEcho, fb::Kind::HeartbeatEcho));
static_assert(agree(Kind::Goodbye, fb::Kind::Goodbye));
static_assert(agree(Kind::Arrival, fb::Kind::Arrival));
static_assert(agree(Kind::Census, fb::Kind::Census));
static_assert(agree(Kind::CensusReport, fb::Kind::CensusReport));
static_assert(agree(Kind::Dismissal, fb::Kind::Dismissal));
static_assert(agree(Kind::References, fb::Kind::References));
static_assert(agree(TargetKind::Function, fb::TargetKind::Function));
static_assert(agree(TargetKind::Operator, fb::TargetKind::Operator));
static_assert(agree(TargetKind::Script, fb::TargetKind::Script));
static_assert(agree(TargetKind::Python, fb::TargetKind::Python));
static_assert(agree(TargetKind::Method, fb::TargetKind::Method));
static_assert(agree(TargetKind::Autograd, fb::TargetKind::Autograd));
static_assert(agree(TargetKind::Autograd, fb::TargetKind::MAX));
static_assert(agree(TraceEventKind::Range, fb::TraceEventKind::Range));
static_assert(agree(TraceEventKind::Memory, fb::TraceEventKind::Memory));
static_assert(agree(TraceEventKind::Call, fb::TraceEventKind::Call));
static_assert(agree(TraceEventKind::Service, fb::TraceEventKind::Service));
static_assert(agree(TraceEventKind::Part, fb::TraceEventKind::Part));
static_assert(agree(TraceEventKind::Part, fb::TraceEventKind::MAX));
static_assert(agree(RefusalReason::Malformed, fb::RefusalReason::Malformed));
static_assert(agree(RefusalReason::Version, fb::RefusalReason::Version));
static_assert(agree(RefusalReason::World, fb::RefusalReason::World));
static_assert(agree(RefusalReason::WrongName, fb::RefusalReason::WrongName));
static_assert(agree(RefusalReason::Secret, fb::RefusalReason::Secret));
static_assert(agree(RefusalReason::DeclaredLost, fb::RefusalReason::DeclaredLost));
static_assert(agree(RefusalReason::Duplicate, fb::RefusalReason::Duplicate));
static_assert(agree(RefusalReason::Busy, fb::RefusalReason::Busy));
static_assert(agree(RefusalReason::Closing, fb::RefusalReason::Closing));
static_assert(agree(RefusalReason::Transport, fb::RefusalReason::Transport));
static_assert(agree(RefusalReason::Transport, fb::RefusalReason::MAX));

using flatbuffers::Offset;
using Builder = flatbuffers::FlatBufferBuilder;
template <class T>
using VectorOffset = Offset<flatbuffers::Vector<T>>;
using TextOffset = Offset<flatbuffers::String>;

// A thread that once sent something large does not keep the memory for ever.
constexpr std::size_t kKeptBuilderBytes = std::size_t{1} << 20;

// One builder per thread: its memory stays warm and is not allocated again for every message.
Builder& fresh_builder() {
  thread_local Builder builder(1024);
  if (builder.GetSize() > kKeptBuilderBytes) {
    builder.Reset();
  } else {
    builder.Clear();
  }
  return builder;
}

template <class Table>
OutFrame finish(Builder& builder, Kind kind, Offset<Table> root,
                std::vector<Buffer> segments = {}) {
  builder.Finish(root);
  const auto* body = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return OutFrame{kind, {body, builder.GetSize()}, std::move(segments)};
}

// --------------------------------------------------------------------- what cannot be sent

void check_length(std::string_view what, std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return;
  throw Error(ErrorKind::Invalid, std::string(what) + " of " + std::to_string(text.size()) +
                                      " bytes ('" + std::string(text.substr(0, 32)) +
                                      "...'); at most " + std::to_string(limit) + " are possible");
}

void check_count(std::string_view what, std::size_t count, std::size_t limit) {
  if (count <= limit) return;
  throw Error(ErrorKind::Invalid, std::to_string(count) + " " + std::string(what) +
                                      " in one message; at most " + std::to_string(limit) +
                                      " are possible");
}

void check(const ReferenceTicket& ticket) {
  check_length("a node name", ticket.owner, kMaxNameBytes);
  check_length("a node name", ticket.parent, kMaxNameBytes);
  check_length("a type name", ticket.type, kMaxFunctionBytes);
}

// FlatBuffers itself only asserts that a body stays below 2 GiB.
void check(const Payload& payload) {
  if (!payload.held.empty())
    throw Error(ErrorKind::Invalid, "references were not given to anybody");
  check_count("tensors", payload.tensors.size(), kMaxTensors);
  check_count("references", payload.references.size(), kMaxReferences);
  std::size_t plain_bytes = payload.value.size();
  for (const TensorDesc& tensor : payload.tensors) {
    plain_bytes +=
        sizeof(std::int64_t) * (tensor.sizes.size() + tensor.strides.size() + tensor.parts.size());
  }
  for (const ReferenceTicket& ticket : payload.references) check(ticket);
  check_count("bytes of plain data", plain_bytes, kMaxPayloadBytes);
}

void check(const std::optional<TraceReport>& report) {
  if (!report) return;
  check_count("recorded events", report->events.size(), kMaxTraceEvents);
  check_count("recorded processes", report->processes.size(), kMaxTraceProcesses);
}

bool is_inside_character(std::string_view text, std::size_t at) {
  return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

// An error must always be sendable, so its texts are cut, between UTF-8 characters.
std::string_view cut(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text;
  std::size_t end = limit;
  while (end > 0 && limit - end < 3 && is_inside_character(text, end)) --end;
  return text.substr(0, end);
}

// The name of an event is the calls that led to it, and at the end what it is: both ends count.
std::string cut_within(std::string_view text, std::size_t limit) {
  constexpr std::string_view kGap = " ... ";
  const std::size_t half = (limit - kGap.size()) / 2;
  std::size_t begin = text.size() - half;
  while (text.size() - begin > half - 3 && is_inside_character(text, begin)) ++begin;
  return std::string(cut(text, half)).append(kGap).append(text.substr(begin));
}

// ------------------------------------------------------------------------- parts of messages

// Absent rather than empty: that costs no bytes.
TextOffset write_text(Builder& builder, std::string_view text) {
  return text.empty() ? 0 : builder.CreateString(text.data(), text.size());
}
TextOffset write_required_text(Builder& builder, std::string_view text) {
  return builder.CreateString(text.data(), text.size());
}
template <class T>
VectorOffset<T> write_vector(Builder& builder, std::span<const T> values) {
  return values.empty() ? 0 : builder.CreateVector(values.data(), values.size());
}
template <std::size_t kSize>
VectorOffset<std::uint8_t> write_array(Builder& builder,
                                       const std::array<std::uint8_t, kSize>& bytes) {
  return builder.CreateVector(bytes.data(), bytes.size());
}

Offset<fb::Tensor> write_tensor(Builder& builder, const TensorDesc& tensor) {
  const auto sizes = write_vector<std::int64_t>(builder, tensor.sizes);
  const auto strides = write_vector<std::int64_t>(builder, tensor.strides);
  const auto parts = write_vector<std::uint32_t>(builder, tensor.parts);
  return fb::CreateTensor(builder, tensor.dtype, static_cast<std::uint8_t>(tensor.layout),
                          tensor.flags, tensor.device, tensor.storage, tensor.offset, sizes,
                          strides, parts, tensor.scale, tensor.zero_point, tensor.axis);
}

fb::RefName write_name(const RefName& name) { return {name.on, name.local}; }

Offset<fb::Reference> write_reference(Builder& builder, const ReferenceTicket& ticket) {
  const auto owner = write_required_text(builder, ticket.owner);
  const auto parent = write_text(builder, ticket.parent);
  const auto type = write_text(builder, ticket.type);
  return fb::CreateReference(builder, owner, ticket.owner_incarnation, ticket.ref_on,
                             ticket.ref_local, ticket.fork_on, ticket.fork_local, parent, type);
}

// The tables, then the vector of their offsets, which are collected in memory that stays warm.
template <class Table, class Item, class Write>
VectorOffset<Offset<Table>> write_tables(Builder& builder, const std::vector<Item>& items,
                                         Write write) {
  if (items.empty()) return 0;
  thread_local std::vector<Offset<Table>> written;
  written.clear();
  for (const Item& item : items) written.push_back(write(builder, item));
  return builder.CreateVector(written);
}

Offset<fb::Payload> write_payload(Builder& builder, const Payload& payload) {
  if (payload.value.empty() && payload.tensors.empty() && payload.references.empty()) return 0;
  const auto references = write_tables<fb::Reference>(builder, payload.references, write_reference);
  const auto tensors = write_tables<fb::Tensor>(builder, payload.tensors, write_tensor);
  const auto value = write_vector<std::uint8_t>(
      builder, {reinterpret_cast<const std::uint8_t*>(payload.value.data()), payload.value.size()});
  return fb::CreatePayload(builder, value, tensors, references);
}

Offset<fb::AutogradNote> write_note(Builder& builder, const std::optional<AutogradNote>& note) {
  if (!note) return 0;
  const auto creator = write_text(builder, note->creator);
  return fb::CreateAutogradNote(builder, note->context, note->message, creator,
                                note->creator_incarnation, note->anomaly_mode);
}
Offset<fb::TraceNote> write_note(Builder& builder, const std::optional<TraceNote>& note) {
  if (!note) return 0;
  return fb::CreateTraceNote(builder, note->call, note->record, note->sent_at_ns);
}
Offset<fb::TraceEvent> write_event(Builder& builder, const TraceEvent& event) {
  const auto name = event.name.size() <= kMaxTraceNameBytes
                        ? write_text(builder, event.name)
                        : write_text(builder, cut_within(event.name, kMaxTraceNameBytes));
  const auto shapes = event.shapes.size() > kMaxTraceShape
                          ? VectorOffset<std::int64_t>(0)
                          : write_vector<std::int64_t>(builder, event.shapes);
  return fb::CreateTraceEvent(builder, static_cast<fb::TraceEventKind>(event.kind), event.scope,
                              event.process, event.thread, name, event.start_ns, event.end_ns,
                              event.call, event.begun_ns, event.done_ns, event.bytes, shapes,
                              event.received, event.sent, event.pass);
}
Offset<fb::TraceProcess> write_process(Builder& builder, const TraceProcess& process) {
  const auto name = write_text(builder, cut(process.name, kMaxNameBytes));
  return fb::CreateTraceProcess(builder, name, process.pid, process.node, process.clock_error_ns);
}
Offset<fb::TraceReport> write_report(Builder& builder, const std::optional<TraceReport>& report) {
  if (!report) return 0;
  const auto processes = write_tables<fb::TraceProcess>(builder, report->processes, write_process);
  const auto events = write_tables<fb::TraceEvent>(builder, report->events, write_event);
  return fb::CreateTraceReport(builder, report->received_at_ns, report->answered_at_ns, processes,
                               events, report->dropped);
}
Offset<fb::StreamNote> write_note(Builder& builder, const std::optional<StreamNote>& note) {
  if (!note) return 0;
  return fb::CreateStreamNote(builder, note->stream, note->sequence, note->last);
}

flatbuffers::Optional<std::int64_t> microseconds(
    const std::optional<std::chrono::microseconds>& duration) {
  if (!duration) return flatbuffers::nullopt;
  return static_cast<std::int64_t>(duration->count());
}

// ------------------------------------------------------------------------------- handshake

OutFrame encode_handshake(const Hello& hello) {
  check_length("a node name", hello.from, kMaxNameBytes);
  check_length("a node name", hello.to, kMaxNameBytes);
  check_count("features", hello.features.size(), kMaxFeatures);
  Builder& builder = fresh_builder();
  const auto features = write_vector<std::uint16_t>(builder, hello.features);
  const auto world = write_array(builder, hello.world.bytes);
  const auto from = write_required_text(builder, hello.from);
  const auto to = write_required_text(builder, hello.to);
  const auto nonce = write_array(builder, hello.nonce);
  return finish(
      builder, Kind::Hello,
      fb::CreateHello(builder, FrameHeader::kMagic, hello.major, hello.minor, features, world, from,
                      number(hello.incarnation), to, nonce, hello.rank.value_or(kNoRank)));
}

OutFrame encode_handshake(const Challenge& challenge) {
  check_count("features", challenge.features.size(), kMaxFeatures);
  Builder& builder = fresh_builder();
  const auto features = write_vector<std::uint16_t>(builder, challenge.features);
  const auto nonce = write_array(builder, challenge.nonce);
  const auto proof = write_array(builder, challenge.proof);
  return finish(builder, Kind::Challenge,
                fb::CreateChallenge(builder, challenge.major, challenge.minor, features,
                                    number(challenge.incarnation), nonce, proof));
}

OutFrame encode_handshake(const Proof& proof) {
  Builder& builder = fresh_builder();
  return finish(builder, Kind::Proof, fb::CreateProof(builder, write_array(builder, proof.proof)));
}

OutFrame encode_handshake(const Welcome& welcome) {
  Builder& builder = fresh_builder();
  return finish(builder, Kind::Welcome, fb::CreateWelcome(builder, welcome.ring_bytes));
}

OutFrame encode_handshake(const Refusal& refusal) {
  Builder& builder = fresh_builder();
  const auto detail = write_text(builder, cut(refusal.detail, kMaxRefusalBytes));
  return finish(builder, Kind::Refusal,
                fb::CreateRefusal(builder, static_cast<fb::RefusalReason>(refusal.reason), detail));
}

}  // namespace

OutFrame encode(Call&& message) {
  check_length("a function name", message.function, kMaxFunctionBytes);
  check(message.payload);
  Builder& builder = fresh_builder();
  const auto function = write_required_text(builder, message.function);
  const auto payload = write_payload(builder, message.payload);
  const auto autograd = write_note(builder, message.notes.autograd);
  const auto trace = write_note(builder, message.notes.trace);
  const auto stream = write_note(builder, message.notes.stream);
  std::optional<fb::Creation> creates;
  if (message.creates) {
    creates.emplace(write_name(message.creates->ref), write_name(message.creates->fork));
  }
  const auto subject = message.subject ? std::optional(write_name(*message.subject)) : std::nullopt;
  return finish(
      builder, Kind::Call,
      fb::CreateCall(builder, number(message.id), static_cast<fb::TargetKind>(message.target),
                     function, message.budget_us, number(message.chain), message.depth,
                     message.one_way, payload, autograd, trace, stream,
                     creates ? &*creates : nullptr, subject ? &*subject : nullptr),
      std::move(message.payload.segments));
}

OutFrame encode(Reply&& message) {
  check(message.payload);
  check(message.notes.report);
  Builder& builder = fresh_builder();
  const auto payload = write_payload(builder, message.payload);
  const auto autograd = write_note(builder, message.notes.autograd);
  const auto trace = write_report(builder, message.notes.report);
  const auto stream = write_note(builder, message.notes.stream);
  return finish(builder, Kind::Reply,
                fb::CreateReply(builder, number(message.id), payload, autograd, trace, stream),
                std::move(message.payload.segments));
}

OutFrame encode(Failure&& message) {
  check(message.payload);
  check(message.report);
  Builder& builder = fresh_builder();
  const ErrorDetails& details = message.error.details();
  const auto text = write_text(builder, cut(message.error.message(), kMaxTextBytes));
  const auto node = write_text(builder, cut(details.node, kMaxNameBytes));
  const auto function = write_text(builder, cut(details.function, kMaxFunctionBytes));
  const auto type = write_text(builder, cut(details.remote_type, kMaxFunctionBytes));
  const auto traceback = write_text(builder, cut(details.remote_traceback, kMaxTextBytes));
  const auto payload = write_payload(builder, message.payload);
  const auto trace = write_report(builder, message.report);
  return finish(builder, Kind::Failure,
                fb::CreateFailure(
                    builder, number(message.id), static_cast<std::uint8_t>(message.error.kind()),
                    text, node, function, details.incarnation, microseconds(details.budget),
                    microseconds(details.last_heard), type, traceback, payload, trace),
                std::move(message.payload.segments));
}

OutFrame encode(const Cancel& message) {
  Builder& builder = fresh_builder();
  return finish(builder, Kind::Cancel, fb::CreateCancel(builder, number(message.id)));
}

OutFrame encode(const Heartbeat& message) {
  Builder& builder = fresh_builder();
  return finish(builder, Kind::Heartbeat, fb::CreateHeartbeat(builder, message.sent_at_ns));
}

OutFrame encode(const HeartbeatEcho& message) {
  Builder& builder = fresh_builder();
  return finish(builder, Kind::HeartbeatEcho,
                fb::CreateHeartbeatEcho(builder, message.sent_at_ns, message.echoed_at_ns));
}

OutFrame encode(const Goodbye& message) {
  Builder& builder = fresh_builder();
  const auto reason = write_text(builder, cut(message.reason, kMaxTextBytes));
  return finish(builder, Kind::Goodbye, fb::CreateGoodbye(builder, reason, message.declared_lost));
}

OutFrame encode(const Arrival& message) {
  Builder& builder = fresh_builder();
  return finish(builder, Kind::Arrival, fb::CreateArrival(builder, message.rank));
}

OutFrame encode(const Census& message) {
  Builder& builder = fresh_builder();
  return finish(builder, Kind::Census, fb::CreateCensus(builder, message.round));
}

OutFrame encode(const CensusReport& message) {
  Builder& builder = fresh_builder();
  return finish(
      builder, Kind::CensusReport,
      fb::CreateCensusReport(builder, message.round, message.busy, message.sent, message.received));
}

OutFrame encode(const Dismissal& message) {
  check_count("names", message.lost.size(), kMaxLostNames);
  for (const std::string& name : message.lost) check_length("a node name", name, kMaxNameBytes);
  Builder& builder = fresh_builder();
  const auto lost = message.lost.empty() ? VectorOffset<TextOffset>(0)
                                         : builder.CreateVectorOfStrings(message.lost);
  return finish(builder, Kind::Dismissal, fb::CreateDismissal(builder, lost));
}

OutFrame encode(const References& message) {
  check_count("records of references", message.records.size(), kMaxRecords);
  check_count("children", message.children.size(), kMaxRecords);
  for (const auto& child : message.children) check_length("a node name", child.name, kMaxNameBytes);
  Builder& builder = fresh_builder();
  std::vector<fb::Record> records;
  records.reserve(message.records.size());
  for (const ReferenceRecord& record : message.records) {
    records.emplace_back(write_name(record.ref), write_name(record.fork),
                         static_cast<fb::RecordKind>(record.kind), record.child);
  }
  const auto written = builder.CreateVectorOfStructs(records);
  const auto children = write_tables<fb::Party>(
      builder, message.children, [](Builder& b, const References::Party& child) {
        const auto name = write_required_text(b, child.name);
        return fb::CreateParty(b, name, number(child.incarnation));
      });
  return finish(builder, Kind::References,
                fb::CreateReferences(builder, message.expected, message.first, written, children));
}

OutFrame encode(const Handshake& message) {
  return std::visit([](const auto& step) { return encode_handshake(step); }, message);
}

}  // namespace hawser::wire
