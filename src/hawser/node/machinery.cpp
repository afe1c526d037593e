#include "hawser/node/machinery.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <sstream>

#include "hawser/base/log.h"
#include "hawser/base/process_forks.h"
#include "hawser/node/c10d_store.h"
#include "hawser/node/scripts.h"
#include "hawser/transport/loopback.h"
#include "hawser/transport/shm/shm_transport.h"
#include "hawser/transport/tcp/tcp_transport.h"

namespace hawser {
namespace {

[[noreturn]] void invalid(const std::string& message) { throw Error(ErrorKind::Invalid, message); }

void check_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == ':' || c == '.';
  };
  if (name.empty() || name.size() > wire::kMaxNameBytes ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    invalid("a node's name must be 1 to " + std::to_string(wire::kMaxNameBytes) +
            " letters, digits, '-', '_', ':' or '.', got '" + name + "'");
  }
}

void check_options(const NodeOptions& options) {
  check_name(options.name);
  if (options.world_size && !options.rank) invalid("world_size is given without a rank");
  if (options.world_size && *options.rank >= *options.world_size) {
    invalid("rank " + std::to_string(*options.rank) + " in a world of " +
            std::to_string(*options.world_size));
  }
  if (options.rank && *options.rank > autograd::kMaxRank) {
    invalid("rank " + std::to_string(*options.rank) + " does not fit into the ids of autograd: " +
            std::to_string(autograd::kMaxRank) + " at most");
  }
  if (options.spin_limit < Duration::zero() ||
      options.spin_limit > std::chrono::microseconds(200)) {
    invalid("spin_limit must be between 0 and 200 us");
  }
  if (options.call_timeout <= Duration::zero()) invalid("call_timeout must be positive");
  if (options.transports.empty()) invalid("no transports are given");
  const auto& detector = options.failure_detector;
  if (detector.heartbeat_interval <= Duration::zero() ||
      detector.suspect_after < detector.heartbeat_interval ||
      detector.lost_after < detector.suspect_after) {
    invalid("failure_detector: 0 < heartbeat_interval <= suspect_after <= lost_after is required");
  }
}

std::string read_token_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) invalid("cannot read the token file '" + path + "'");
  if (status.st_uid != ::geteuid()) {
    invalid("the token file '" + path + "' must belong to the user who runs this program");
  }
  if ((status.st_mode & 077) != 0) {
    invalid("the token file '" + path + "' must not be accessible to others (chmod 600)");
  }
  std::ifstream file(path);
  std::string token;
  std::getline(file, token);
  if (token.empty()) invalid("the token file '" + path + "' is empty");
  return token;
}

MemoryReport report_memory(const BufferPool::Usage& pool,
                           const std::vector<agent::PeerReport>& peers) {
  MemoryReport memory{.lent = pool.bytes_lent, .kept = pool.bytes_kept};
  for (const agent::PeerReport& peer : peers) {
    memory.adopted += peer.traffic.bytes_adopted;
    memory.shared += peer.traffic.bytes_shared;
    memory.to_send += peer.traffic.bytes_queued + peer.waiting_bytes;
  }
  return memory;
}

void run_operator(const tensor::OperatorRule& rule, const CallContext& context) {
  agent::IncomingCall& call = *context.call();
  std::vector<c10::IValue> stack;
  try {
    PayloadReader reader(call.payload());
    const auto inside = reader.nest();
    const std::size_t count = reader.tuple();
    for (std::size_t i = 0; i < count; ++i) stack.push_back(read_ivalue(reader));
    reader.finish();
  } catch (const Error& error) {
    return context.fail(error);
  }
  try {
    auto results = tensor::run_operator(call.call().function, std::move(stack), rule);
    detail::answer(context, results.size() == 1
                                ? std::move(results.front())
                                : c10::IValue(c10::ivalue::Tuple::create(std::move(results))));
  } catch (const Error& error) {
    context.fail(error);
  } catch (...) {
    context.fail(remote_error(std::current_exception()));
  }
}

}  // namespace

