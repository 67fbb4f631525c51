#include "libckpt_rt/capture/futex_words.h"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>

#include "base/locks/lock_ranks.h"
#include "base/memory/large_table.h"
#include "libckpt_rt/capture/advice/still_memory.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::futex_words {

namespace {

// Addresses; that of a mutex has bit 0 set, and is dropped when the mutex is no more one of these kinds. That
// of an exiting thread has bit 1 set, and is dropped at the next stop.
constexpr uint32_t kMost = 16 << 10;
constexpr uint64_t kIsMutex = 1, kIsExit = 2, kTags = 3;
CKPT_LARGE_TABLE constinit std::atomic<uint64_t> noted[kMost];
constinit std::atomic<uint32_t> highest{0};  // entries from here on were never used
constinit std::atomic<bool> full{false};

constexpr int kRobust = 16, kInherits = 32;  // glibc's bits of __kind

constinit std::atomic<uint64_t> held_start{0}, held_end{0};

void note_first_time(uint64_t entry) {
  lock_ranks::waits_for(LockRank::kFutexHold);
  // seq_cst with Hold: either it finds what we noted, or we find that it holds.
  const uint64_t word = entry & ~kTags;
  while (word >= held_start.load(std::memory_order_seq_cst) &&
         word < held_end.load(std::memory_order_seq_cst)) {
    sys::call(__NR_sched_yield);
  }
  if (hooks::memory_registered.load(std::memory_order_seq_cst) == 0) return;
  sys::call(__NR_madvise, word & ~(kPageSize - 1), kPageSize, long{MADV_POPULATE_WRITE});
}

void note(uint64_t entry) {
  for (uint32_t i = 0; i < kMost; ++i) {
    uint64_t seen = noted[i].load(std::memory_order_relaxed);
    if (seen == entry) return;
    if (seen != 0 || !noted[i].compare_exchange_strong(seen, entry, std::memory_order_seq_cst)) continue;
    uint32_t top = highest.load(std::memory_order_relaxed);
    while (top <= i && !highest.compare_exchange_weak(top, i + 1, std::memory_order_seq_cst)) {
    }
    return note_first_time(entry);
  }
  if ((entry & kIsExit) == 0) return full.store(true, std::memory_order_relaxed);
  // Of all threads that have exited since the last stop, this takes the place of one that did long ago.
  static constinit std::atomic<uint32_t> turn{0};
  for (uint32_t n = 0; n < kMost; ++n) {
    std::atomic<uint64_t>& place = noted[turn.fetch_add(1, std::memory_order_relaxed) % kMost];
    uint64_t seen = place.load(std::memory_order_relaxed);
    if ((seen & kIsExit) != 0 && place.compare_exchange_strong(seen, entry, std::memory_order_seq_cst))
      return note_first_time(entry);
  }
}

bool read(StillMemory& memory, uint64_t from, void* to, size_t bytes) {
  return memory.read(static_cast<std::byte*>(to), Addr{from}, bytes, true) == 0;
}

[[nodiscard]] bool add(ArenaVector<Addr>& pages, uint64_t word) {
  return pages.push_back(Addr{word}.page_down());
}

struct RobustListHead {
  uint64_t next;
  int64_t offset;
  uint64_t pending;
};

// The list of robust mutexes that the thread holds, and the one it is taking or letting go.
[[nodiscard]] bool add_robust_list(const ThreadSlot& thread, const RobustListHead& head, StillMemory& memory,
                                   ArenaVector<Addr>& pages) {
  constexpr int kLongest = 2048;  // ROBUST_LIST_LIMIT: the kernel looks no further either
  const uint64_t offset = static_cast<uint64_t>(head.offset);
  if (head.pending != 0 && !add(pages, (head.pending & ~1ull) + offset)) return false;
  uint64_t entry = head.next;
  for (int i = 0; i < kLongest; ++i) {
    const uint64_t at = entry & ~1ull;  // bit 0: priority-inheriting
    if (at == thread.robust_list || at == 0) return true;
    if (!add(pages, at + offset)) return false;
    if (!read(memory, at, &entry, sizeof(entry))) return true;
  }
  return true;
}

// The robust lists of all threads from `s` on, as many as are read at once; `s` is the first of the rest
// then.
[[nodiscard]] bool add_robust_lists(const ThreadSlot*& s, StillMemory& memory, ArenaVector<Addr>& pages) {
  constexpr size_t kAtOnce = 64;
  RobustListHead heads[kAtOnce];
  const ThreadSlot* threads[kAtOnce];
  iovec to[kAtOnce], from[kAtOnce];
  size_t count = 0;
  for (; s != nullptr && count < kAtOnce; s = s->next) {
    if (s->robust_list == 0) continue;
    threads[count] = s;
    to[count] = {&heads[count], sizeof(heads[count])};
    from[count] = {reinterpret_cast<void*>(s->robust_list), sizeof(heads[count])};
    ++count;
  }
  const size_t have = memory.read_many({to, count}, {from, count});
  for (size_t i = 0; i < count; ++i) {
    if (i >= have && !read(memory, threads[i]->robust_list, &heads[i], sizeof(heads[i]))) continue;
    if (!add_robust_list(*threads[i], heads[i], memory, pages)) return false;
  }
  return true;
}

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

// A page that is not mapped any more, or may not be read, is left alone.
void load_page(uint64_t word) {
  sys::call(__NR_madvise, word & ~(kPageSize - 1), kPageSize, long{MADV_POPULATE_READ});
}

// A futex call in which the stop interrupted the thread, or that is its next instruction.
[[nodiscard]] bool add_call(const ThreadSlot& thread, StillMemory& memory, ArenaVector<Addr>& pages) {
  const greg_t* r = thread.frame->uc_mcontext.gregs;
  uint16_t instruction = 0;
  constexpr uint16_t kSyscallInstruction = 0x050f;
  if (r[REG_RAX] != __NR_futex || !written_by_kernel(static_cast<uint32_t>(r[REG_RSI]))) return true;
  if (!read(memory, static_cast<uint64_t>(r[REG_RIP]), &instruction, sizeof(instruction))) return true;
  if (instruction != kSyscallInstruction) return true;
  return add(pages, static_cast<uint64_t>(r[REG_RDI])) && add(pages, static_cast<uint64_t>(r[REG_R8]));
}

}  // namespace

