#include "libckpt_rt/capture/advice/advice_notes.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/memory/large_table.h"
#include "image/format/records/process_records.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08  // linux/mman.h of 6.11 and later
#endif

namespace ckpt::memory_advice {

namespace {

// constinit: constructors of other libraries, which may run before ours, give advice as well.
// Set means: flags that are not in this table may be there, and only the kernel knows them.
constinit std::atomic<bool> ask_kernel{false};

constexpr uint32_t kMostNotes = 256;
CKPT_LARGE_TABLE constinit Note all[kMostNotes]{};
constinit std::atomic<uint32_t> note_count{0};

void add(AddrRange range, uint32_t set, uint32_t cleared) {
  uint32_t n = note_count.load(std::memory_order_relaxed);
  // The same again, as allocators say it for each piece. Only the last that says something of this place
  // counts.
  for (uint32_t i = n < kMostNotes ? n : kMostNotes; i-- > 0;) {
    const Note& old = all[i];
    // acquire: its range is complete.
    if (!old.complete.load(std::memory_order_acquire) || !old.range.overlaps(range)) continue;
    if (old.set == set && old.cleared == cleared && old.range.start <= range.start &&
        range.end <= old.range.end)
      return;
    break;
  }
  n = note_count.fetch_add(1, std::memory_order_relaxed);
  if (n >= kMostNotes) {
    note_count.store(kMostNotes, std::memory_order_relaxed);
    ask_kernel.store(true, std::memory_order_relaxed);
    return;
  }
  all[n].range = range;
  all[n].set = set;
  all[n].cleared = cleared;
  // release: who sees it complete sees the rest.
  all[n].complete.store(true, std::memory_order_release);
}

}  // namespace

void note(Addr start, size_t length, int advice) {
  const AddrRange range{start.page_down(), Addr{start.value + length + kPageSize - 1}.page_down()};
  switch (advice) {
    case MADV_HUGEPAGE:
      return add(range, kMapHugePage, kMapNoHugePage);
    case MADV_NOHUGEPAGE:
      return add(range, kMapNoHugePage, kMapHugePage);
    case MADV_SEQUENTIAL:
      return add(range, kMapSequential, kMapRandom);
    case MADV_RANDOM:
      return add(range, kMapRandom, kMapSequential);
    case MADV_NORMAL:
      return add(range, 0, kMapRandom | kMapSequential);
    case MADV_DONTFORK:
    case MADV_DOFORK:
    case MADV_WIPEONFORK:
    case MADV_KEEPONFORK:
    case MADV_DONTDUMP:
    case MADV_DODUMP:
    case MADV_MERGEABLE:
    case MADV_UNMERGEABLE:
      ask_kernel.store(true, std::memory_order_relaxed);
      return;
    default:
      return;
  }
}

void note_unplaced(int advice) {
  switch (advice) {
    case MADV_HUGEPAGE:
    case MADV_NOHUGEPAGE:
    case MADV_SEQUENTIAL:
    case MADV_RANDOM:
    case MADV_NORMAL:
      ask_kernel.store(true, std::memory_order_relaxed);
      return;
    default:
      return note({}, 0, advice);  // these need no place
  }
}

void note_mapping(Addr start, size_t length, int flags) {
  if ((flags & (MAP_GROWSDOWN | MAP_LOCKED | MAP_HUGETLB)) != 0 || (flags & MAP_TYPE) == MAP_DROPPABLE) {
    ask_kernel.store(true, std::memory_order_relaxed);
  } else if ((flags & MAP_NORESERVE) != 0) {
    add({start, start + ((length + kPageSize - 1) & ~(kPageSize - 1))}, kMapNoReserve, 0);
  }
}

void note_seal() { ask_kernel.store(true, std::memory_order_relaxed); }

bool kernel_must_be_asked() { return ask_kernel.load(std::memory_order_relaxed); }

std::span<const Note> notes() {
  return {all, std::min(note_count.load(std::memory_order_relaxed), kMostNotes)};
}

}  // namespace ckpt::memory_advice
