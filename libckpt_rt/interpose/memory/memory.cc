#include "libckpt_rt/interpose/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>

#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <optional>

#include "libckpt_rt/capture/advice/advice_notes.h"
#include "libckpt_rt/capture/advice/settings_reach.h"
#include "libckpt_rt/capture/system_v/used_objects.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/memory/gate.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

namespace ckpt::calls {
namespace {

constexpr int kMadvGuardInstall = 102;  // Linux 6.13: drops the pages

uintptr_t at(const void* p) { return reinterpret_cast<uintptr_t>(p); }

template <typename T>
long word(T value) {
  return sys::as_word(value);
}

bool drops_pages(int advice) {
  return advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE ||
         advice == MADV_DONTNEED_LOCKED || advice == kMadvGuardInstall;
}

// The last thing that libc does before a thread exits is to give back the used part of its stack: then the
// range ends just below this frame.
bool is_below_own_stack(uintptr_t end) {
  constexpr uintptr_t kNear = 64 << 10;
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return end <= here && here - end < kNear;
}

void release_file(int fd) {
  struct stat st;
  if (sys::call(__NR_fstat, long{fd}, &st) == 0) release_mappings(st.st_dev, st.st_ino, 0);
}

}  // namespace

long munmap(void* start, size_t length) {
  memory_advice::note_unmapping(Addr::of(start), length);
  MappingChange change;
  return run_releasing_call([=] { hooks::before_release(at(start), length); }, __NR_munmap, word(start),
                            word(length));
}

namespace {

// Settings of memory move with it (settings_reach.h).
class ScopedMove {
 public:
  ScopedMove(Addr from, size_t length) {
    for (size_t i = 0; i < std::size(kReaches); ++i) moves_[i] = kReaches[i]->begin_move(from, length);
  }
  ~ScopedMove() {
    for (size_t i = 0; i < std::size(kReaches); ++i) {
      if (moves_[i]) kReaches[i]->end_move();
    }
  }
  ScopedMove(const ScopedMove&) = delete;
  ScopedMove& operator=(const ScopedMove&) = delete;
  void went_to(Addr to, size_t length) {
    for (size_t i = 0; i < std::size(kReaches); ++i) {
      if (moves_[i]) kReaches[i]->extend(to, length);
    }
  }

