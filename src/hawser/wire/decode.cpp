#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "hawser/wire/message.h"
#include "hawser/wire/protocol_generated.h"

// Inside this file a malformed body is an exception, so that the control flow is that of the good
// case; decode() and decode_handshake() turn it into a Result.
namespace hawser::wire {
namespace {

constexpr flatbuffers::uoffset_t kDeepestTable = 4;  // Call, Payload, Tensor, and one to spare
constexpr flatbuffers::uoffset_t kMostTables =
    kMaxTensors + kMaxReferences + kMaxTraceEvents + kMaxTraceProcesses + 16;

[[noreturn]] void refuse(std::string why) { throw Error(ErrorKind::Invalid, std::move(why)); }

void check_limit(std::string_view what, std::size_t found, std::size_t limit) {
  if (found <= limit) return;
  refuse(std::string(what) + ": " + std::to_string(found) + ", at most " + std::to_string(limit) +
         " are possible");
}

template <class Table>
const Table& verified(std::span<const std::byte> body, Kind kind) {
  if (body.size() >= FLATBUFFERS_MAX_BUFFER_SIZE) refuse("the body is too large");
  flatbuffers::Verifier verifier(reinterpret_cast<const std::uint8_t*>(body.data()), body.size(),
                                 kDeepestTable, kMostTables);
  if (!verifier.VerifyBuffer<Table>(nullptr)) {
    refuse("the body is not a valid " + std::string(to_string(kind)));
  }
  return *flatbuffers::GetRoot<Table>(body.data());
}

// Reads a verified body. Everything that is copied out of it is counted: a body may point to the
// same bytes a million times, and the copies must not outgrow what was received.
class BodyReader {
 public:
  BodyReader(std::size_t body_bytes, std::size_t segments)
      : copies_left_(body_bytes), segments_(segments) {}

  std::string text(const flatbuffers::String* text, std::string_view what, std::size_t limit) {
    if (!text) return {};
    check_limit(what, text->size(), limit);
    count_copy(text->size());
    return {text->c_str(), text->size()};
  }
  std::string name(const flatbuffers::String* name) {
    return text(name, "bytes in a node name", kMaxNameBytes);
  }

  // Fills messages in place: they are large, and moving them would be half the work of decoding.
  void read(const fb::Payload* from, ReceivedPayload& to) {
    if (!from) return;
    if (const auto* value = from->value()) {
      to.value = {reinterpret_cast<const std::byte*>(value->data()), value->size()};
    }
    if (const auto* tensors = from->tensors()) read_tensors(*tensors, to.tensors);
    if (const auto* references = from->references()) {
      check_limit("references in a message", references->size(), kMaxReferences);
      to.references.reserve(references->size());
      for (const fb::Reference* reference : *references) {
        to.references.push_back(ticket(*reference));
      }
    }
  }

  template <class Table>
  void read(const Table& message, Notes& to) {
    if (const auto* note = message.autograd()) {
      to.autograd = {note->context(), note->message(), name(note->creator()),
                     note->creator_incarnation(), note->anomaly_mode()};
    }
    if constexpr (std::is_same_v<Table, fb::Call>) {
      if (const auto* note = message.trace()) {
        to.trace = {note->call(), note->record(), note->sent_at_ns()};
      }
    } else {
      read(message.trace(), to.report);
    }
    if (const auto* note = message.stream()) {
      to.stream = {note->stream(), note->sequence(), note->last()};
    }
  }

  void read(const fb::TraceReport* report, std::optional<TraceReport>& to) {
    if (!report) return;
    to.emplace();
    to->received_at_ns = report->received_at_ns();
    to->answered_at_ns = report->answered_at_ns();
    to->dropped = report->dropped();
    if (const auto* processes = report->processes()) {
      check_limit("recorded processes", processes->size(), kMaxTraceProcesses);
      to->processes.reserve(processes->size());
      for (const fb::TraceProcess* process : *processes) {
        to->processes.push_back(
            {name(process->name()), process->pid(), process->node(), process->clock_error_ns()});
      }
    }
    if (const auto* events = report->events()) {
      check_limit("recorded events", events->size(), kMaxTraceEvents);
      to->events.resize(events->size());
      for (std::size_t i = 0; i < to->events.size(); ++i) {
        read_event(*events->Get(static_cast<flatbuffers::uoffset_t>(i)), to->events[i]);
        if (to->events[i].process >= to->processes.size()) {
          refuse("a recorded event is of a process that is not listed");
        }
      }
    }
  }

