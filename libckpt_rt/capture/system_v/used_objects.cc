#include "libckpt_rt/capture/system_v/used_objects.h"

#include <errno.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>

#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::system_v {

namespace {

constexpr uint32_t kMost = 512;
// constinit: constructors of other libraries, which may run before ours, use them as well.
constinit std::atomic<uint64_t> used[kMost]{};
constinit std::atomic<bool> full{false};

// True: it is in the list by now. relaxed: an entry means nothing but itself, and is read in a stop.
bool put(UsedObject object) {
  const uint32_t first =
      (static_cast<uint32_t>(object.id()) * 2 + static_cast<uint32_t>(object.kind())) % kMost;
  for (uint32_t i = 0; i < kMost; ++i) {
    std::atomic<uint64_t>& entry = used[(first + i) % kMost];
    uint64_t there = entry.load(std::memory_order_relaxed);
    if (there == 0 && entry.compare_exchange_strong(there, object.bits(), std::memory_order_relaxed))
      return true;
    if (there == object.bits()) return true;
  }
  return false;
}

void drop_those_gone() {
  for (std::atomic<uint64_t>& entry : used) {
    uint64_t bits = entry.load(std::memory_order_relaxed);
    const UsedObject object(bits);
    if (object.is_one() && !exists(object.kind(), object.id()))
      entry.compare_exchange_strong(bits, 0, std::memory_order_relaxed);
  }
}

}  // namespace

bool exists(SystemVKind kind, int id) {
  long r;
  if (kind == SystemVKind::kSemaphores) {
    semid_ds state;
    r = sys::call(__NR_semctl, long{id}, 0L, long{IPC_STAT}, &state);
  } else {
    msqid_ds state;
    r = sys::call(__NR_msgctl, long{id}, long{IPC_STAT}, &state);
  }
  return r != -EINVAL && r != -EIDRM;
}

void note_used(SystemVKind kind, int id) {
  if (id < 0) return;
  const UsedObject object(kind, id);
  if (put(object) || full.load(std::memory_order_relaxed)) return;
  drop_those_gone();
  if (!put(object)) full.store(true, std::memory_order_relaxed);
}

std::span<const std::atomic<uint64_t>> used_objects() { return used; }
bool is_list_full() { return full.load(std::memory_order_relaxed); }

}  // namespace ckpt::system_v