 private:
  static constexpr memory_settings::Reach* kReaches[] = {&memory_settings::guards_reach,
                                                         &memory_settings::policies_reach};
  bool moves_[std::size(kReaches)];
};

}  // namespace

long mremap(void* start, size_t old_length, size_t new_length, int flags, void* new_start) {
  ScopedMove move(Addr::of(start), old_length);
  auto tell = [=] {
    // A move takes the old range away; without one only what is cut off goes.
    bool moves = (flags & MREMAP_MAYMOVE) != 0;
    if (moves) {
      // Old length 0: a second mapping of the same shared memory, which is not protected.
      hooks::before_release(at(start), old_length != 0 ? old_length : new_length);
    } else if (new_length < old_length) {
      hooks::before_release(at(start) + new_length, old_length - new_length);
    }
    if ((flags & MREMAP_FIXED) != 0) hooks::before_release(at(new_start), new_length);
  };
  MappingChange change;
  for (;;) {
    // relaxed: as in run_releasing_call().
    const uint32_t departures = ckpt_departures.load(std::memory_order_relaxed);
    if (hooks::copying()) tell();
    // Registration splits what the program knows as one mapping, and mremap takes only one. (Since Linux 6.17
    // it moves some of several, and then fails with EFAULT.) So the range is unregistered first.
    if (hooks::memory_registered.load(std::memory_order_relaxed) != 0) hooks::forget(at(start), old_length);
    long r = call_unless_stopped(departures, __NR_mremap, word(start), word(old_length), word(new_length),
                                 flags, word(new_start));
    if (r == kStoppedBefore) continue;
    if (!sys::failed(r)) move.went_to(Addr{static_cast<uint64_t>(r)}, new_length);
    return r;
  }
}

long mmap(void* start, size_t length, int protection, int flags, int fd, long offset) {
  auto tell = [=] { hooks::before_release(at(start), length); };
  long r;
  if ((flags & MAP_FIXED) == 0) {
    r = sys::call(__NR_mmap, start, length, long{protection}, long{flags}, long{fd}, offset);
  } else {
    MappingChange change;
    r = run_releasing_call(tell, __NR_mmap, word(start), word(length), protection, flags, fd, offset);
  }
  if (!sys::failed(r)) memory_advice::note_mapping(Addr{static_cast<uint64_t>(r)}, length, flags);
  return r;
}

namespace {

long madvise_told(void* start, size_t length, int advice) {
  auto tell = [=] {
    if (drops_pages(advice)) hooks::before_release(at(start), length);
  };
  std::optional<MappingChange> change;
  if (drops_pages(advice) && hooks::memory_registered.load(std::memory_order_relaxed) != 0) change.emplace();
  return run_releasing_call(tell, __NR_madvise, word(start), word(length), advice);
}

}  // namespace

long madvise(void* start, size_t length, int advice) {
  memory_advice::note(Addr::of(start), length, advice);
  if (advice == kMadvGuardInstall) memory_settings::guards_reach.extend(Addr::of(start), length);
  if (hooks::memory_registered.load(std::memory_order_relaxed) != 0) {
    // After MADV_FREE the kernel may take the pages at any later time: their protection goes with them, and
    // no event says so. So they are taken at once, which is lawful; but not those of a file, for which the
    // kernel refuses MADV_FREE, and would drop what the program has written. (ENOMEM: the range has holes.)
    if (advice == MADV_FREE) {
      const long r = madvise_told(start, length, MADV_FREE);
      if (sys::failed(r) && r != -ENOMEM) return r;
      advice = MADV_DONTNEED;
    }
    if (advice == MADV_DONTNEED && is_below_own_stack(at(start) + length)) {
      void* cleared_at_exit = nullptr;
      sys::call(__NR_prctl, long{PR_GET_TID_ADDRESS}, &cleared_at_exit, 0L, 0L, 0L);
      hooks::note_exit(cleared_at_exit);
    }
    if (advice == kMadvGuardInstall || advice == kMadvGuardInstall + 1) hooks::forget(at(start), length);
  }
  return madvise_told(start, length, advice);
}

long process_madvise(int pidfd, const void* ranges, size_t n, int advice, unsigned flags) {
  // Since Linux 6.13 a process may give itself any advice by this call. The ranges are not noted: only the
  // kernel can read them safely.
  memory_advice::note_unplaced(advice);
  const bool told = drops_pages(advice) && hooks::memory_registered.load(std::memory_order_relaxed) != 0;
  auto tell = [=] {
    // If the ranges are another process's, before_release is called in vain, which does no harm. A range that
    // cannot be read is for the kernel to refuse.
    constexpr size_t kMost = 16;
    iovec list[kMost];
    for (size_t i = 0; told && i < n; i += kMost) {
      const size_t count = n - i < kMost ? n - i : kMost;
      const iovec to{list, count * sizeof(iovec)};
      const iovec from{const_cast<iovec*>(static_cast<const iovec*>(ranges) + i), to.iov_len};
      if (sys::call(__NR_process_vm_readv, sys::getpid(), &to, 1L, &from, 1L, 0L) !=
          static_cast<long>(to.iov_len))
        break;
      for (size_t k = 0; k < count; ++k) hooks::before_release(at(list[k].iov_base), list[k].iov_len);
    }
  };
  std::optional<MappingChange> change;
  if (told) change.emplace();
  return run_releasing_call(tell, __NR_process_madvise, pidfd, word(ranges), word(n), advice, flags);
}

// Memory that cannot be read any more cannot be copied any more.
long mprotect(void* start, size_t length, int protection) {
  auto tell = [=] {
    if ((protection & PROT_READ) == 0) hooks::before_release(at(start), length);
  };
  MappingChange change;  // malloc lets the heaps of its arenas grow by mprotect
  return run_releasing_call(tell, __NR_mprotect, word(start), word(length), protection);
}

long pkey_mprotect(void* start, size_t length, int protection, int key) {
  auto tell = [=] { hooks::before_release(at(start), length); };
  MappingChange change;
  return run_releasing_call(tell, __NR_pkey_mprotect, word(start), word(length), protection, key);
}

long remap_file_pages(void* start, size_t length, int protection, size_t page_offset, int flags) {
  auto tell = [=] { hooks::before_release(at(start), length); };
  MappingChange change;
  return run_releasing_call(tell, __NR_remap_file_pages, word(start), word(length), protection,
                            word(page_offset), flags);
}

// The kernel joins new pages of the heap to its mapping only if that is not registered; two used mappings are
// never joined later. So before the heap first grows after a registration, its last page is unregistered:
// then only that page becomes a mapping of its own, with the new ones.
void unregister_end_of_heap(uintptr_t end) {
  static constinit std::atomic<uint32_t> forgotten_at{0};
  const uint32_t registered = hooks::memory_registered.load(std::memory_order_relaxed);
  if (registered == 0 || forgotten_at.load(std::memory_order_relaxed) == registered) return;
  const auto before = static_cast<uintptr_t>(sys::call(__NR_brk, 0L));
  if (end <= before) return;
  hooks::forget(before - 1, 1);
  forgotten_at.store(registered, std::memory_order_relaxed);
}

long brk(void* end) {
  MappingChange change;
  if (end != nullptr) unregister_end_of_heap(at(end));
  auto tell = [=] {
    uintptr_t before = static_cast<uintptr_t>(sys::call(__NR_brk, 0L));
    if (end != nullptr && at(end) < before) hooks::before_release(at(end), before - at(end));
  };
  return run_releasing_call(tell, __NR_brk, word(end));
}

long shmat(int id, const void* start, int flags) {
  auto tell = [=] {
    if ((flags & SHM_REMAP) == 0) return;
    shmid_ds segment{};
    if (sys::call(__NR_shmctl, long{id}, long{IPC_STAT}, &segment) != 0) return;
    if (hooks::copying()) hooks::before_release(at(start), segment.shm_segsz);
    // The kernel queues no event for the memory that SHM_REMAP replaces.
    if (hooks::memory_registered.load(std::memory_order_relaxed) != 0)
      hooks::forget(at(start), segment.shm_segsz);
  };
  std::optional<MappingChange> change;
  if ((flags & SHM_REMAP) != 0) change.emplace();
  for (;;) {
    // relaxed: as in run_releasing_call().
    const uint32_t departures = ckpt_departures.load(std::memory_order_relaxed);
    tell();
    const long r = call_unless_stopped(departures, __NR_shmat, id, word(start), flags);
    if (r == kStoppedBefore) continue;
    if (!sys::failed(r)) system_v::note_used(system_v::kSharedMemory, id);
    return r;
  }
}

long shmdt(const void* start) {
  MappingChange change;
  return run_releasing_call([=] { release_mappings(0, 0, at(start)); }, __NR_shmdt, word(start));
}

long ftruncate(int fd, long length) {
  return run_releasing_call([=] { release_file(fd); }, __NR_ftruncate, fd, length);
}

long truncate(const char* path, long length) {
  auto tell = [=] {
    struct stat st;
    if (sys::call(__NR_stat, path, &st) == 0) release_mappings(st.st_dev, st.st_ino, 0);
  };
  return run_releasing_call(tell, __NR_truncate, word(path), length);
}

long fallocate(int fd, int mode, long offset, long length) {
  auto tell = [=] {
    constexpr int kMovesOrDrops =
        FALLOC_FL_PUNCH_HOLE | FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_ZERO_RANGE | FALLOC_FL_INSERT_RANGE;
    if ((mode & kMovesOrDrops) != 0) release_file(fd);
  };
  return run_releasing_call(tell, __NR_fallocate, fd, mode, offset, length);
}

}  // namespace ckpt::calls