Node::Machinery::Machinery(NodeOptions options)
    : options_(std::move(options)),
      fork_depth_(fork_depth()),
      peer_clocks_(std::make_shared<trace::PeerClocks>()),
      call_timeout_(options_.call_timeout),
      operator_rule_(options_.operators ? tensor::OperatorRule(*options_.operators)
                                        : tensor::OperatorRule()),
      operator_functions_(
          [this](const CallContext& context) { run_operator(operator_rule_, context); }),
      script_functions_([this](const CallContext& context) {
        run_script(*options_.scripts, operator_rule_, context);
      }),
      method_calls_([](const CallContext& context) { context.references().serve(context); }),
      refused_creation_(std::make_shared<Function>("", "(...)", [](const CallContext& context) {
        context.fail(Error(ErrorKind::PeerLost, "its caller has given up the reference to it"));
      })) {
  if (options_.scripts) replace_script_operators();
}

Node::Machinery::~Machinery() = default;

bool Node::Machinery::inherited() const { return fork_depth() != fork_depth_; }

void Node::Machinery::refuse_if_inherited() const {
  if (inherited()) invalid("the node '" + options_.name + "' belongs to the parent process");
}

std::shared_ptr<agent::WorldStore> Node::Machinery::open_store() {
  if (options_.store) return options_.store;
  if (options_.rendezvous.empty()) invalid("neither a rendezvous nor a store is given");
  RendezvousOptions rendezvous{
      .rank = options_.rank,
      .world_size = options_.world_size,
      .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
          std::min<Duration>(options_.rendezvous_timeout, std::chrono::hours(24)))};
  auto store = open_rendezvous(options_.rendezvous, rendezvous);
  options_.rank = rendezvous.rank;
  options_.world_size = rendezvous.world_size;
  return store;
}

std::vector<std::byte> Node::Machinery::secret() {
  const auto from_environment = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value ? value : "";
  };
  std::string token = options_.token;
  if (token.empty()) token = from_environment("HAWSER_TOKEN");
  if (token.empty()) {
    const std::string path =
        options_.token_file.empty() ? from_environment("HAWSER_TOKEN_FILE") : options_.token_file;
    if (!path.empty()) token = read_token_file(path);
  }
  if (token.empty()) token = directory_->agree_on_secret(random_);
  const auto bytes = std::as_bytes(std::span(token));
  return {bytes.begin(), bytes.end()};
}

void Node::Machinery::open_transports(const std::string& towards) {
  transport::tcp::TcpOptions tcp;
  tcp.address = options_.address;
  tcp.interfaces = options_.interfaces;
  tcp.port = options_.port;
  tcp.advertised_host = options_.advertised_host;
  tcp.tls = options_.tls;
  tcp.towards = towards;
  for (const std::string& name : options_.transports) {
    std::unique_ptr<transport::Transport> transport;
    if (name == "shm") {
      transport =
          transport::shm::create_shm(control_, *agent_, random_, *pool_, *bell_, options_.limits);
    } else if (name == "tcp") {
      transport =
          transport::tcp::create_tcp(control_, *agent_, random_, *pool_, options_.limits, tcp);
    } else {
      invalid("unknown transport '" + name + "' (shm or tcp)");
    }
    transports_.push_back(std::move(transport));
  }
}

std::vector<transport::Transport*> Node::Machinery::listen() {
  std::vector<transport::Transport*> listening;
  for (auto& transport : transports_) {
    try {
      endpoints_.push_back(transport->listen());
      listening.push_back(transport.get());
    } catch (const Error& error) {
      unavailable_.push_back(std::string(transport->name()) + ": " + error.message());
      log::Line(log::Level::Warning, "node") << unavailable_.back();
    }
  }
  if (listening.empty()) {
    std::string reasons;
    for (const std::string& why : unavailable_) reasons += (reasons.empty() ? "" : "; ") + why;
    invalid("no transport can be used: " + reasons);
  }
  return listening;
}

