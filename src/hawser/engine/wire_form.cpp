#include "hawser/engine/wire_form.h"

#include <utility>

#include "hawser/engine/anomaly_mode.h"
#include "hawser/tensor/payload.h"

namespace hawser::engine {
namespace {

using namespace autograd;

template <class... Fs>
struct Match : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Match(Fs...) -> Match<Fs...>;  // clang 14 needs to be told

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::Invalid, "malformed message of autograd: " + why);
}

// Fields are written and read in the same order, by the same names.
class Writer {
 public:
  explicit Writer(std::size_t fields) : inside_(out_.nest()) { out_.tuple(fields); }

  template <Numbered Id>
  void id(Id id) {
    out_.integer(static_cast<std::int64_t>(autograd::number(id)));
  }
  template <Numbered Id>
  void ids(const std::vector<Id>& all) {
    const auto inside = out_.nest();
    out_.list(all.size());
    for (const Id each : all) id(each);
  }
  void header(const PassHeader& header) {
    const auto inside = out_.nest();
    out_.tuple(8);
    id(header.context);
    id(header.pass);
    out_.string(std::string_view(header.initiator.name));
    out_.integer(static_cast<std::int64_t>(hawser::number(header.initiator.incarnation)));
    out_.integer(static_cast<std::int64_t>(header.mode));
    out_.boolean(header.run.retain_graph);
    out_.integer(static_cast<std::int64_t>(header.run.anomaly_mode));
    out_.integer(microseconds(header.budget));
  }
  void error(const Error& error) {
    const auto inside = out_.nest();
    const ErrorDetails& details = error.details();
    out_.tuple(7);
    out_.integer(static_cast<std::int64_t>(error.kind()));
    out_.string(std::string_view(error.message()));
    out_.string(std::string_view(details.node));
    out_.integer(static_cast<std::int64_t>(details.incarnation));
    out_.string(std::string_view(details.function));
    out_.string(std::string_view(details.remote_type));
    out_.string(std::string_view(details.remote_traceback));
  }
  void boolean(bool value) { out_.boolean(value); }
  void tensors(Tensors&& tensors) {
    const auto inside = out_.nest();
    out_.list(tensors.size());
    for (at::Tensor& tensor : tensors) out_.tensor(std::move(tensor));
  }
  wire::Payload finish() { return out_.finish(); }

 private:
  // At least 1: 0 is no limit.
  static std::int64_t microseconds(Duration budget) {
    if (budget == Duration::max()) return 0;
    const auto whole = std::chrono::ceil<std::chrono::microseconds>(budget).count();
    return std::max<std::int64_t>(whole, 1);
  }

  PayloadWriter out_;
  Nesting inside_;
};

class Reader {
 public:
  Reader(wire::ReceivedPayload& payload, std::size_t fields) : in_(payload), inside_(in_.nest()) {
    if (in_.tuple() != fields) refuse("another number of fields");
  }

  template <Numbered Id>
  Id id() {
    return Id{static_cast<std::uint64_t>(in_.integer())};
  }
  template <Numbered Id>
  std::vector<Id> ids() {
    const auto inside = in_.nest();
    std::vector<Id> all(in_.list());  // each takes a byte at least
    for (Id& each : all) each = id<Id>();
    return all;
  }
  PassHeader header() {
    const auto inside = in_.nest();
    if (in_.tuple() != 8) refuse("a header with another number of fields");
    PassHeader header;
    header.context = id<ContextId>();
    header.pass = id<PassId>();
    header.initiator.name = in_.string();
    header.initiator.incarnation = Incarnation{static_cast<std::uint64_t>(in_.integer())};
    const std::int64_t mode = in_.integer();
    if (mode != static_cast<int>(Mode::Smart) && mode != static_cast<int>(Mode::Fast)) {
      refuse("no such mode");
    }
    header.mode = static_cast<Mode>(mode);
    header.run.retain_graph = in_.boolean();
    header.run.anomaly_mode = anomaly_mode_of(in_.integer());
    const std::int64_t budget = in_.integer();
    if (budget < 0) refuse("a negative budget");
    constexpr auto kMost = std::chrono::floor<std::chrono::microseconds>(Duration::max()).count();
    if (budget != 0 && budget < kMost) header.budget = std::chrono::microseconds(budget);
    return header;
  }
  Error error() {
    const auto inside = in_.nest();
    if (in_.tuple() != 7) refuse("an error with another number of fields");
    const std::int64_t kind = in_.integer();
    if (kind < static_cast<int>(ErrorKind::Timeout) ||
        kind > static_cast<int>(ErrorKind::Invalid)) {
      refuse("no such kind of error");
    }
    std::string message(in_.string());
    ErrorDetails details;
    details.node = in_.string();
    details.incarnation = static_cast<std::uint64_t>(in_.integer());
    details.function = in_.string();
    details.remote_type = in_.string();
    details.remote_traceback = in_.string();
    return Error(static_cast<ErrorKind>(kind), std::move(message), std::move(details));
  }
  bool boolean() { return in_.boolean(); }
  Tensors tensors() {
    const auto inside = in_.nest();
    Tensors all(in_.list());
    for (at::Tensor& each : all) each = in_.tensor();
    return all;
  }
  void finish() { in_.finish(); }

