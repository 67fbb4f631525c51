#include "libckpt_rt/capture/rings/known_rings.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <cstring>

#include "base/memory/fork_path.h"
#include "base/memory/large_table.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/capture/rings/registered_files.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::rings {
namespace {

constexpr size_t kMost = 64, kMostRegistered = 64, kMostHeldBack = 512;
CKPT_LARGE_TABLE constinit Ring rings[kMost]{};
constinit RegisteredRing by_number[kMostRegistered]{};
CKPT_LARGE_TABLE constinit HeldBack completions[kMostHeldBack]{};
constinit std::atomic<bool> any{false};
// A ring that has no descriptor was made: nobody can tell when it goes.
constinit std::atomic<int> without_descriptor{0};
CKPT_FORK_DATA constinit std::atomic<int32_t> changes{0};

// A ring that is closed is forgotten where its place is needed.
Ring* take_free() {
  for (const bool closed_too : {false, true}) {
    for (Ring& r : rings) {
      uint64_t known = r.inode.load(kRelaxed);
      if (known == kTaken) continue;
      if (known != 0 && (!closed_too || (r.is_own() && inode_of(r.fd.load(kRelaxed)) == known))) continue;
      if (r.inode.compare_exchange_strong(known, kTaken, kRelaxed)) return &r;
    }
  }
  return nullptr;
}

// A thread that has ended left its numbers; another has its id perhaps.
void remember_number(int thread, uint32_t number, uint64_t inode) {
  RegisteredRing* place = nullptr;
  for (RegisteredRing& r : by_number) {
    if (r.thread.load(kRelaxed) == thread && r.number.load(kRelaxed) == number) place = &r;
  }
  for (RegisteredRing& r : by_number) {
    if (place != nullptr || inode == 0) break;
    int nobody = r.thread.load(kRelaxed);
    const bool gone = nobody > 0 && sys::call(__NR_tgkill, sys::getpid(), nobody, 0L) != 0;
    if ((nobody == 0 || gone) && r.thread.compare_exchange_strong(nobody, -1, kRelaxed)) place = &r;
  }
  if (place == nullptr) {
    if (Ring* ring = inode != 0 ? find(inode) : nullptr; ring != nullptr)
      ring->unknown.store(static_cast<uint32_t>(Operation::kRingFds) + 1, kRelaxed);
    return;
  }
  place->number.store(number, kRelaxed);
  place->inode.store(inode, kRelaxed);
  place->thread.store(inode != 0 ? thread : 0, kRelaxed);
}

void remember_numbers(const void* argument, uint32_t count, bool are_given) {
  const auto* list = static_cast<const io_uring_rsrc_update*>(argument);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t inode = are_given ? inode_of(static_cast<int>(list[i].data)) : 0;
    remember_number(sys::gettid(), list[i].offset, inode);
  }
}

// The ring that the calling thread has given this number.
Ring* ring_of_number(uint32_t number) {
  for (RegisteredRing& r : by_number) {
    if (r.thread.load(kRelaxed) == sys::gettid() && r.number.load(kRelaxed) == number)
      return find(r.inode.load(kRelaxed));
  }
  return nullptr;
}

void be_unknown(Ring& ring, Operation operation) {
  uint32_t none = 0;
  ring.unknown.compare_exchange_strong(none, static_cast<uint32_t>(operation) + 1, kRelaxed);
}

void remember_files(Ring& ring, Operation operation, uint64_t list, uint64_t tags, uint32_t first,
                    uint32_t count) {
  constexpr int kSkip = -2;  // IORING_REGISTER_FILES_SKIP
  const auto* fds = reinterpret_cast<const int*>(list);
  bool all = tags == 0;
  for (uint32_t i = 0; i < count && list != 0; ++i) {
    if (fds[i] != kSkip) all = remember_file(ring.inode.load(kRelaxed), first + i, fds[i]) && all;
  }
  if (!all) be_unknown(ring, operation);
}

void remember(Ring& ring, Operation operation, const void* argument, uint32_t count, uint32_t result) {
  switch (operation) {
    // The effects of these operations show in fdinfo, or nowhere.
    case Operation::kBuffers:
    case Operation::kUnregisterBuffers:
    case Operation::kProbe:
    case Operation::kPersonality:
    case Operation::kUnregisterPersonality:
    case Operation::kSyncCancel:
    case Operation::kProvidedStatus:
    case Operation::kRingFds:
    case Operation::kUnregisterRingFds:
      return;
    case Operation::kFiles:
      return remember_files(ring, operation, reinterpret_cast<uint64_t>(argument), 0, 0, count);
    case Operation::kFiles2: {
      const auto& a = *static_cast<const io_uring_rsrc_register*>(argument);
      return remember_files(ring, operation, a.data, a.tags, 0, a.nr);
    }
    case Operation::kFilesUpdate: {
      const auto& a = *static_cast<const io_uring_rsrc_update*>(argument);
      return remember_files(ring, operation, a.data, 0, a.offset, result);
    }
    case Operation::kFilesUpdate2: {
      const auto& a = *static_cast<const io_uring_rsrc_update2*>(argument);
      return remember_files(ring, operation, a.data, a.tags, a.offset, result);
    }
    // Without tags all of it shows in fdinfo.
    case Operation::kBuffers2:
      if (argument == nullptr || static_cast<const io_uring_rsrc_register*>(argument)->tags != 0)
        be_unknown(ring, operation);
      return;
    case Operation::kBuffersUpdate:
      if (argument == nullptr || static_cast<const io_uring_rsrc_update2*>(argument)->tags != 0)
        be_unknown(ring, operation);
      return;
    case Operation::kUnregisterFiles:
      return forget_files(ring.inode.load(kRelaxed));
    case Operation::kEventFd:
    case Operation::kEventFdAsync: {
      const int fd = *static_cast<const int*>(argument);
      ring.eventfd_id.store(eventfd_id(fd), kRelaxed);
      ring.eventfd_async.store(operation == Operation::kEventFdAsync, kRelaxed);
      return ring.eventfd.store(fd, kRelaxed);
    }
    case Operation::kUnregisterEventFd:
      return ring.eventfd.store(-1, kRelaxed);
    case Operation::kEnable:
      ring.made.flags &= ~uint32_t{kDisabled};
      return ring.issuer.store(sys::gettid(), kRelaxed);
    case Operation::kProvidedRing:
      ring.provided.fetch_add(1, kRelaxed);
      return;
    case Operation::kUnregisterProvidedRing:
      ring.provided.fetch_sub(1, kRelaxed);
      return;
  }
  be_unknown(ring, operation);
}

}  // namespace

