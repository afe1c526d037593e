#include "hawser/base/error.h"

#include <utility>

namespace hawser {

struct Error::Body {
  ErrorKind kind;
  std::string message;
  ErrorDetails details;
  std::string what;
};

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Timeout:
      return "Timeout";
    case ErrorKind::Cancelled:
      return "Cancelled";
    case ErrorKind::PeerLost:
      return "PeerLost";
    case ErrorKind::Overloaded:
      return "Overloaded";
    case ErrorKind::Refused:
      return "Refused";
    case ErrorKind::Remote:
      return "Remote";
    case ErrorKind::Invalid:
      return "Invalid";
  }
  return "Unknown";
}

Error::Error(ErrorKind kind, std::string message, ErrorDetails details) {
  std::string what = std::string(to_string(kind)) + ": " + message;
  body_ = std::make_shared<const Body>(
      Body{kind, std::move(message), std::move(details), std::move(what)});
}

ErrorKind Error::kind() const noexcept { return body_->kind; }
const std::string& Error::message() const noexcept { return body_->message; }
const ErrorDetails& Error::details() const noexcept { return body_->details; }
const char* Error::what() const noexcept { return body_->what.c_str(); }

Error Error::about(std::string_view node, std::string_view function) const {
  if (!body_->details.node.empty() && !body_->details.function.empty()) return *this;
  ErrorDetails details = body_->details;
  if (details.node.empty()) details.node = node;
  if (details.function.empty()) details.function = function;
  return Error(body_->kind, body_->message, std::move(details));
}

}  // namespace hawser
