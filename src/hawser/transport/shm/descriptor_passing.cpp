#include "hawser/transport/shm/descriptor_passing.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "hawser/base/error.h"

namespace hawser::transport::shm {
namespace {

constexpr std::size_t kControlBytes = CMSG_SPACE(kMostDescriptors * sizeof(int));

// Takes ownership of all descriptors in a received message first, whatever is wrong with it.
std::vector<Descriptor> descriptors_in(msghdr& message) {
  std::vector<Descriptor> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

}  // namespace

bool send_note(int socket, std::span<const std::byte> note, std::span<const int> descriptors) {
  alignas(cmsghdr) char control[kControlBytes] = {};
  // sendmsg() reads only, but its interface says otherwise.
  iovec part{const_cast<std::byte*>(note.data()), note.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  // The kernel takes a few bytes whole or not at all.
  return sent == static_cast<ssize_t>(note.size());
}

NoteReceived receive_note(int socket, std::span<std::byte> note,
                          std::vector<Descriptor>& descriptors) {
  alignas(cmsghdr) char control[kControlBytes] = {};
  iovec part{note.data(), note.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return NoteReceived::Nothing;
  // A peer that died with unread bytes in its socket leaves a reset instead of an end.
  if (got <= 0) return NoteReceived::End;

  descriptors = descriptors_in(message);
  if (message.msg_flags & MSG_CTRUNC) {
    throw Error(ErrorKind::Overloaded, "no room for the peer's descriptors: too many are open");
  }
  if (got != static_cast<ssize_t>(note.size())) {
    throw Error(ErrorKind::Invalid, "a note of " + std::to_string(got) + " bytes on the socket");
  }
  return NoteReceived::Note;
}

}  // namespace hawser::transport::shm
