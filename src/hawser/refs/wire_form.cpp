#include "hawser/refs/wire_form.h"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace hawser::refs {
namespace {

template <class Tag>
wire::RefName name_of(const UniqueId<Tag>& id) {
  return {id.on, id.local};
}

template <class Said>
constexpr wire::RecordKind kind_of() {
  using Kind = wire::RecordKind;
  if constexpr (std::is_same_v<Said, Claim>) return Kind::Claim;
  if constexpr (std::is_same_v<Said, Share>) return Kind::Share;
  if constexpr (std::is_same_v<Said, Drop>) return Kind::Drop;
  if constexpr (std::is_same_v<Said, Refuse>) return Kind::Refuse;
  if constexpr (std::is_same_v<Said, Confirm>) return Kind::Confirm;
  if constexpr (std::is_same_v<Said, Deny>) return Kind::Deny;
  if constexpr (std::is_same_v<Said, Inquire>) return Kind::Inquire;
}

// Few nodes are spoken of in one message, and the same one many times in a row.
std::uint32_t index_of(const Party& child, std::vector<wire::References::Party>& children) {
  const wire::References::Party wanted{child.name, child.incarnation};
  const auto found = std::find(children.rbegin(), children.rend(), wanted);
  if (found != children.rend()) return static_cast<std::uint32_t>(children.rend() - found - 1);
  children.push_back(wanted);
  return static_cast<std::uint32_t>(children.size() - 1);
}

}  // namespace

wire::References to_wire(const Message& message) {
  wire::References out{message.expected, message.first, {}, {}};
  out.records.reserve(message.records.size());
  for (const Record& record : message.records) {
    std::visit(
        [&](const auto& said) {
          using Said = std::remove_cvref_t<decltype(said)>;
          wire::ReferenceRecord& to = out.records.emplace_back();
          to.kind = kind_of<Said>();
          to.ref = name_of(said.ref);
          to.fork = name_of(said.fork);
          if constexpr (std::is_same_v<Said, Share>) to.child = index_of(said.child, out.children);
        },
        record);
  }
  return out;
}

Message from_wire(wire::References&& message) {
  Message out{message.expected, message.first, {}};
  out.records.reserve(message.records.size());
  for (const wire::ReferenceRecord& record : message.records) {
    const RefId ref{record.ref.on, record.ref.local};
    const ForkId fork{record.fork.on, record.fork.local};
    switch (record.kind) {
      case wire::RecordKind::Claim:
        out.records.push_back(Claim{ref, fork});
        break;
      case wire::RecordKind::Share: {
        const auto& child = message.children[record.child];
        out.records.push_back(Share{ref, fork, {child.name, child.incarnation}});
        break;
      }
      case wire::RecordKind::Drop:
        out.records.push_back(Drop{ref, fork});
        break;
      case wire::RecordKind::Refuse:
        out.records.push_back(Refuse{ref, fork});
        break;
      case wire::RecordKind::Confirm:
        out.records.push_back(Confirm{ref, fork});
        break;
      case wire::RecordKind::Deny:
        out.records.push_back(Deny{ref, fork});
        break;
      case wire::RecordKind::Inquire:
        out.records.push_back(Inquire{ref, fork});
        break;
    }
  }
  return out;
}

}  // namespace hawser::refs
