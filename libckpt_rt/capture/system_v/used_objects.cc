#include "libckpt_rt/capture/system_v/used_objects.h"

#include <errno.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include <atomic>

#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::system_v {

namespace {

// The kernel has a place for each, which is part of its number, and gives a place away only when the object
// there is gone. (With ipcmni_extend it has more places: two objects may then meet here.)
constexpr uint32_t kPlaces = 32768, kKinds = 3, kPart = 2048;
constexpr uint32_t kIs = 1u << 31;  // with the number, which is positive
// constinit: constructors of other libraries, which may run before ours, use them as well. Of a program that
// uses none no page of it is ever touched.
CKPT_LARGE_TABLE alignas(4096) constinit std::atomic<uint32_t> used[kKinds * kPlaces]{};
constinit std::atomic<uint64_t> parts{0};  // of kPart places each: those that have any
constinit std::atomic<bool> full{false};
static_assert(kKinds * kPlaces / kPart <= 64);

}  // namespace

bool exists(SystemVKind kind, int id) {
  long r;
  if (kind == SystemVKind::kSemaphores) {
    semid_ds state;
    r = sys::call(__NR_semctl, long{id}, 0L, long{IPC_STAT}, &state);
  } else if (kind == kSharedMemory) {
    shmid_ds state;
    r = sys::call(__NR_shmctl, long{id}, long{IPC_STAT}, &state);
  } else {
    msqid_ds state;
    r = sys::call(__NR_msgctl, long{id}, long{IPC_STAT}, &state);
  }
  return r != -EINVAL && r != -EIDRM;
}

// relaxed: an entry means nothing but itself, and is read in a stop.
void note_used(SystemVKind kind, int id) {
  if (id < 0) return;
  const uint32_t place = static_cast<uint32_t>(kind) * kPlaces + static_cast<uint32_t>(id) % kPlaces;
  const uint32_t entry = kIs | static_cast<uint32_t>(id);
  const uint32_t before = used[place].load(std::memory_order_relaxed);
  if (before == entry) return;
  if (before != 0 && exists(kind, static_cast<int>(before & ~kIs))) {
    // Shared memory that a process has used is named only, and it may be attached no more.
    if (kind == kSharedMemory) return;
    full.store(full.load(std::memory_order_relaxed) || exists(kind, id), std::memory_order_relaxed);
    return;
  }
  used[place].store(entry, std::memory_order_relaxed);
  parts.fetch_or(uint64_t{1} << (place / kPart), std::memory_order_relaxed);
}

bool next_used(uint32_t& at, UsedObject& object) {
  const uint64_t some = parts.load(std::memory_order_relaxed);
  while (at < kKinds * kPlaces) {
    if ((some >> (at / kPart) & 1) == 0) {
      at = (at / kPart + 1) * kPart;
      continue;
    }
    const uint32_t place = at++;
    const uint32_t entry = used[place].load(std::memory_order_relaxed);
    if (entry == 0) continue;
    object = {static_cast<SystemVKind>(place / kPlaces), static_cast<int>(entry & ~kIs)};
    return true;
  }
  return false;
}

bool is_list_full() { return full.load(std::memory_order_relaxed); }

}  // namespace ckpt::system_v
