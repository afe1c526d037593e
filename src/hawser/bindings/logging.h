#pragma once

namespace hawser::bindings {

// From now on lines that hawser logs go to Python's logging, under "hawser.<layer>". Threads that
// read the network only put them down (GIL-1); the main thread passes them on, at its next
// opportunity. With the interpreter lock; again is harmless.
void log_to_python();

// Passes on what has been put down. With the interpreter lock.
void pass_on_log();

}  // namespace hawser::bindings