 private:
  PayloadReader in_;
  Nesting inside_;
};

}  // namespace

std::string_view name_of(const Message& message) {
  static constexpr std::string_view kNames[] = {"discover", "proceed", "gradients", "commit",
                                                "abort",    "release", "inquire"};
  static_assert(std::size(kNames) == std::variant_size_v<Message>);
  return kNames[message.index()];
}

wire::Payload write_message(const Message& message, Tensors&& gradients) {
  return std::visit(Match{
                        [](const Discover& m) {
                          Writer out(2);
                          out.header(m.pass);
                          out.ids(m.sends);
                          return out.finish();
                        },
                        [](const Proceed& m) {
                          Writer out(1);
                          out.id(m.pass);
                          return out.finish();
                        },
                        [&](const autograd::Gradients& m) {
                          Writer out(3);
                          out.header(m.pass);
                          out.id(m.message);
                          out.tensors(std::move(gradients));
                          return out.finish();
                        },
                        [](const Commit& m) {
                          Writer out(1);
                          out.id(m.pass);
                          return out.finish();
                        },
                        [](const Abort& m) {
                          Writer out(2);
                          out.id(m.pass);
                          out.error(m.why);
                          return out.finish();
                        },
                        [](const Release& m) {
                          Writer out(1);
                          out.ids(m.contexts);
                          return out.finish();
                        },
                        [](const Inquire& m) {
                          Writer out(1);
                          out.ids(m.contexts);
                          return out.finish();
                        },
                    },
                    message);
}

ReadMessage read_message(std::string_view name, wire::ReceivedPayload& payload) {
  const auto only = [&](std::size_t fields, auto read) {
    Reader in(payload, fields);
    ReadMessage message = read(in);
    in.finish();
    return message;
  };
  if (name == "gradients") {
    return only(3, [](Reader& in) {
      autograd::Gradients message{.pass = in.header(), .message = in.id<MessageId>()};
      return ReadMessage{std::move(message), in.tensors()};
    });
  }
  if (name == "discover") {
    return only(2, [](Reader& in) {
      PassHeader header = in.header();
      return ReadMessage{Discover{std::move(header), in.ids<MessageId>()}, {}};
    });
  }
  if (name == "proceed") {
    return only(1, [](Reader& in) { return ReadMessage{Proceed{in.id<PassId>()}, {}}; });
  }
  if (name == "commit") {
    return only(1, [](Reader& in) { return ReadMessage{Commit{in.id<PassId>()}, {}}; });
  }
  if (name == "abort") {
    return only(2, [](Reader& in) {
      const auto pass = in.id<PassId>();
      return ReadMessage{Abort{pass, in.error()}, {}};
    });
  }
  if (name == "release") {
    return only(1, [](Reader& in) { return ReadMessage{Release{in.ids<ContextId>()}, {}}; });
  }
  if (name == "inquire") {
    return only(1, [](Reader& in) { return ReadMessage{Inquire{in.ids<ContextId>()}, {}}; });
  }
  refuse("'" + std::string(name) + "' is none");
}

wire::Payload write_reply(const autograd::Reply& reply) {
  Writer out(3);
  out.boolean(reply.waits);
  out.boolean(reply.child);
  out.ids(reply.gone);
  return out.finish();
}

autograd::Reply read_reply(wire::ReceivedPayload& payload) {
  Reader in(payload, 3);
  autograd::Reply reply;
  reply.waits = in.boolean();
  reply.child = in.boolean();
  reply.gone = in.ids<ContextId>();
  in.finish();
  return reply;
}

wire::AutogradNote to_wire(const Note& note, const Party& sender) {
  wire::AutogradNote written{.context = number(note.context),
                             .message = number(note.message),
                             .anomaly_mode = static_cast<std::uint8_t>(note.anomaly_mode)};
  if (note.creator != sender) {
    written.creator = note.creator.name;
    written.creator_incarnation = hawser::number(note.creator.incarnation);
  }
  return written;
}

Note from_wire(const wire::AutogradNote& note, const Party& sender) {
  return {
      ContextId{note.context}, MessageId{note.message},
      note.creator.empty() ? sender : Party{note.creator, Incarnation{note.creator_incarnation}},
      anomaly_mode_of(note.anomaly_mode)};
}

}  // namespace hawser::engine