void note_mutex(const void* mutex) {
  if ((static_cast<const pthread_mutex_t*>(mutex)->__data.__kind & (kRobust | kInherits)) == 0) return;
  note(reinterpret_cast<uint64_t>(mutex) | kIsMutex);
}

void note_word(const void* word) {
  uint64_t address = reinterpret_cast<uint64_t>(word) & ~3ull;
  if (address != 0) note(address);
}

void note_exit(const void* word) {
  uint64_t address = reinterpret_cast<uint64_t>(word) & ~3ull;
  if (address != 0) note(address | kIsExit);
}

Hold::Hold(AddrRange range) {
  lock_ranks::takes(LockRank::kFutexHold);
  // Both seq_cst, with note_first_time(): a thread that finds the new end finds the new start, and one that
  // finds neither has noted its word in time.
  held_start.store(range.start.value, std::memory_order_seq_cst);
  held_end.store(range.end.value, std::memory_order_seq_cst);
}

Hold::~Hold() {
  held_end.store(0, std::memory_order_seq_cst);
  lock_ranks::released(LockRank::kFutexHold);
}

void reset_hold() { held_end.store(0, std::memory_order_relaxed); }

bool noted_in(AddrRange range) {
  for (uint32_t i = 0; i < highest.load(std::memory_order_seq_cst); ++i) {
    if (range.contains(Addr{noted[i].load(std::memory_order_seq_cst) & ~kTags})) return true;
  }
  return false;
}

void load(const ThreadSlot* threads) {
  for (uint32_t i = 0; i < highest.load(std::memory_order_relaxed); ++i) {
    const uint64_t entry = noted[i].load(std::memory_order_relaxed);
    if (entry != 0 && (entry & kIsExit) == 0) load_page(entry & ~kTags);
  }
  for (const ThreadSlot* s = threads; s != nullptr; s = s->next) {
    const greg_t* r = s->frame->uc_mcontext.gregs;
    if (r[REG_RAX] != __NR_futex || !written_by_kernel(static_cast<uint32_t>(r[REG_RSI]))) continue;
    load_page(static_cast<uint64_t>(r[REG_RDI]));
    load_page(static_cast<uint64_t>(r[REG_R8]));
  }
}

bool overflow() { return full.load(std::memory_order_relaxed); }

bool collect(const ThreadSlot* stopped, StillMemory& memory, ArenaVector<Addr>& pages) {
  for (uint32_t i = 0; i < highest.load(std::memory_order_relaxed); ++i) {
    uint64_t entry = noted[i].load(std::memory_order_relaxed);
    if (entry == 0) continue;
    uint64_t word = entry & ~kTags;
    if ((entry & kIsExit) != 0) {
      noted[i].store(0, std::memory_order_relaxed);
      continue;
    }
    if ((entry & kIsMutex) != 0) {
      pthread_mutex_t mutex;
      if (!read(memory, word, &mutex, sizeof(mutex)) || mutex.__data.__kind < 0 ||
          (mutex.__data.__kind & (kRobust | kInherits)) == 0) {
        noted[i].store(0, std::memory_order_relaxed);
        continue;
      }
    }
    if (!add(pages, word)) return false;
  }
  for (const ThreadSlot* s = stopped; s != nullptr; s = s->next) {
    if (!add_call(*s, memory, pages)) return false;
  }
  for (const ThreadSlot* s = stopped; s != nullptr;) {
    if (!add_robust_lists(s, memory, pages)) return false;
  }
  return true;
}

}  // namespace ckpt::futex_words
