#include "hawser/node/function.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <typeinfo>

namespace hawser {

Error remote_error(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    // A time-out or a loss that the handler met is not one of this call.
    ErrorDetails details;
    details.remote_type = "hawser::" + std::string(to_string(error.kind()));
    return Error(ErrorKind::Remote, error.what(), std::move(details));
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
