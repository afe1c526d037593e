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
  if (!is_to_be_timed()) return invoke(context);
  const TimePoint started = std::chrono::steady_clock::now();
  invoke(context);
  learn(std::chrono::steady_clock::now() - started);
}

bool Function::is_to_be_timed() {
  const unsigned run = runs_.load(std::memory_order_relaxed);
  runs_.store(run + 1, std::memory_order_relaxed);
  return !is_brief() || run % kRunsPerTiming == 0;
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

void Function::learn(Duration took) {
  const int before = slowness_.load(std::memory_order_relaxed);
  const int after = took > kBrief ? std::min(before + kSlowRun, kSlowest) : std::max(before - 1, 0);
  if (after != before) slowness_.store(after, std::memory_order_relaxed);
}

}  // namespace hawser
