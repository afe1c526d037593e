#include "process/world.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "hawser/transport/descriptor.h"

namespace hawser::testing {
namespace {

std::uint64_t parse_number(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw std::invalid_argument("not a number: '" + text + "'");
  }
  return value;
}

std::string milliseconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

}  // namespace

FailureDetectorOptions quick_detector(Duration lost_after) {
  return {.heartbeat_interval = 50ms, .suspect_after = 300ms, .lost_after = lost_after};
}

// ---------------------------------------------------------------------------------- world

World::World() {
  std::string pattern = (std::filesystem::temp_directory_path() / "hawser-test-XXXXXX").string();
  if (!::mkdtemp(pattern.data())) throw std::runtime_error("cannot make a directory: " + pattern);
  directory_ = pattern;
}

World::~World() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string World::rendezvous() const { return "file://" + (directory_ / "store").string(); }

NodeOptions World::options(const std::string& name, const std::string& transport) const {
  NodeOptions options;
  options.name = name;
  options.rendezvous = rendezvous();
  options.transports = {transport};
  options.call_timeout = kPatience;
  return options;
}

// ---------------------------------------------------------------------------------- worker

std::vector<std::string> to_arguments(const NodeOptions& options) {
  std::vector<std::string> arguments{
      "name=" + options.name,
      "rendezvous=" + options.rendezvous,
      "call_timeout=" + milliseconds(options.call_timeout),
      "heartbeat_interval=" + milliseconds(options.failure_detector.heartbeat_interval),
      "suspect_after=" + milliseconds(options.failure_detector.suspect_after),
      "lost_after=" + milliseconds(options.failure_detector.lost_after),
      "max_bytes_queued=" + std::to_string(options.limits.max_bytes_queued_per_peer),
      "max_threads=" + std::to_string(options.limits.max_threads)};
  for (const std::string& transport : options.transports) {
    arguments.push_back("transport=" + transport);
  }
  if (options.rank) arguments.push_back("rank=" + std::to_string(*options.rank));
  if (options.world_size) arguments.push_back("world_size=" + std::to_string(*options.world_size));
  if (!options.address.empty()) arguments.push_back("address=" + options.address);
  if (!options.token.empty()) arguments.push_back("token=" + options.token);
  return arguments;
}

NodeOptions from_arguments(const std::vector<std::string>& arguments) {
  NodeOptions options;
  options.transports.clear();
  for (const std::string& argument : arguments) {
    const auto equals = argument.find('=');
    const std::string key = argument.substr(0, equals), value = argument.substr(equals + 1);
    const auto number = [&] { return parse_number(value); };
    const auto time = [&] { return std::chrono::milliseconds(number()); };
    if (key == "name") options.name = value;
    if (key == "rendezvous") options.rendezvous = value;
    if (key == "transport") options.transports.push_back(value);
    if (key == "address") options.address = value;
    if (key == "token") options.token = value;
    if (key == "rank") options.rank = static_cast<std::uint32_t>(number());
    if (key == "world_size") options.world_size = static_cast<std::uint32_t>(number());
    if (key == "max_bytes_queued") options.limits.max_bytes_queued_per_peer = number();
    if (key == "max_threads") options.limits.max_threads = number();
    if (key == "call_timeout") options.call_timeout = time();
    if (key == "heartbeat_interval") options.failure_detector.heartbeat_interval = time();
    if (key == "suspect_after") options.failure_detector.suspect_after = time();
    if (key == "lost_after") options.failure_detector.lost_after = time();
  }
  return options;
}

Worker::Worker(const NodeOptions& options, std::map<std::string, std::string> environment)
    : Worker(begin(options, std::move(environment))) {
  joined();
}

Worker Worker::begin(const NodeOptions& options, std::map<std::string, std::string> environment) {
  return Worker(Process({.role = "worker",
                         .arguments = to_arguments(options),
                         .environment = std::move(environment)}));
}

void Worker::joined(Duration patience) {
  std::istringstream words(channel().expect("joined ", patience));
  words >> incarnation_;
  for (std::string endpoint; words >> endpoint;) endpoints_.push_back(endpoint);
}

void Worker::call(const std::string& peer, const std::string& function) {
  channel().tell("call " + peer + " " + function);
}

void Worker::ask_all(const std::vector<std::string>& peers) {
  std::string command = "call_all";
  for (const std::string& peer : peers) command += " " + peer;
  channel().tell(command);
}

std::size_t Worker::answered(Duration patience) {
  return parse_number(channel().expect("answered ", patience));
}

void Worker::ask_to_make(const std::string& peer, std::size_t calls, std::int64_t bytes) {
  channel().tell("make " + peer + " " + std::to_string(calls) + " " + std::to_string(bytes));
  channel().expect("asked");
}

void Worker::die_at_step(int step) {
  channel().tell("die_at_step " + std::to_string(step));
  channel().expect("doomed");
}

std::uint64_t Worker::ask_incarnation() {
  channel().tell("incarnation");
  return parse_number(channel().expect("incarnation "));
}

// ---------------------------------------------------------------------------------- looking

agent::PeerReport peer_of(const Node& node, const std::string& peer) {
  const NodeReport report = node.inspect();
  const auto found = std::find_if(report.peers.begin(), report.peers.end(),
                                  [&](const auto& each) { return each.name == peer; });
  return found == report.peers.end() ? agent::PeerReport{} : *found;
}

std::string describe_refs(const Node& node) {
  constexpr std::size_t kEnough = 2000;
  std::string text;
  for (const RefReport& ref : node.refs()) {
    text += ref.id + " on " + ref.owner + ", " + ref.state + ", " + std::to_string(ref.handles) +
            " handles, held by";
    for (const std::string& holder : ref.holders) text += " " + holder;
    text += "\n";
    if (text.size() > kEnough) break;
  }
  return text + node.inspect().to_text();
}

std::uint16_t free_port() {
  const transport::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no free port");
  }
  return ntohs(address.sin_port);
}

std::uint64_t resident_bytes(pid_t pid) {
  std::uint64_t total = 0, resident = 0;
  std::ifstream("/proc/" + std::to_string(pid) + "/statm") >> total >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace hawser::testing
