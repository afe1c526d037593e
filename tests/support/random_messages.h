#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "hawser/wire/message.h"

namespace hawser::testing {

// Messages of every kind with every field set or left out by chance. The same seed gives the same
// messages with every compiler.
class RandomMessages {
 public:
  explicit RandomMessages(unsigned seed) : random_(seed) {}

  wire::Call call() {
    static constexpr std::string_view kFunctions[] = {"scale", "aten::add.Tensor", "",
                                                      "__torch__.my_module.forward"};
    wire::Call call;
    call.id = CallId(number());
    call.target = static_cast<wire::TargetKind>(below(6));
    if (call.target == wire::TargetKind::Method) call.subject = ref_name();
    call.function = kFunctions[below(4)];
    call.budget_us = number();
    call.chain = ChainId(number());
    call.depth = static_cast<std::uint16_t>(number());
    call.one_way = coin();
    call.payload = payload();
    call.notes = notes();
    if (coin()) call.creates = wire::Creation{ref_name(), ref_name()};
    return call;
  }

  wire::Reply reply() {
    wire::Reply reply;
    reply.id = CallId(number());
    reply.payload = payload();
    reply.notes = notes();
    reply.notes.trace.reset();
    if (coin()) reply.notes.report = report();
    return reply;
  }

  wire::Failure failure() {
    const auto kind = static_cast<ErrorKind>(1 + below(7));
    std::string message = text();
    ErrorDetails details;
    details.node = text();
    details.function = text();
    details.incarnation = number();
    if (coin()) details.budget = std::chrono::microseconds(below(1'000'000));
    if (coin()) details.last_heard = std::chrono::microseconds(below(1'000'000));
    details.remote_type = text();
    details.remote_traceback = text();
    wire::Failure failure{CallId(number()), Error(kind, std::move(message), std::move(details))};
    failure.payload = payload();
    if (coin()) failure.report = report();
    return failure;
  }

  wire::Cancel cancel() { return {CallId(number())}; }
  wire::Heartbeat heartbeat() { return {signed_number()}; }
  wire::HeartbeatEcho heartbeat_echo() {
    wire::HeartbeatEcho echo;
    echo.sent_at_ns = signed_number();
    echo.echoed_at_ns = signed_number();
    return echo;
  }
  wire::Goodbye goodbye() { return {text(), coin()}; }
  wire::Arrival arrival() { return {static_cast<std::uint32_t>(number())}; }
  wire::Census census() { return {number()}; }
  wire::CensusReport census_report() {
    wire::CensusReport report;
    report.round = number();
    report.busy = number();
    report.sent = number();
    report.received = number();
    return report;
  }
  wire::Dismissal dismissal() {
    wire::Dismissal dismissal;
    for (std::uint64_t i = below(4); i > 0; --i) dismissal.lost.push_back(text());
    return dismissal;
  }

  wire::References references() {
    wire::References message{number(), number(), {}, {}};
    for (std::uint64_t i = below(4); i > 0; --i) {
      message.children.push_back({text(), Incarnation(number())});
    }
    for (std::uint64_t i = below(20); i > 0; --i) {
      wire::ReferenceRecord record{static_cast<wire::RecordKind>(1 + below(7)), ref_name(),
                                   ref_name()};
      if (record.kind == wire::RecordKind::Share) {
        if (message.children.empty()) continue;
        record.child = static_cast<std::uint32_t>(below(message.children.size()));
      }
      message.records.push_back(record);
    }
    return message;
  }

  wire::Hello hello() {
    wire::Hello hello;
    hello.major = static_cast<std::uint16_t>(number());
    hello.minor = static_cast<std::uint16_t>(number());
    hello.features = features();
    fill(hello.world.bytes);
    hello.from = "trainer" + text();
    hello.incarnation = Incarnation(number());
    hello.to = text();
    fill(hello.nonce);
    if (below(2) == 0) hello.rank = static_cast<std::uint32_t>(below(wire::kNoRank));
    return hello;
  }
  wire::Challenge challenge() {
    wire::Challenge challenge;
    challenge.features = features();
    challenge.incarnation = Incarnation(number());
    fill(challenge.nonce);
    fill(challenge.proof);
    return challenge;
  }
  wire::Proof proof() {
    wire::Proof proof;
    fill(proof.proof);
    return proof;
  }
  wire::Welcome welcome() { return {static_cast<std::uint32_t>(number())}; }
  wire::Refusal refusal() {
    wire::Refusal refusal;
    refusal.reason = static_cast<wire::RefusalReason>(below(10));
    refusal.detail = text();
    return refusal;
  }

