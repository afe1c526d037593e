#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hawser/base/buffer.h"
#include "hawser/base/error.h"
#include "hawser/base/ids.h"
#include "hawser/base/inline_vector.h"
#include "hawser/base/result.h"
#include "hawser/wire/frame.h"
#include "hawser/wire/value.h"

// The messages of protocol.fbs as plain values, and the codec between them and frames. Decoding is
// pure: it checks, it never acts. Views in a decoded message point into the frame it came from.
namespace hawser::wire {

inline constexpr std::uint16_t kProtocolMajor = 1;
inline constexpr std::uint16_t kProtocolMinor = 0;

enum class TensorLayout : std::uint8_t {
  Strided = 0,
  SparseCoo = 1,  // parts: indices, values
  SparseCsr = 2,  // parts: crow/ccol indices, col/row indices, values
  SparseCsc = 3,
  SparseBsr = 4,
  SparseBsc = 5,
};

enum TensorFlags : std::uint8_t {
  kRequiresGrad = 1,
  kConjugate = 2,  // a conjugate view: the bytes are not conjugated
  kNegative = 4,   // a negative view: the bytes are not negated
  kCoalesced = 8,  // sparse COO
  kPerTensorAffine = 16,
  kPerChannelAffine = 32,  // parts: scales, zero points
  kUndefined = 64,         // an at::Tensor that holds nothing
  kWrappedNumber = 128,
};

inline constexpr std::uint32_t kNoSegment = 0xFFFFFFFF;
inline constexpr std::uint32_t kNoRank = 0xFFFFFFFF;

struct TensorDesc {
  std::uint8_t dtype = 0;
  TensorLayout layout = TensorLayout::Strided;
  std::uint8_t flags = 0;
  std::uint16_t device = 0;
  std::uint32_t storage = kNoSegment;
  std::uint64_t offset = 0;  // in elements
  InlineVector<std::int64_t, 5> sizes{};
  InlineVector<std::int64_t, 5> strides{};  // empty: contiguous; else as many as sizes
  InlineVector<std::uint32_t, 3> parts{};   // of tensors that have no parts themselves
  double scale = 0;
  std::int64_t zero_point = 0;
  std::int32_t axis = 0;

  bool operator==(const TensorDesc&) const = default;
};

struct ReferenceTicket {
  std::string owner{};
  std::uint64_t owner_incarnation = 0;
  std::uint64_t ref_on = 0;
  std::uint64_t ref_local = 0;
  std::uint64_t fork_on = 0;
  std::uint64_t fork_local = 0;
  std::string parent{};
  std::string type{};

  bool operator==(const ReferenceTicket&) const = default;
};

// A reference as a node holds it; the layers above know more.
class HeldReference {
 public:
  virtual ~HeldReference() = default;
};

// How the tensors of a payload belong to the graph of autograd; the layers above know more.
class GraphTie {
 public:
  virtual ~GraphTie() = default;
};

// Arguments or a result to be sent. `value` is in the format of value.h.
struct Payload {
  ValueBytes value{};
  std::vector<TensorDesc> tensors{};
  std::vector<ReferenceTicket> references{};
  std::vector<Buffer> segments{};
  // What `references` is made of once it is known who gets them. Not sent: empty by then.
  std::vector<std::shared_ptr<HeldReference>> held{};
  // Of the tensors that require a gradient; null if none does. Not sent.
  std::shared_ptr<GraphTie> tie{};

  std::size_t total_bytes() const {
    std::size_t bytes = value.size();
    for (const Buffer& segment : segments) bytes += segment.size();
    return bytes;
  }
};

// The same as received. `value` points into the frame; everything else is owned. Checked: tensors
// name segments and parts that exist, sizes and strides are not negative. Not checked: that a
// tensor's elements lie within its segment (that takes its dtype), and the indices in `value`.
struct ReceivedPayload {
  std::span<const std::byte> value{};
  std::vector<TensorDesc> tensors{};
  std::vector<ReferenceTicket> references{};
  std::vector<Buffer> segments{};
  // What has become of `references` here; filled by the layers above.
  std::vector<std::shared_ptr<HeldReference>> held{};
  // What gives the tensors that require a gradient their place in the graph; set by the layers
  // above. Null: they are leaves.
  std::shared_ptr<GraphTie> tie{};
};

struct AutogradNote {
  std::uint64_t context = 0;
  std::uint64_t message = 0;
  std::string creator{};  // of the context; empty: the sender
  std::uint64_t creator_incarnation = 0;
  std::uint8_t anomaly_mode = 0;

  bool operator==(const AutogradNote&) const = default;
};
// What a callee is to record.
enum TraceWants : std::uint32_t {
  kTraceRanges = 1,
  kTraceShapes = 2,    // of the arguments of operators
  kTraceMemory = 4,    // what is allocated and freed
  kTraceTimeline = 8,  // calls with their times, for a picture of several processes
};

struct TraceNote {
  std::uint64_t call = 0;
  std::uint32_t record = 0;  // TraceWants
  std::int64_t sent_at_ns = 0;
  std::int64_t received_at_ns = 0;  // set by the receiver; not sent

