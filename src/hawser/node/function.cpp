#include "hawser/node/function.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <typeinfo>

namespace hawser {

Error remote_error(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    // A time-out or a loss that the handler met is not one of this call. Where it met it goes
    // along: at the end of a chain of calls that is how one knows which link has failed.
    ErrorDetails details;
    details.remote_type = "hawser::" + std::string(to_string(error.kind()));
    std::string text = error.what();
    if (!error.details().node.empty()) {
      text += " (" + error.details().function + " on '" + error.details().node + "')";
    }
    return Error(ErrorKind::Remote, std::move(text), std::move(details));
  } catch (const c10::Error& error) {
    ErrorDetails details;
    details.remote_type = demangled(typeid(error));
    if (error.backtrace()) details.remote_traceback = error.backtrace()->get();
    return Error(ErrorKind::Remote, error.what_without_backtrace(), std::move(details));
  } catch (const std::exception& error) {
    ErrorDetails details;
    details.remote_type = demangled(typeid(error));
    return Error(ErrorKind::Remote, error.what(), std::move(details));
  } catch (...) {
    return Error(ErrorKind::Remote, "something was thrown that is not a std::exception");
  }
}

void Function::run(const CallContext& context) {
  const ServingCall serving(&context);
  briefness_.run([&] { invoke(context); });
}

void Function::invoke(const CallContext& context) {
  try {
    invoke_(context);
  } catch (const detail::BadRequest& bad) {
    context.fail(bad.error);
  } catch (...) {
    context.fail(remote_error(std::current_exception()));
  }
}

}  // namespace hawser
