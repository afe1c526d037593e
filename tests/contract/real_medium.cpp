#include "contract/real_medium.h"

#include <poll.h>
#include <sys/socket.h>

#include <vector>

namespace hawser::contract {
namespace {

constexpr int kMomentMilliseconds = 2;

}  // namespace

RealMedium::RealMedium() { control_.start(); }
RealMedium::~RealMedium() { control_.stop(); }

void RealMedium::wait_for_progress(std::span<transport::Link* const> links) {
  std::vector<pollfd> watched;
  for (const transport::Link* link : links) {
    const short writing = link->wants_write() ? POLLOUT : 0;
    watched.push_back({link->descriptor(), static_cast<short>(POLLIN | writing), 0});
  }
  ::poll(watched.data(), watched.size(), kMomentMilliseconds);
}

void RealMedium::kill(transport::Link& end) { ::shutdown(end.descriptor(), SHUT_RDWR); }

bool RealMedium::inject(transport::Link& from, std::span<const std::byte> bytes) {
  return ::send(from.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace hawser::contract