  ReferenceTicket ticket(const fb::Reference& reference) {
    ReferenceTicket ticket;
    ticket.owner = name(reference.owner());
    if (ticket.owner.empty()) refuse("a reference has no owner");
    ticket.owner_incarnation = reference.owner_incarnation();
    ticket.ref_on = reference.ref_on();
    ticket.ref_local = reference.ref_local();
    ticket.fork_on = reference.fork_on();
    ticket.fork_local = reference.fork_local();
    ticket.parent = name(reference.parent());
    ticket.type = text(reference.type(), "bytes in a type name", kMaxFunctionBytes);
    return ticket;
  }

 private:
  void count_copy(std::size_t bytes) {
    if (bytes > copies_left_) refuse("the body shares its parts");
    copies_left_ -= bytes;
  }

  template <class T, class Inline>
  void copy(const flatbuffers::Vector<T>* from, Inline& to) {
    if (!from) return;
    count_copy(from->size() * sizeof(T));
    if constexpr (std::is_same_v<Inline, std::vector<T>>) {
      to.assign(from->data(), from->data() + from->size());
    } else {
      to.assign({from->data(), from->size()});
    }
  }

  void read_event(const fb::TraceEvent& from, TraceEvent& to) {
    if (from.kind() > fb::TraceEventKind::MAX) refuse("a recorded event is of an unknown kind");
    to.kind = static_cast<TraceEventKind>(from.kind());
    to.scope = from.scope();
    to.process = from.process();
    to.thread = from.thread();
    to.name = text(from.name(), "bytes in the name of an event", kMaxTraceNameBytes);
    to.start_ns = from.start_ns();
    to.end_ns = from.end_ns();
    to.call = from.call();
    to.begun_ns = from.begun_ns();
    to.done_ns = from.done_ns();
    to.bytes = from.bytes();
    if (from.shapes()) check_limit("numbers in a shape", from.shapes()->size(), kMaxTraceShape);
    copy(from.shapes(), to.shapes);
    to.received = from.received();
    to.sent = from.sent();
    to.pass = from.pass();
  }

  void read_tensors(const flatbuffers::Vector<flatbuffers::Offset<fb::Tensor>>& from,
                    std::vector<TensorDesc>& to) {
    check_limit("tensors in a message", from.size(), kMaxTensors);
    to.resize(from.size());
    for (std::size_t i = 0; i < to.size(); ++i) {
      read_tensor(*from.Get(static_cast<flatbuffers::uoffset_t>(i)), to[i]);
    }
    for (const TensorDesc& tensor : to) {
      for (const std::uint32_t part : tensor.parts) {
        if (part >= to.size()) refuse("a tensor has a part that does not exist");
        if (!to[part].parts.empty()) refuse("a part of a tensor has parts");
      }
    }
  }

  void read_tensor(const fb::Tensor& from, TensorDesc& to) {
    to.dtype = from.dtype();
    if (from.layout() > static_cast<std::uint8_t>(TensorLayout::SparseBsc)) {
      refuse("a tensor has unknown layout " + std::to_string(from.layout()));
    }
    to.layout = static_cast<TensorLayout>(from.layout());
    to.flags = from.flags();
    to.device = from.device();
    to.storage = from.storage();
    if (to.storage != kNoSegment && to.storage >= segments_) {
      refuse("a tensor is in segment " + std::to_string(to.storage) + " of " +
             std::to_string(segments_));
    }
    to.offset = from.offset();
    copy(from.sizes(), to.sizes);
    copy(from.strides(), to.strides);
    copy(from.parts(), to.parts);
    check_shape(to);
    to.scale = from.scale();
    to.zero_point = from.zero_point();
    to.axis = from.axis();
  }

