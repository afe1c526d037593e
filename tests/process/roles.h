#pragma once

#include "support/process.h"

namespace hawser::testing {

// What the children of the process tests do; see Worker for the first.
int work(Channel& test, const std::vector<std::string>& arguments);
// Joins, is connected to, forks; then both halves wait to be ended. fork_test.cpp.
int fork_while_connected(Channel& test, const std::vector<std::string>& arguments);
// Joins, calls "hold" of the peer, starts a program that sleeps, and waits. spawn_test.cpp.
int spawn_while_connected(Channel& test, const std::vector<std::string>& arguments);

}  // namespace hawser::testing