using namespace ckpt;

// libc's idea of the end of the heap, which sbrk() in libc goes by.
extern "C" void* __curbrk;

CKPT_INTERPOSE(int, munmap, void* start, size_t length) {
  return to_errno<int>(calls::munmap(start, length));
}

CKPT_INTERPOSE(void*, mremap, void* start, size_t old_length, size_t new_length, int flags, void* new_start) {
  return to_errno<void*>(calls::mremap(start, old_length, new_length, flags, new_start));
}

CKPT_INTERPOSE(void*, mmap, void* start, size_t length, int protection, int flags, int fd, off_t offset) {
  return to_errno<void*>(calls::mmap(start, length, protection, flags, fd, offset));
}
CKPT_INTERPOSE_ALIAS(mmap, mmap64);

CKPT_INTERPOSE(int, madvise, void* start, size_t length, int advice) {
  return to_errno<int>(calls::madvise(start, length, advice));
}

// Returns the error; POSIX_MADV_DONTNEED means nothing, as in libc.
CKPT_INTERPOSE(int, posix_madvise, void* start, size_t length, int advice) {
  if (advice == POSIX_MADV_DONTNEED) return 0;
  return static_cast<int>(-calls::madvise(start, length, advice));
}

CKPT_INTERPOSE(ssize_t, process_madvise, int pidfd, const iovec* ranges, size_t n, int advice,
               unsigned flags) {
  return to_errno(calls::process_madvise(pidfd, ranges, n, advice, flags));
}