  static void check_shape(const TensorDesc& tensor) {
    const auto negative = [](std::int64_t extent) { return extent < 0; };
    if (std::any_of(tensor.sizes.begin(), tensor.sizes.end(), negative)) {
      refuse("a tensor has a negative size");
    }
    if (std::any_of(tensor.strides.begin(), tensor.strides.end(), negative)) {
      refuse("a tensor has a negative stride");
    }
    if (!tensor.strides.empty() && tensor.strides.size() != tensor.sizes.size()) {
      refuse("a tensor has " + std::to_string(tensor.sizes.size()) + " sizes and " +
             std::to_string(tensor.strides.size()) + " strides");
    }
  }

  std::size_t copies_left_;
  std::size_t segments_;
};

// ----------------------------------------------------------------------------------- messages

RefName read_name(const fb::RefName& name) { return {name.on(), name.local()}; }

Message read_call(InFrame& frame) {
  const auto& table = verified<fb::Call>(frame.body.view(), frame.kind);
  BodyReader reader(frame.body.size(), frame.segments.size());
  Message message(std::in_place_type<ReceivedCall>);
  auto& call = std::get<ReceivedCall>(message);
  call.id = CallId(table.id());
  if (table.target() > fb::TargetKind::MAX) refuse("a call has an unknown kind of target");
  call.target = static_cast<TargetKind>(table.target());
  check_limit("bytes in a function name", table.function()->size(), kMaxFunctionBytes);
  call.function = {table.function()->c_str(), table.function()->size()};
  call.budget_us = table.budget_us();
  call.chain = ChainId(table.chain());
  call.depth = table.depth();
  call.one_way = table.one_way();
  reader.read(table.payload(), call.payload);
  reader.read(table, call.notes);
  if (const auto* made = table.creates()) {
    call.creates = {read_name(made->ref()), read_name(made->fork())};
  }
  if (table.subject()) call.subject = read_name(*table.subject());
  if (call.subject.has_value() != (call.target == TargetKind::Method)) {
    refuse("a call on a reference names none, or another call does");
  }
  call.payload.segments = std::move(frame.segments);
  return message;
}

Message read_reply(InFrame& frame) {
  const auto& table = verified<fb::Reply>(frame.body.view(), frame.kind);
  BodyReader reader(frame.body.size(), frame.segments.size());
  Message message(std::in_place_type<ReceivedReply>);
  auto& reply = std::get<ReceivedReply>(message);
  reply.id = CallId(table.id());
  reader.read(table.payload(), reply.payload);
  reader.read(table, reply.notes);
  reply.payload.segments = std::move(frame.segments);
  return message;
}

std::optional<std::chrono::microseconds> microseconds(flatbuffers::Optional<std::int64_t> count) {
  if (!count) return std::nullopt;
  return std::chrono::microseconds(*count);
}

Message read_failure(InFrame& frame) {
  const auto& table = verified<fb::Failure>(frame.body.view(), frame.kind);
  BodyReader reader(frame.body.size(), frame.segments.size());
  if (table.kind() < static_cast<std::uint8_t>(ErrorKind::Timeout) ||
      table.kind() > static_cast<std::uint8_t>(ErrorKind::Invalid)) {
    refuse("a failure has unknown kind " + std::to_string(table.kind()));
  }
  constexpr std::string_view kText = "bytes in a text";
  ErrorDetails details;
  details.node = reader.name(table.node());
  details.function = reader.text(table.function(), "bytes in a function name", kMaxFunctionBytes);
  details.incarnation = table.incarnation();
  details.budget = microseconds(table.budget_us());
  details.last_heard = microseconds(table.last_heard_us());
  details.remote_type = reader.text(table.remote_type(), "bytes in a type name", kMaxFunctionBytes);
  details.remote_traceback = reader.text(table.remote_traceback(), kText, kMaxTextBytes);
  Error error(static_cast<ErrorKind>(table.kind()),
              reader.text(table.message(), kText, kMaxTextBytes), std::move(details));
  ReceivedFailure failure{CallId(table.id()), std::move(error), {}, {}};
  reader.read(table.payload(), failure.payload);
  reader.read(table.trace(), failure.report);
  failure.payload.segments = std::move(frame.segments);
  return failure;
}

Message read_goodbye(const InFrame& frame) {
  const auto& table = verified<fb::Goodbye>(frame.body.view(), frame.kind);
  BodyReader reader(frame.body.size(), 0);
  return Goodbye{reader.text(table.reason(), "bytes in a text", kMaxTextBytes),
                 table.declared_lost()};
}

Message read_dismissal(const InFrame& frame) {
  const auto& table = verified<fb::Dismissal>(frame.body.view(), frame.kind);
  BodyReader reader(frame.body.size(), 0);
  Dismissal dismissal;
  if (const auto* lost = table.lost()) {
    check_limit("lost members", lost->size(), kMaxLostNames);
    dismissal.lost.reserve(lost->size());
    for (const flatbuffers::String* name : *lost) dismissal.lost.push_back(reader.name(name));
  }
  return dismissal;
}

Message read_references(const InFrame& frame) {
  const auto& table = verified<fb::References>(frame.body.view(), frame.kind);
  BodyReader reader(frame.body.size(), 0);
  References message{table.expected(), table.first(), {}, {}};
  if (const auto* children = table.children()) {
    check_limit("children", children->size(), kMaxRecords);
    message.children.reserve(children->size());
    for (const fb::Party* child : *children) {
      message.children.push_back({reader.name(child->name()), Incarnation(child->incarnation())});
    }
  }
  if (const auto* records = table.records()) {
    check_limit("records of references", records->size(), kMaxRecords);
    message.records.reserve(records->size());
    for (std::size_t i = 0; i < records->size(); ++i) {
      // Copied out: the verifier does not look at how the structs of a vector are aligned.
      fb::Record record;
      std::memcpy(&record, records->Data() + i * sizeof record, sizeof record);
      if (record.kind() == fb::RecordKind::None || record.kind() > fb::RecordKind::MAX) {
        refuse("a record of an unknown kind");
      }
      const auto kind = static_cast<RecordKind>(record.kind());
      if (kind == RecordKind::Share && record.child() >= message.children.size()) {
        refuse("a record names a child that is not there");
      }
      message.records.push_back(
          {kind, read_name(record.ref()), read_name(record.fork()), record.child()});
    }
  }
  return message;
}

Message read_message(InFrame& frame) {
  if (!frame.segments.empty() && !carries_payload(frame.kind)) {
    refuse(std::string(to_string(frame.kind)) + " frames have no segments");
  }
  const auto body = frame.body.view();
  switch (frame.kind) {
    case Kind::Call:
      return read_call(frame);
    case Kind::Reply:
      return read_reply(frame);
    case Kind::Failure:
      return read_failure(frame);
    case Kind::Cancel:
      return Cancel{CallId(verified<fb::Cancel>(body, frame.kind).id())};
    case Kind::Heartbeat:
      return Heartbeat{verified<fb::Heartbeat>(body, frame.kind).sent_at_ns()};
    case Kind::HeartbeatEcho: {
      const auto& table = verified<fb::HeartbeatEcho>(body, frame.kind);
      return HeartbeatEcho{table.sent_at_ns(), table.echoed_at_ns()};
    }
    case Kind::Goodbye:
      return read_goodbye(frame);
    case Kind::Arrival:
      return Arrival{verified<fb::Arrival>(body, frame.kind).rank()};
    case Kind::Census:
      return Census{verified<fb::Census>(body, frame.kind).round()};
    case Kind::CensusReport: {
      const auto& table = verified<fb::CensusReport>(body, frame.kind);
      return CensusReport{table.round(), table.busy(), table.sent(), table.received()};
    }
    case Kind::Dismissal:
      return read_dismissal(frame);
    case Kind::References:
      return read_references(frame);
    case Kind::None:
    case Kind::Hello:
    case Kind::Challenge:
    case Kind::Proof:
    case Kind::Welcome:
    case Kind::Refusal:
      break;
  }
  refuse("frames of kind " + std::to_string(static_cast<unsigned>(frame.kind)) +
         " have no place after the handshake");
}

// ---------------------------------------------------------------------------------- handshake

template <std::size_t kSize>
std::array<std::uint8_t, kSize> fixed(const flatbuffers::Vector<std::uint8_t>& from,
                                      std::string_view what) {
  if (from.size() != kSize) {
    refuse(std::string(what) + " of " + std::to_string(from.size()) + " bytes instead of " +
           std::to_string(kSize));
  }
  std::array<std::uint8_t, kSize> bytes;
  std::memcpy(bytes.data(), from.data(), kSize);
  return bytes;
}

std::vector<std::uint16_t> read_features(const flatbuffers::Vector<std::uint16_t>* features) {
  if (!features) return {};
  check_limit("features", features->size(), kMaxFeatures);
  return {features->data(), features->data() + features->size()};
}

Handshake read_hello(std::span<const std::byte> body) {
  const auto& table = verified<fb::Hello>(body, Kind::Hello);
  if (table.magic() != FrameHeader::kMagic) refuse("this is not a hawser node");
  BodyReader reader(body.size(), 0);
  Hello hello;
  hello.major = table.major();
  hello.minor = table.minor();
  hello.features = read_features(table.features());
  hello.world.bytes = fixed<16>(*table.world(), "a world id");
  hello.from = reader.name(table.from());
  hello.incarnation = Incarnation(table.incarnation());
  hello.to = reader.name(table.to());
  hello.nonce = fixed<32>(*table.nonce(), "a nonce");
  if (table.rank() != kNoRank) hello.rank = table.rank();
  if (hello.from.empty()) refuse("a node has no name");
  return hello;
}

Handshake read_challenge(std::span<const std::byte> body) {
  const auto& table = verified<fb::Challenge>(body, Kind::Challenge);
  Challenge challenge;
  challenge.major = table.major();
  challenge.minor = table.minor();
  challenge.features = read_features(table.features());
  challenge.incarnation = Incarnation(table.incarnation());
  challenge.nonce = fixed<32>(*table.nonce(), "a nonce");
  challenge.proof = fixed<32>(*table.proof(), "a proof");
  return challenge;
}

Handshake read_refusal(std::span<const std::byte> body) {
  const auto& table = verified<fb::Refusal>(body, Kind::Refusal);
  if (table.reason() > fb::RefusalReason::MAX) refuse("a refusal has an unknown reason");
  BodyReader reader(body.size(), 0);
  return Refusal{static_cast<RefusalReason>(table.reason()),
                 reader.text(table.detail(), "bytes in a refusal", kMaxRefusalBytes)};
}

Handshake read_handshake(std::span<const std::byte> body, Kind kind) {
  switch (kind) {
    case Kind::Hello:
      return read_hello(body);
    case Kind::Challenge:
      return read_challenge(body);
    case Kind::Proof:
      return Proof{fixed<32>(*verified<fb::Proof>(body, kind).proof(), "a proof")};
    case Kind::Welcome:
      return Welcome{verified<fb::Welcome>(body, kind).ring_bytes()};
    case Kind::Refusal:
      return read_refusal(body);
    default:
      refuse("frames of kind " + std::to_string(static_cast<unsigned>(kind)) +
             " have no place in a handshake");
  }
}

}  // namespace

Result<Message> decode(InFrame& frame) {
  try {
    return read_message(frame);
  } catch (const Error& error) {
    return error;
  }
}

Result<Handshake> decode_handshake(std::span<const std::byte> body, Kind kind) {
  // The body may lie anywhere in a read buffer; FlatBuffers reads aligned numbers.
  std::vector<std::uint64_t> aligned((body.size() + 7) / 8);
  if (!body.empty()) std::memcpy(aligned.data(), body.data(), body.size());
  try {
    return read_handshake(std::as_bytes(std::span(aligned)).first(body.size()), kind);
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace hawser::wire
