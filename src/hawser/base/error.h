#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hawser {

// Named by what the caller should do about it. The same kinds travel on the wire and reach Python;
// they are never recovered from text.
enum class ErrorKind : std::uint8_t {
  Timeout = 1,     // the deadline passed first; the call may or may not have run
  Cancelled = 2,   // somebody who may do so cancelled the call
  PeerLost = 3,    // the peer is gone; retry elsewhere, or after it has come back
  Overloaded = 4,  // a named limit is reached; slow down and retry
  Refused = 5,     // the peer does not want this caller or this call; do not retry as is
  Remote = 6,      // the function ran and raised
  Invalid = 7,     // the request makes no sense: unknown function, wrong arguments, closed node
};

std::string_view to_string(ErrorKind kind);

// What is known about a failure, as data. Empty fields are unknown, not false.
struct ErrorDetails {
  std::string node{};                                     // the peer that the error speaks of
  std::string function{};                                 // what was called
  std::uint64_t incarnation = 0;                          // of that peer
  std::optional<std::chrono::microseconds> budget{};      // the time-out the call was given
  std::optional<std::chrono::microseconds> last_heard{};  // PeerLost: how long ago
  std::string remote_type{};                              // Remote: type name of what was raised
  std::string remote_traceback{};                         // Remote: where, in the callee's words
};

// An immutable value that is cheap to copy: one failure may answer a thousand calls.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message, ErrorDetails details = {});

  ErrorKind kind() const noexcept;
  const std::string& message() const noexcept;
  const ErrorDetails& details() const noexcept;
  // "<Kind>: <message>"
  const char* what() const noexcept override;

  // The same failure, seen in the context of one call: fills the fields that are still empty.
  Error about(std::string_view node, std::string_view function) const;

 private:
  struct Body;
  std::shared_ptr<const Body> body_;
};

}  // namespace hawser