CKPT_INTERPOSE(int, mprotect, void* start, size_t length, int protection) {
  return to_errno<int>(calls::mprotect(start, length, protection));
}

CKPT_INTERPOSE(int, pkey_mprotect, void* start, size_t length, int protection, int key) {
  // Key -1 needs no protection keys.
  if (key == -1) return to_errno<int>(calls::mprotect(start, length, protection));
  return to_errno<int>(calls::pkey_mprotect(start, length, protection, key));
}

CKPT_INTERPOSE(int, remap_file_pages, void* start, size_t length, int protection, size_t page_offset,
               int flags) {
  return to_errno<int>(calls::remap_file_pages(start, length, protection, page_offset, flags));
}

CKPT_INTERPOSE(int, brk, void* end) {
  long now = calls::brk(end);
  __curbrk = reinterpret_cast<void*>(now);
  return now < reinterpret_cast<long>(end) ? to_errno<int>(-ENOMEM) : 0;
}

CKPT_INTERPOSE(void*, sbrk, intptr_t increment) {
  if (__curbrk == nullptr) __curbrk = reinterpret_cast<void*>(calls::brk(nullptr));
  char* before = static_cast<char*>(__curbrk);
  if (increment == 0) return before;
  uintptr_t wanted;
  if (__builtin_add_overflow(reinterpret_cast<uintptr_t>(before), increment, &wanted)) {
    return to_errno<void*>(-ENOMEM);
  }
  return ckpt_libc_brk(reinterpret_cast<void*>(wanted)) < 0 ? reinterpret_cast<void*>(-1) : before;
}
CKPT_INTERPOSE_ALIAS(sbrk, __sbrk);

CKPT_INTERPOSE(void*, shmat, int id, const void* start, int flags) {
  return to_errno<void*>(calls::shmat(id, start, flags));
}

CKPT_INTERPOSE(int, shmdt, const void* start) { return to_errno<int>(calls::shmdt(start)); }

CKPT_INTERPOSE(int, ftruncate, int fd, off_t length) { return to_errno<int>(calls::ftruncate(fd, length)); }
CKPT_INTERPOSE_ALIAS(ftruncate, ftruncate64);

CKPT_INTERPOSE(int, truncate, const char* path, off_t length) {
  return to_errno<int>(calls::truncate(path, length));
}
CKPT_INTERPOSE_ALIAS(truncate, truncate64);

CKPT_INTERPOSE(int, fallocate, int fd, int mode, off_t offset, off_t length) {
  CancellationPoint here;
  return to_errno<int>(calls::fallocate(fd, mode, offset, length));
}
CKPT_INTERPOSE_ALIAS(fallocate, fallocate64);
