#include "hawser/transport/doorbell.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "hawser/base/error.h"
#include "hawser/base/step.h"

namespace hawser::transport {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void give_up(ErrorKind kind, const std::string& what) {
  throw Error(kind, what + ": " + std::strerror(errno));
}

BellPage* map_page(int fd, ErrorKind kind) {
  void* at = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) give_up(kind, "cannot map the doorbell page");
  return static_cast<BellPage*>(at);
}

void signal_event(int fd) {
  const std::uint64_t one = 1;
  // EAGAIN means that the counter is full, so whoever sleeps is being woken already.
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

// BELL-1, the producer's steps 2 and 3.
void wake_sleeper(BellPage& page, int event, std::uint32_t sleep) {
  HAWSER_STEP();
  signal_event(event);
  HAWSER_STEP();
  page.sleeping.compare_exchange_strong(sleep, 0, std::memory_order_seq_cst);
}

bool is_sealed_page(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || status.st_size != kPageBytes) return false;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

// A peer must not be able to make us block in a ring.
bool make_non_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

Doorbell::Doorbell() {
  memory_ = Descriptor(::memfd_create("hawser-bell", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory_) give_up(ErrorKind::Overloaded, "cannot create the doorbell page");
  if (::ftruncate(memory_.get(), kPageBytes) != 0 ||
      ::fcntl(memory_.get(), F_ADD_SEALS, kSeals) != 0) {
    give_up(ErrorKind::Overloaded, "cannot prepare the doorbell page");
  }
  event_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_) give_up(ErrorKind::Overloaded, "cannot create the doorbell event");
  page_ = ::new (map_page(memory_.get(), ErrorKind::Overloaded)) BellPage;
}

Doorbell::~Doorbell() { ::munmap(page_, kPageBytes); }

void Doorbell::ring() { signal_event(event_.get()); }

void Doorbell::ring_if_asleep() {
  const std::uint32_t sleep = page_->sleeping.load(std::memory_order_seq_cst);
  if (sleep != 0) wake_sleeper(*page_, event_.get(), sleep);
}

RemoteBell::RemoteBell(Descriptor page, Descriptor event)
    : memory_(std::move(page)), event_(std::move(event)) {
  if (!is_sealed_page(memory_.get())) {
    throw Error(ErrorKind::Refused, "the peer's doorbell page is not a sealed page");
  }
  if (!make_non_blocking(event_.get())) {
    throw Error(ErrorKind::Refused, "the peer's doorbell event is not a descriptor to write to");
  }
  page_ = map_page(memory_.get(), ErrorKind::Refused);
}

RemoteBell::~RemoteBell() { ::munmap(page_, kPageBytes); }

void RemoteBell::wake_from(std::uint32_t sleep) { wake_sleeper(*page_, event_.get(), sleep); }

}  // namespace hawser::transport
