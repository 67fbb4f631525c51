#include "libckpt_rt/capture/descriptors/noted/directory_notices.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>

#include "base/memory/fork_path.h"
#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::directory_notices {

CKPT_FORK_DATA constinit std::atomic<bool> any{false};

namespace {

// Taken for good: a descriptor's number leads to its last directory.
struct Place {
  std::atomic<int> fd;  // + 1; 0: free
  std::atomic<uint32_t> mask;
  std::atomic<uint64_t> inode, device;
};
constexpr int kPlaces = 256;
CKPT_LARGE_TABLE constinit Place places[kPlaces]{};
constinit std::atomic<bool> full{false};
// Who asked. The kernel tells a forked child nothing of what its parent asked for.
constinit std::atomic<int> asker{0};

// The kernel adds what is asked for later, and forgets the rest once it has told something, unless it is to
// go on.
uint32_t added(uint32_t before, uint32_t mask) { return mask == 0 ? 0 : before | mask; }

}  // namespace

void note(int fd, uint32_t mask) {
  struct stat st;
  if (sys::call(__NR_fstat, long{fd}, &st) != 0) return;
  if (const int process = sys::getpid(); asker.load(std::memory_order_relaxed) != process) {
    forget_all();
    asker.store(process, std::memory_order_relaxed);
  }
  any.store(true, std::memory_order_relaxed);
  for (Place& place : places) {
    int nobody = 0;
    if (place.fd.load(std::memory_order_relaxed) != fd + 1 &&
        !place.fd.compare_exchange_strong(nobody, fd + 1, std::memory_order_relaxed) && nobody != fd + 1)
      continue;
    const bool same = place.inode.load(std::memory_order_relaxed) == st.st_ino &&
                      place.device.load(std::memory_order_relaxed) == st.st_dev;
    place.inode.store(st.st_ino, std::memory_order_relaxed);
    place.device.store(st.st_dev, std::memory_order_relaxed);
    place.mask.store(same ? added(place.mask.load(std::memory_order_relaxed), mask) : mask,
                     std::memory_order_relaxed);
    return;
  }
  full.store(true, std::memory_order_relaxed);
}

void take_again() {
  if (!any.load(std::memory_order_relaxed) || asker.load(std::memory_order_relaxed) != sys::getpid()) return;
  for (const Place& place : places) {
    const int fd = place.fd.load(std::memory_order_relaxed) - 1;
    const uint32_t mask = place.mask.load(std::memory_order_relaxed);
    struct stat st;
    // F_NOTIFY makes the process the owner of the open file: one without an owner was opened since. Whom the
    // program had made its owner after that is its owner again.
    f_owner_ex owner{};
    if (fd < 0 || mask == 0 || sys::call(__NR_fstat, long{fd}, &st) != 0 ||
        st.st_ino != place.inode.load(std::memory_order_relaxed) ||
        st.st_dev != place.device.load(std::memory_order_relaxed) ||
        sys::call(__NR_fcntl, long{fd}, long{F_GETOWN_EX}, &owner) != 0 || owner.pid == 0)
      continue;
    if (sys::call(__NR_fcntl, long{fd}, long{F_NOTIFY}, long{mask}) == 0)
      sys::call(__NR_fcntl, long{fd}, long{F_SETOWN_EX}, &owner);
  }
}

void forget_all() {
  for (Place& place : places) place.mask.store(0, std::memory_order_relaxed);
  any.store(false, std::memory_order_relaxed);
}

bool is_full() { return full.load(std::memory_order_relaxed); }

}  // namespace ckpt::directory_notices