int64_t eventfd_id(int fd) {
  char path[64], text[512];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/thread-self/fdinfo/{}", fd).out = '\0';
  const ScopedFd file(
      static_cast<int>(sys::call(__NR_openat, long{AT_FDCWD}, path, long{O_RDONLY | O_CLOEXEC}, 0L)));
  const long n = file.valid() ? sys::call(__NR_read, file.get(), text, sizeof(text)) : 0;
  const std::string_view said(text, n > 0 ? static_cast<size_t>(n) : 0);
  constexpr std::string_view kKey = "eventfd-id:";
  size_t at = said.find(kKey);
  if (at == said.npos) return -1;
  int64_t id = 0;
  for (at += kKey.size(); at < said.size() && said[at] != '\n'; ++at) {
    if (said[at] >= '0' && said[at] <= '9') id = id * 10 + (said[at] - '0');
  }
  return id;
}

uint64_t inode_of(int fd) {
  struct stat st {};
  return sys::call(__NR_fstat, fd, &st) == 0 ? st.st_ino : 0;
}

Change::Change() { changes.fetch_add(1, kRelaxed); }
Change::~Change() { changes.fetch_sub(1, kRelaxed); }

void made(int fd, const void* parameters) {
  any.store(true, kRelaxed);
  io_uring_params p;
  std::memcpy(&p, parameters, sizeof(p));
  const uint64_t inode = (p.flags & kRegisteredFdOnly) == 0 ? inode_of(fd) : 0;
  if (inode == 0) return without_descriptor.store(sys::getpid(), kRelaxed);
  Ring* ring = find(inode);
  if (ring == nullptr) ring = take_free();
  if (ring == nullptr) return;
  ring->process.store(sys::getpid(), kRelaxed);
  ring->fd.store(fd, kRelaxed);
  ring->issuer.store(sys::gettid(), kRelaxed);
  ring->made = p;
  ring->eventfd.store(-1, kRelaxed);
  ring->provided.store(0, kRelaxed);
  ring->unknown.store(0, kRelaxed);
  ring->inode.store(inode, kRelaxed);
}

void registered(int fd, uint32_t operation, const void* argument, uint32_t count, uint32_t result) {
  const bool by_number_of_thread = (operation & kUseRegisteredRing) != 0;
  const auto what = static_cast<Operation>(operation & ~kUseRegisteredRing);
  if (what == Operation::kRingFds) remember_numbers(argument, result, true);
  if (what == Operation::kUnregisterRingFds) remember_numbers(argument, result, false);
  Ring* ring = by_number_of_thread ? ring_of_number(static_cast<uint32_t>(fd)) : find(inode_of(fd));
  if (ring != nullptr) remember(*ring, what, argument, count, result);
}

long setup(long entries, void* parameters) {
  const Change change;
  const long r = sys::call(__NR_io_uring_setup, entries, parameters);
  if (r >= 0) made(static_cast<int>(r), parameters);
  return r;
}

long registration(long fd, long operation, void* argument, long count) {
  const Change change;
  const long r = sys::call(__NR_io_uring_register, fd, operation, argument, count);
  if (r >= 0)
    registered(static_cast<int>(fd), static_cast<uint32_t>(operation), argument, static_cast<uint32_t>(count),
               static_cast<uint32_t>(r));
  return r;
}

CKPT_FORK_PATH void in_child() {
  if (changes.load(kRelaxed) != 0) changes.store(0, kRelaxed);
}

bool Ring::is_own() const { return process.load(kRelaxed) == sys::getpid(); }

std::span<Ring> all() { return rings; }

Ring* find(uint64_t inode) {
  if (inode <= kTaken) return nullptr;
  for (Ring& r : rings) {
    if (r.inode.load(kRelaxed) == inode) return &r;
  }
  return nullptr;
}

bool has_one_without_descriptor() { return without_descriptor.load(kRelaxed) == sys::getpid(); }

bool any_known() { return any.load(kRelaxed); }
bool is_changing() { return changes.load(kRelaxed) != 0; }
std::span<RegisteredRing> registered_rings() { return by_number; }
std::span<HeldBack> held_back() { return completions; }

}  // namespace ckpt::rings
