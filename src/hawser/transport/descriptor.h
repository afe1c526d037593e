#pragma once

#include <unistd.h>

#include <utility>

namespace hawser::transport {

// A forked child inherits every descriptor, and would keep connections open that its parent's death
// should close. What is registered here is closed in the child at once.
void close_in_children(int fd);
// No longer ours, or about to be closed. False in a child that has closed it: the number may be
// somebody else's by now.
bool keep_in_children(int fd);

// Owns a file descriptor. All of ours are closed in forked children, and opened close-on-exec:
// posix_spawn() and system() run no fork handlers. Asio's sockets are not, so it opens none for us.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {
    if (fd_ >= 0) close_in_children(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    if (fd_ >= 0) keep_in_children(fd_);
    return std::exchange(fd_, -1);
  }
  // To somebody who closes it himself, and calls keep_in_children() before he does.
  int hand_over() { return std::exchange(fd_, -1); }
  void reset() {
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && keep_in_children(fd)) ::close(fd);
  }

 private:
  int fd_ = -1;
};

}  // namespace hawser::transport
