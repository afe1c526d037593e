#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hawser/agent/failure_detector.h"
#include "hawser/agent/world_store.h"
#include "hawser/base/clock.h"
#include "hawser/base/limits.h"
#include "hawser/transport/faulty_link.h"
#include "hawser/transport/tcp/tls.h"
#include "hawser/wire/message.h"

namespace c10 {
struct IValue;
}

namespace hawser {

using agent::FailureDetectorOptions;
using transport::tcp::TlsOptions;

class CallContext;  // node/call_context.h
class Function;     // node/function.h
namespace script {
class Program;  // script/program.h
}

// A call without a time limit.
inline constexpr Duration kForever = Duration::max();

// How a node starts. Only the name and a rendezvous are needed.
struct NodeOptions {
  // Unique in the world; letters, digits, '-', '_', ':' and '.', at most 128.
  std::string name{};

  // Where the nodes of a world find each other: tcp://host:port, file:///path or env://; see
  // node/c10d_store.h. Or any store object: use_store(my_store).
  std::string rendezvous{};
  std::shared_ptr<agent::WorldStore> store{};
  // How long to wait for the rendezvous itself.
  Duration rendezvous_timeout = std::chrono::seconds(60);

  // Given together: a world of fixed size. Without world_size nodes join and leave at any time.
  // Rank 0 hosts a tcp:// rendezvous.
  std::optional<std::uint32_t> rank{};
  std::optional<std::uint32_t> world_size{};

  // Served from the start: made by make_function(). What serve() adds later may be called too
  // early.
  std::vector<std::shared_ptr<Function>> functions{};
  // Script functions that others may call, and that scripts here call elsewhere. Calls to script
  // functions are refused where there is none.
  std::shared_ptr<const script::Program> scripts{};
  // The libtorch operators that others may call: "aten::add", or "aten::*" for the public ones of a
  // namespace (tensor/operator_rule.h). Absent: any, except those that open files.
  std::optional<std::vector<std::string>> operators{};
  // For bindings to other languages: finds what runs a call to a function of that name. Called on
  // the thread that reads the network, so it must not wait. Such calls are refused where there is
  // none.
  using FindFunction = std::function<std::shared_ptr<Function>(std::string_view name)>;
  std::map<wire::TargetKind, FindFunction> finders{};

  // Likewise: answers a call of a method that a value which a script or an operator has left does
  // not have itself.
  using CallMethod = std::function<void(const CallContext& context, const c10::IValue& value,
                                        std::string_view method)>;
  CallMethod call_method{};

  // Of a call that gives no other.
  Duration call_timeout = std::chrono::seconds(60);

  // In the order in which they are tried. "tcp" becomes "tls" when `tls` is set.
  std::vector<std::string> transports = {"shm", "tcp"};
  // Which addresses tcp listens on; see transport/tcp/tcp_transport.h. Unset: HAWSER_SOCKET_IFNAME
  // and its relatives, else the address that routes to the rendezvous, else loopback.
  std::string address{};
  std::string interfaces{};
  std::uint16_t port = 0;
  std::string advertised_host{};

  // Who knows it may join. Taken from here, else from HAWSER_TOKEN, else from the file (mode 0600)
  // that `token_file` or HAWSER_TOKEN_FILE names, else agreed through the rendezvous. See
  // docs/security.md for what each protects.
  std::string token{};
  std::string token_file{};
  std::optional<TlsOptions> tls{};

  FailureDetectorOptions failure_detector{};
  Limits limits{};
  // For tests of programs: some of the messages that this node sends fail or come late.
  std::optional<transport::Faults> faults{};
  // Whether refs() says where in the program each reference was created. Takes microseconds each.
  bool record_reference_origins = false;
  // How long a thread looks on before it sleeps; 0 never, at most 200 us.
  Duration spin_limit = std::chrono::microseconds(50);
};

}  // namespace hawser