void Node::Machinery::start(Node& node) {
  node_ = &node;
  scripts_ = std::make_unique<ScriptHost>(node, options_.scripts, options_.call_method);
  check_options(options_);
  const auto store = open_store();
  directory_ = std::make_unique<agent::StoreDirectory>(store);
  check_options(options_);  // env:// may have filled in rank and world size
  process_ = trace::this_process(options_.name, options_.rank);
  for (auto& function : std::exchange(options_.functions, {})) add(std::move(function));
  transport::Identity identity;
  identity.name = options_.name;
  identity.world = directory_->agree_on_world(random_);
  identity.secret = secret();
  if (options_.world_size) identity.rank = options_.rank;

  pool_ = std::make_shared<BufferPool>(options_.limits.max_pool_bytes);
  bell_ = std::make_shared<transport::Doorbell>();
  set_ = std::make_shared<transport::PollSet>(*bell_);
  crew_ = std::make_shared<agent::Crew>(
      bell_, set_,
      agent::CrewOptions{.max_threads = options_.limits.max_threads,
                         .max_queued = options_.limits.max_requests_queued,
                         .spin_limit = options_.spin_limit});
  chain_base_ = random_.next();

  agent::AgentOptions agent_options;
  agent_options.detector = options_.failure_detector;
  agent_options.limits = options_.limits;
  agent_ = std::make_unique<agent::Agent>(agent_options,
                                          agent::Agent::Surroundings{.clock = clock_,
                                                                     .timers = control_,
                                                                     .directory = *directory_,
                                                                     .workshop = *this,
                                                                     .handler = *this});
  connect_protocols();
  agent_->introduce(identity);
  open_transports(store->host());
  control_.start();
  const std::vector<transport::Transport*> listening = listen();
  agent::Card card{.name = options_.name,
                   .rank = options_.rank.value_or(0),
                   .incarnation = {},
                   .endpoints = endpoints_,
                   .is_member = options_.world_size.has_value()};
  card = directory_->join_now(std::move(card));
  identity.incarnation = card.incarnation;
  references_ = std::make_shared<References>(
      refs::Self{card.name, card.incarnation, refs::origin_of(card.rank, card.incarnation)},
      References::Surroundings{*agent_, control_, clock_, crew_, bell_, node, weak_from_this()});
  autograd_ = std::make_shared<Autograd>(
      autograd::Self{card.name, card.incarnation, options_.rank},
      Autograd::Surroundings{*agent_, control_, clock_, crew_, serving_profiles_, weak_from_this(),
                             peer_clocks_, process_});
  crew_->start();
  directory_->start(options_.world_size);
  agent_->start(identity, card, listening,
                transport::make_loopback({.name = options_.name,
                                          .incarnation = card.incarnation,
                                          .minor = wire::kProtocolMinor,
                                          .features = {}},
                                         bell_, pool_));
}

void Node::Machinery::connect_protocols() {
  departure_ = std::make_unique<agent::DepartureDriver>(options_.name, *agent_, clock_, control_);
  agent_->on_control_message = [this](const transport::PeerIdentity& peer, wire::Message message) {
    if (auto* records = std::get_if<wire::References>(&message)) {
      references_->received(peer.name, peer.incarnation, std::move(*records));
    } else {
      departure_->control_message(peer.name, message);
    }
  };
  agent_->on_connected = [this](const transport::PeerIdentity& peer) {
    directory_->meet(peer.name, peer.rank);
    references_->connected(peer.name, peer.incarnation);
    autograd_->connected(peer.name, peer.incarnation);
  };
  agent_->on_barred = [this](const std::string& peer, Incarnation incarnation) {
    references_->barred(peer, incarnation);
    autograd_->barred(peer, incarnation);
  };
  agent_->on_rejoined = [this](Incarnation incarnation) {
    references_->rejoined(incarnation);
    autograd_->rejoined(incarnation);
  };
  agent_->on_peer_lost = [this](const std::string& peer, const Error&) {
    departure_->connection_lost(peer);
    references_->disconnected(peer);
    autograd_->disconnected(peer);
  };
  agent_->on_given_up = [this](const std::string& peer, const Error&) {
    departure_->given_up(peer);
    references_->given_up(peer);
    autograd_->given_up(peer);
  };
}

bool Node::Machinery::close(Duration patience) {
  if (inherited() || closing_.exchange(true)) return true;
  const Deadline deadline = Deadline::after(clock_, patience);
  // When the world has ended nobody looks for this node any more, and whoever hosts the rendezvous
  // may be gone: it is not asked to take back the card.
  if (directory_ && departed_.load()) directory_->stop(deadline);
  if (departure_) departure_->cancel();
  if (agent_)
    agent_->close(Error(ErrorKind::Invalid, "the node '" + options_.name + "' is closed"));
  for (auto& transport : transports_) transport->close();
  if (directory_) directory_->stop(deadline);
  if (references_) references_->close();
  if (autograd_) autograd_->close();
  const bool all_ended = !crew_ || crew_->stop(deadline);
  if (set_) set_->clear();
  control_.stop();
  closed_.store(true, std::memory_order_release);
  return all_ended;
}