  wire::Payload payload() {
    wire::Payload payload;
    for (std::uint64_t i = below(4); i > 0; --i) payload.segments.push_back(segment());
    for (std::uint64_t i = below(4); i > 0; --i) {
      payload.tensors.push_back(tensor(payload.segments.size()));
    }
    for (std::uint64_t i = below(3); i > 0; --i) payload.references.push_back(ticket());
    if (payload.tensors.size() > 2) payload.tensors[0].parts = {1, 2};
    for (std::uint64_t i = below(200); i > 0; --i) {
      payload.value.push_back(static_cast<std::byte>(number()));
    }
    return payload;
  }

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  bool coin() { return below(2) == 0; }
  // Often zero, often large: defaults and full widths both occur.
  std::uint64_t number() {
    const std::uint64_t high = random_();
    const std::uint64_t low = random_();
    return coin() ? 0 : high << 32 | low;
  }

 private:
  wire::RefName ref_name() { return {number(), number()}; }
  std::int64_t signed_number() { return static_cast<std::int64_t>(number()); }

  std::string text() {
    std::string text;
    for (std::uint64_t i = below(24); i > 0; --i) text.push_back(static_cast<char>(below(256)));
    return text;
  }

  wire::ReferenceTicket ticket() {
    wire::ReferenceTicket ticket;
    ticket.owner = "owner" + text();
    ticket.owner_incarnation = number();
    ticket.ref_on = number();
    ticket.ref_local = number();
    ticket.fork_on = number();
    ticket.fork_local = number();
    ticket.parent = text();
    ticket.type = text();
    return ticket;
  }

  wire::TensorDesc tensor(std::size_t segments) {
    wire::TensorDesc tensor;
    tensor.dtype = static_cast<std::uint8_t>(number());
    tensor.layout = static_cast<wire::TensorLayout>(below(6));
    tensor.flags = static_cast<std::uint8_t>(number());
    tensor.device = static_cast<std::uint16_t>(number());
    if (segments > 0 && coin()) tensor.storage = static_cast<std::uint32_t>(below(segments));
    tensor.offset = number();
    for (std::uint64_t i = below(8); i > 0; --i) {
      tensor.sizes.push_back(static_cast<std::int64_t>(number() >> 1));
    }
    if (coin()) {
      for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
        tensor.strides.push_back(static_cast<std::int64_t>(number() >> 1));
      }
    }
    tensor.scale = static_cast<double>(below(100)) / 4;
    tensor.zero_point = signed_number();
    tensor.axis = static_cast<std::int32_t>(number());
    return tensor;
  }

  wire::TraceNote trace() {
    wire::TraceNote note;
    note.call = number();
    note.record = static_cast<std::uint32_t>(number());
    note.sent_at_ns = signed_number();
    return note;
  }

  wire::TraceReport report() {
    wire::TraceReport report;
    report.received_at_ns = signed_number();
    report.answered_at_ns = signed_number();
    report.dropped = number();
    for (std::size_t i = below(3); i > 0; --i) {
      report.processes.push_back({text(), static_cast<std::uint32_t>(number()),
                                  static_cast<std::int32_t>(number()), signed_number()});
    }
    if (report.processes.empty()) return report;
    for (std::size_t i = below(4); i > 0; --i) {
      wire::TraceEvent event;
      event.kind = static_cast<wire::TraceEventKind>(below(5));
      event.scope = static_cast<std::uint8_t>(number());
      event.process = static_cast<std::uint16_t>(below(report.processes.size()));
      event.thread = static_cast<std::uint32_t>(number());
      event.name = text();
      event.start_ns = signed_number();
      event.end_ns = signed_number();
      event.call = number();
      event.begun_ns = signed_number();
      event.done_ns = signed_number();
      event.bytes = signed_number();
      for (std::size_t d = below(4); d > 0; --d) event.shapes.push_back(signed_number());
      event.received = number();
      event.sent = number();
      event.pass = number();
      report.events.push_back(std::move(event));
    }
    return report;
  }

  wire::Notes notes() {
    wire::Notes notes;
    if (coin()) {
      notes.autograd.emplace();
      notes.autograd->context = number();
      notes.autograd->message = number();
      if (coin()) {
        notes.autograd->creator = text();
        notes.autograd->creator_incarnation = number();
      }
    }
    if (coin()) notes.trace = trace();
    if (coin()) {
      notes.stream.emplace();
      notes.stream->stream = number();
      notes.stream->sequence = number();
      notes.stream->last = coin();
    }
    return notes;
  }

  Buffer segment() {
    auto bytes = std::make_shared<std::vector<std::byte>>(below(40));
    fill(*bytes);
    return Buffer(bytes->data(), bytes->size(), bytes);
  }

  std::vector<std::uint16_t> features() {
    std::vector<std::uint16_t> features;
    for (std::uint64_t i = below(5); i > 0; --i) {
      features.push_back(static_cast<std::uint16_t>(number()));
    }
    return features;
  }

  template <class Bytes>
  void fill(Bytes& bytes) {
    for (auto& byte : bytes) byte = static_cast<typename Bytes::value_type>(below(256));
  }

  std::mt19937 random_;
};

}  // namespace hawser::testing
