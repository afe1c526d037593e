#include "hawser/base/scheduler.h"

namespace hawser {
namespace {

thread_local Duration waited{};

}  // namespace

Duration time_waited() { return waited; }

WaitingHere::~WaitingHere() { waited += std::chrono::steady_clock::now() - since_; }

}  // namespace hawser