  bool operator==(const TraceNote&) const = default;
};

enum class TraceEventKind : std::uint8_t { Range = 0, Memory = 1, Call = 2, Service = 3, Part = 4 };

// The fields are explained in protocol.fbs.
struct TraceEvent {
  TraceEventKind kind = TraceEventKind::Range;
  std::uint8_t scope = 0;
  std::uint16_t process = 0;
  std::uint32_t thread = 0;
  std::string name{};
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::uint64_t call = 0;
  std::int64_t begun_ns = 0;
  std::int64_t done_ns = 0;
  std::int64_t bytes = 0;
  std::vector<std::int64_t> shapes{};
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
  std::uint64_t pass = 0;

  bool operator==(const TraceEvent&) const = default;
};

struct TraceProcess {
  std::string name{};
  std::uint32_t pid = 0;
  std::int32_t node = -1;
  std::int64_t clock_error_ns = 0;

  bool operator==(const TraceProcess&) const = default;
};

// Received: every event is of a process that is listed.
struct TraceReport {
  std::int64_t received_at_ns = 0;
  std::int64_t answered_at_ns = 0;
  std::vector<TraceProcess> processes{};
  std::vector<TraceEvent> events{};
  std::uint64_t dropped = 0;

  bool operator==(const TraceReport&) const = default;
};
struct StreamNote {
  std::uint64_t stream = 0;
  std::uint64_t sequence = 0;
  bool last = false;

  bool operator==(const StreamNote&) const = default;
};
// What only some messages carry. Empty costs nothing on the wire.
struct Notes {
  std::optional<AutogradNote> autograd{};
  std::optional<TraceNote> trace{};     // of a call
  std::optional<TraceReport> report{};  // of an answer
  std::optional<StreamNote> stream{};

  bool operator==(const Notes&) const = default;
};

enum class TargetKind : std::uint8_t {
  Function = 0,
  Operator = 1,
  Script = 2,
  Python = 3,
  Method = 4,
  Autograd = 5
};

// Names one value, or one holder's title to it.
struct RefName {
  std::uint64_t on = 0;
  std::uint64_t local = 0;

  bool operator==(const RefName&) const = default;
};

// A value that a call makes on the callee, and the caller's title to it.
struct Creation {
  RefName ref{};
  RefName fork{};

  bool operator==(const Creation&) const = default;
};

struct Hello {
  std::uint16_t major = kProtocolMajor;
  std::uint16_t minor = kProtocolMinor;
  std::vector<std::uint16_t> features{};
  WorldId world{};
  std::string from{};
  Incarnation incarnation{};
  std::string to{};
  std::array<std::uint8_t, 32> nonce{};
  std::optional<std::uint32_t> rank{};

  bool operator==(const Hello&) const = default;
};
struct Challenge {
  std::uint16_t major = kProtocolMajor;
  std::uint16_t minor = kProtocolMinor;
  std::vector<std::uint16_t> features{};
  Incarnation incarnation{};
  std::array<std::uint8_t, 32> nonce{};
  std::array<std::uint8_t, 32> proof{};

  bool operator==(const Challenge&) const = default;
};
struct Proof {
  std::array<std::uint8_t, 32> proof{};

  bool operator==(const Proof&) const = default;
};
struct Welcome {
  std::uint32_t ring_bytes = 0;

  bool operator==(const Welcome&) const = default;
};
enum class RefusalReason : std::uint8_t {
  Malformed = 0,
  Version = 1,
  World = 2,
  WrongName = 3,
  Secret = 4,
  DeclaredLost = 5,
  Duplicate = 6,
  Busy = 7,
  Closing = 8,
  Transport = 9,
};
struct Refusal {
  RefusalReason reason = RefusalReason::Malformed;
  std::string detail{};

  bool operator==(const Refusal&) const = default;
};

// `Content` is Payload for a message to be sent, ReceivedPayload for one that was received.
template <class Content>
struct CallWith {
  CallId id{};
  TargetKind target = TargetKind::Function;
  std::string_view function{};  // received: points into the frame
  std::uint64_t budget_us = 0;
  ChainId chain = ChainId::None;
  std::uint16_t depth = 0;
  bool one_way = false;
  Content payload{};
  Notes notes{};
  std::optional<Creation> creates{};
  std::optional<RefName> subject{};  // of a Method, and only of one
};
template <class Content>
struct ReplyWith {
  CallId id{};
  Content payload{};
  Notes notes{};
};
template <class Content>
struct FailureWith {
  CallId id{};
  Error error;
  Content payload{};
  std::optional<TraceReport> report{};
};
using Call = CallWith<Payload>;
using Reply = ReplyWith<Payload>;
using Failure = FailureWith<Payload>;
using ReceivedCall = CallWith<ReceivedPayload>;
using ReceivedReply = ReplyWith<ReceivedPayload>;
using ReceivedFailure = FailureWith<ReceivedPayload>;

struct Cancel {
  CallId id{};