// ------------------------------------------------------------------------------- calls

agent::CallHandle Node::Machinery::request(agent::Request&& request,
                                           agent::AnswerHandler&& handler) {
  wire::Call& message = request.message;
  if (const CallContext* serving = current_call()) {
    message.chain = serving->call()->chain();
    message.depth = static_cast<std::uint16_t>(serving->call()->call().depth + 1);
  }
  if (message.chain == ChainId::None) {
    // Odd, so never None; steps of two, so that no two calls share one.
    message.chain = ChainId{(chain_base_ + chains_.fetch_add(2, std::memory_order_relaxed)) | 1};
  }
  for (;;) {
    std::shared_ptr<Event> no_room;
    agent::CallHandle handle = agent_->request(std::move(request), std::move(handler), &no_room);
    if (!no_room) return handle;
    if (!crew_->wait(*no_room, request.deadline)) {
      agent::Answer answer;
      answer.error.emplace(
          Error(ErrorKind::Overloaded,
                "no room for the call in time: max_bytes_in_flight_per_peer are unanswered")
              .about(request.to, message.function));
      handler(std::move(answer));
      return {};
    }
    request.started = clock_.now();
  }
}

void Node::Machinery::notice(std::string_view to, wire::Call message,
                             agent::AnswerHandler on_sent) {
  const Duration budget = call_timeout();
  const TimePoint now = clock_.now();
  request({.to = to,
           .message = std::move(message),
           .started = now,
           .deadline = Deadline::from(now, budget),
           .budget = budget},
          std::move(on_sent));
}

void Node::Machinery::handle(std::shared_ptr<agent::IncomingCall> call) {
  if (call->call().target == wire::TargetKind::Autograd) return autograd_->serve(std::move(call));
  const CallContext context(*node_, *references_, *autograd_, call, recorded(call->call()));
  if (call->target()) return static_cast<Function*>(call->target().get())->run(context);
  switch (call->call().target) {
    case wire::TargetKind::Function:
      context.fail(Error(ErrorKind::Invalid, "'" + options_.name + "' serves no function named '" +
                                                 std::string(call->call().function) + "'"));
      return;
    case wire::TargetKind::Operator:  // these always have a target
    case wire::TargetKind::Method:
    case wire::TargetKind::Autograd:  // served above
    case wire::TargetKind::Script:
    case wire::TargetKind::Python:
      context.fail(Error(ErrorKind::Refused, "'" + options_.name + "' does not run " +
                                                 (call->call().target == wire::TargetKind::Script
                                                      ? "script functions"
                                                      : "Python functions")));
      return;
  }
}

// A call that is recorded is recorded from its arrival, by whoever runs it.
bool Node::Machinery::needs_no_run(const std::shared_ptr<agent::IncomingCall>& call) {
  const wire::ReceivedCall& message = call->call();
  const bool is_recorded = message.notes.trace || serving_profiles_.wants() != 0;
  if (message.target != wire::TargetKind::Method || is_recorded) return false;
  return references_->serve_without_running(
      CallContext(*node_, *references_, *autograd_, call, nullptr));
}

std::shared_ptr<trace::Service> Node::Machinery::recorded(const wire::ReceivedCall& call) {
  if (!call.notes.trace && serving_profiles_.wants() == 0) return nullptr;
  return std::make_shared<trace::Service>(std::string(call.function), call.notes.trace,
                                          call.notes.autograd ? call.notes.autograd->message : 0,
                                          serving_profiles_, process_);
}

agent::Preparation Node::Machinery::prepare(wire::ReceivedCall& call,
                                            const transport::PeerIdentity& from) {
  if (call.notes.trace) call.notes.trace->received_at_ns = trace::wall_ns();
  if (call.target == wire::TargetKind::Autograd) return {.at_once = true};
  if (!call.payload.references.empty()) references_->adopt(call.payload);
  if (call.notes.autograd) {
    autograd_->received(call.notes, call.payload, {from.name, from.incarnation});
  }
  auto function = call.target == wire::TargetKind::Method ? method_calls_.find(call.function)
                                                          : find(call.target, call.function);
  agent::Preparation preparation;
  if (call.creates) {
    preparation.attached =
        references_->accept(*call.creates, call.function, {from.name, from.incarnation});
    if (!preparation.attached) function = refused_creation_;
  }
  preparation.brief = function && function->is_brief();
  preparation.target = std::move(function);
  return preparation;
}

