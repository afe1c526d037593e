#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>

#include "hawser/base/error.h"

namespace hawser::testing {

// The error that `action` throws. Fails the test when there is none.
inline Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorKind::Invalid, "nothing was thrown");
}

// What it says; of exceptions of other types, too.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "nothing was thrown";
}

}  // namespace hawser::testing
