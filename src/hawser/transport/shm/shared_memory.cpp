#include "hawser/transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "hawser/base/error.h"

namespace hawser::transport::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr unsigned kNoExecSeal = 0x0008U;  // MFD_NOEXEC_SEAL: newer than some C libraries

[[noreturn]] void give_up(const std::string& what) {
  throw Error(ErrorKind::Overloaded, what + ": " + std::strerror(errno));
}

// Some systems demand that memory says it is not executable, older ones do not know the word.
int create_memory(const char* label) {
  const int fd = ::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  if (fd >= 0 || errno != EINVAL) return fd;
  return ::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

bool map_at(std::byte* address, std::size_t bytes, int fd, std::size_t offset) {
  return ::mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                static_cast<off_t>(offset)) != MAP_FAILED;
}

}  // namespace

Descriptor create_sealed_memory(const char* label, std::size_t bytes) {
  Descriptor memory(create_memory(label));
  if (!memory) give_up("cannot create shared memory");
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) {
    give_up("cannot prepare " + std::to_string(bytes) + " bytes of shared memory");
  }
  return memory;
}

void check_sealed_memory(const Descriptor& memory, std::size_t bytes, std::string_view what) {
  // Only memory files have seals: anything else fails to tell them.
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw Error(ErrorKind::Refused, std::string(what) + " is not sealed memory");
  }
  struct stat status {};
  if (::fstat(memory.get(), &status) != 0 || status.st_size != static_cast<off_t>(bytes)) {
    throw Error(ErrorKind::Refused, std::string(what) + " has " + std::to_string(status.st_size) +
                                        " bytes instead of " + std::to_string(bytes));
  }
}

void check_event(const Descriptor& event, std::string_view what) {
  std::array<char, 32> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(event.get());
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  const std::string_view kind(target.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  if (kind != "anon_inode:[eventfd]") {
    throw Error(ErrorKind::Refused, std::string(what) + " is not an eventfd");
  }
}

Mapping::~Mapping() {
  if (data_) ::munmap(data_, bytes_);
}

Mapping Mapping::of(const Descriptor& memory, std::size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (at == MAP_FAILED) give_up("cannot map " + std::to_string(bytes) + " bytes");
  return Mapping(static_cast<std::byte*>(at), bytes);
}

Mapping Mapping::with_body_twice(const Descriptor& memory, std::size_t head, std::size_t body) {
  const std::size_t bytes = head + 2 * body;
  void* at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) give_up("cannot reserve " + std::to_string(bytes) + " bytes");
  Mapping mapping(static_cast<std::byte*>(at), bytes);
  if (!map_at(mapping.data_, head + body, memory.get(), 0) ||
      !map_at(mapping.data_ + head + body, body, memory.get(), head)) {
    give_up("cannot map " + std::to_string(bytes) + " bytes");
  }
  return mapping;
}

void give_back_pages(std::byte* begin, std::size_t bytes) {
  // A system that cannot do this keeps the pages: nothing is wrong then.
  if (bytes > 0) ::madvise(begin, bytes, MADV_REMOVE);
}

}  // namespace hawser::transport::shm