  bool operator==(const Cancel&) const = default;
};
struct Heartbeat {
  std::int64_t sent_at_ns = 0;

  bool operator==(const Heartbeat&) const = default;
};
struct HeartbeatEcho {
  std::int64_t sent_at_ns = 0;
  std::int64_t echoed_at_ns = 0;

  bool operator==(const HeartbeatEcho&) const = default;
};
struct Goodbye {
  std::string reason{};
  bool declared_lost = false;

  bool operator==(const Goodbye&) const = default;
};
struct Arrival {
  std::uint32_t rank = 0;

  bool operator==(const Arrival&) const = default;
};
struct Census {
  std::uint64_t round = 0;

  bool operator==(const Census&) const = default;
};
struct CensusReport {
  std::uint64_t round = 0;
  std::uint64_t busy = 0;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;

  bool operator==(const CensusReport&) const = default;
};
struct Dismissal {
  std::vector<std::string> lost{};

  bool operator==(const Dismissal&) const = default;
};

enum class RecordKind : std::uint8_t {
  Claim = 1,
  Share = 2,
  Drop = 3,
  Refuse = 4,
  Confirm = 5,
  Deny = 6,
  Inquire = 7,
};
struct ReferenceRecord {
  RecordKind kind = RecordKind::Claim;
  RefName ref{};
  RefName fork{};
  std::uint32_t child = 0;  // Share: index into `children`

  bool operator==(const ReferenceRecord&) const = default;
};
struct References {
  struct Party {
    std::string name{};
    Incarnation incarnation{};

    bool operator==(const Party&) const = default;
  };
  std::uint64_t expected = 0;
  std::uint64_t first = 0;
  std::vector<ReferenceRecord> records{};
  std::vector<Party> children{};

  bool operator==(const References&) const = default;
};

using Handshake = std::variant<Hello, Challenge, Proof, Welcome, Refusal>;
// What a connection carries after its handshake, as received.
using Message =
    std::variant<ReceivedCall, ReceivedReply, ReceivedFailure, Cancel, Heartbeat, HeartbeatEcho,
                 Goodbye, Arrival, Census, CensusReport, Dismissal, References>;

// What a message may hold, whatever the limits of a node: encode() refuses more, and so does
// decode(), because a peer that sends it is not one of us.
inline constexpr std::size_t kMaxNameBytes = 128;       // of a node
inline constexpr std::size_t kMaxFunctionBytes = 1024;  // and of a type
inline constexpr std::size_t kMaxFeatures = 256;
inline constexpr std::size_t kMaxTensors = 262'144;
inline constexpr std::size_t kMaxReferences = 65'536;
inline constexpr std::size_t kMaxLostNames = 65'536;
inline constexpr std::size_t kMaxRecords = 65'536;  // in References, and as many children
inline constexpr std::size_t kMaxPayloadBytes = kMaxValueBytes;  // without the segments
inline constexpr std::size_t kMaxTraceEvents = 65'536;
inline constexpr std::size_t kMaxTraceProcesses = 4096;
inline constexpr std::size_t kMaxTraceNameBytes = 4096;  // longer ones are cut when they are sent
inline constexpr std::size_t kMaxTraceShape = 1024;      // numbers; longer ones are left out
// Longer texts (of errors, of reasons) are cut when they are sent.
inline constexpr std::size_t kMaxTextBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxRefusalBytes = 1024;  // a handshake frame is small

// Encoding. The returned frame's body lives in a buffer of this thread that the next encode() on
// the same thread overwrites: send it at once. Call, Reply and Failure move the payload's segments
// into the frame. Throws Error(Invalid) for what decode() would refuse because of its size; the
// message is then unchanged.
OutFrame encode(Call&& message);
OutFrame encode(Reply&& message);
OutFrame encode(Failure&& message);
OutFrame encode(const Cancel& message);
OutFrame encode(const Heartbeat& message);
OutFrame encode(const HeartbeatEcho& message);
OutFrame encode(const Goodbye& message);
OutFrame encode(const Arrival& message);
OutFrame encode(const Census& message);
OutFrame encode(const CensusReport& message);
OutFrame encode(const Dismissal& message);
OutFrame encode(const References& message);
OutFrame encode(const Handshake& message);

// Decoding. An error (always Invalid) means that the frame is malformed and the connection must be
// closed: verifier failure, an index out of range, a kind that has no place here. `frame.segments`
// are moved into the message's payload; the body stays in `frame`, which must outlive the message
// (moving the frame is fine: the body stays where it is).
Result<Message> decode(InFrame& frame);
Result<Handshake> decode_handshake(std::span<const std::byte> body, Kind kind);

}  // namespace hawser::wire