void Node::Machinery::answer_received(wire::ReceivedPayload& payload, wire::Notes& notes,
                                      const transport::PeerIdentity& from) {
  if (!payload.references.empty()) references_->adopt(payload);
  if (notes.autograd) autograd_->received(notes, payload, {from.name, from.incarnation});
}

std::shared_ptr<Function> Node::Machinery::find(wire::TargetKind kind,
                                                std::string_view name) const {
  if (kind == wire::TargetKind::Operator) return operator_functions_.find(name);
  if (kind == wire::TargetKind::Script) {
    return options_.scripts ? script_functions_.find(name) : nullptr;
  }
  if (kind != wire::TargetKind::Function) {
    const auto finder = options_.finders.find(kind);
    return finder == options_.finders.end() ? nullptr : finder->second(name);
  }
  const std::shared_lock lock(functions_mutex_);
  const auto found = functions_.find(name);
  return found == functions_.end() ? nullptr : found->second;
}

void Node::Machinery::add(std::shared_ptr<Function> function) {
  refuse_if_inherited();
  const std::string& name = function->name();
  if (name.empty() || name.size() > wire::kMaxFunctionBytes || is_operator(name)) {
    invalid("a function's name must be 1 to " + std::to_string(wire::kMaxFunctionBytes) +
            " bytes without '::', got '" + name + "'");
  }
  const std::unique_lock lock(functions_mutex_);
  functions_.insert_or_assign(name, std::move(function));
}

void Node::Machinery::add_method(const std::type_info& type, std::string name,
                                 std::shared_ptr<const Method> method) {
  refuse_if_inherited();
  if (name.empty() || name.size() > wire::kMaxFunctionBytes) {
    invalid("a method's name must be 1 to " + std::to_string(wire::kMaxFunctionBytes) + " bytes");
  }
  const std::unique_lock lock(functions_mutex_);
  methods_.insert_or_assign({type, std::move(name)}, std::move(method));
}

std::shared_ptr<const Method> Node::Machinery::find_method(const std::type_info& type,
                                                           std::string_view name) const {
  const std::shared_lock lock(functions_mutex_);
  const auto found = methods_.find({type, std::string(name)});
  return found == methods_.end() ? nullptr : found->second;
}

bool Node::Machinery::withdraw(std::string_view name) {
  refuse_if_inherited();
  std::shared_ptr<Function> withdrawn;  // dies after the lock
  const std::unique_lock lock(functions_mutex_);
  const auto found = functions_.find(name);
  if (found == functions_.end()) return false;
  withdrawn = std::move(found->second);
  functions_.erase(found);
  return true;
}

// ------------------------------------------------------------------------------- workshop

void Node::Machinery::attach(std::shared_ptr<transport::Link> link,
                             std::shared_ptr<transport::FrameSink> sink) {
  set_->add(std::move(link), std::move(sink));
}

void Node::Machinery::watch_writable(transport::Link& link) { set_->watch_writable(link); }

std::shared_ptr<transport::Link> Node::Machinery::decorate(std::shared_ptr<transport::Link> link) {
  if (!options_.faults) return link;
  return std::make_shared<transport::FaultyLink>(
      std::move(link), bell_, clock_, control_,
      std::make_shared<const transport::Faults>(*options_.faults));
}

void Node::Machinery::outstanding_changed(int by) {
  if (by > 0) {
    crew_->expect_reply();
  } else {
    crew_->reply_arrived();
  }
}

void Node::Machinery::beat() { bell_->beat(); }

NodeReport Node::Machinery::report() const {
  refuse_if_inherited();
  NodeReport report;
  report.name = options_.name;
  report.incarnation = number(agent_->incarnation());
  report.endpoints = endpoints_;
  report.unavailable = unavailable_;
  report.peers = agent_->report_peers();
  report.calls = agent_->list_calls();
  report.crew = crew_->stats();
  report.memory = report_memory(pool_->usage(), report.peers);
  report.connections_turned_away = agent_->turned_away();
  report.shutdown_waits_for = departure_waits_for();
  report.autograd = autograd_->count();
  const std::shared_lock lock(functions_mutex_);
  for (const auto& [name, function] : functions_) {
    report.functions.push_back(name + function->signature());
  }
  return report;
}

}  // namespace hawser
