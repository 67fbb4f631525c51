#include "libckpt_rt/capture/advice/advice_notes.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/machine/droppable_memory.h"
#include "base/memory/large_table.h"
#include "image/format/records/process_records.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::memory_advice {

namespace {

// constinit: constructors of other libraries, which may run before ours, give advice as well.
// Set means: flags that are not in this table may be there, and only the kernel knows them.
constinit std::atomic<bool> ask_kernel{false};

constexpr uint32_t kMostNotes = 256;
CKPT_LARGE_TABLE constinit Note all[kMostNotes]{};
constinit std::atomic<uint32_t> note_count{0};

void add_recent(AddrRange range, uint32_t set, uint32_t cleared);

void add(AddrRange range, uint32_t set, uint32_t cleared) {
  add_recent(range, set, cleared);
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

CKPT_LARGE_TABLE constinit recent::Use uses[kMostRecent]{};

// What advice can set, and memory that is mapped anew has nothing of. It may be locked, mergeable or without
// huge pages from the beginning (mlockall(2), prctl(2), MAP_STACK): the look at flags has that.
constexpr uint32_t kOfAdvice = kMapDontFork | kMapWipeOnFork | kMapDontDump | kMapHugePage | kMapSequential |
                               kMapRandom | kMapNoReserve | kMapGrowsDown | kMapDroppable;

void add_recent(AddrRange range, uint32_t set, uint32_t cleared) {
  if (!recent::kept.load(std::memory_order_relaxed)) return;
  const uint64_t number = recent::count.fetch_add(1, std::memory_order_relaxed) + 1;
  recent::Use& use = uses[number % kMostRecent];
  use.number.store(0, std::memory_order_relaxed);
  use.range = range;
  use.set = set;
  use.cleared = cleared;
  // release: who sees its number sees the rest.
  use.number.store(number, std::memory_order_release);
}

AddrRange pages_of(Addr start, size_t length) {
  return {start.page_down(), Addr{start.value + length + kPageSize - 1}.page_down()};
}

// Advice that no note has the place of, but in a time in which all is kept.
void note_for_kernel(AddrRange range, int advice) {
  switch (advice) {
    case MADV_DONTFORK:
      return add_recent(range, kMapDontFork, 0);
    case MADV_DOFORK:
      return add_recent(range, 0, kMapDontFork);
    case MADV_WIPEONFORK:
      return add_recent(range, kMapWipeOnFork, 0);
    case MADV_KEEPONFORK:
      return add_recent(range, 0, kMapWipeOnFork);
    case MADV_DONTDUMP:
      return add_recent(range, kMapDontDump, 0);
    case MADV_DODUMP:
      return add_recent(range, 0, kMapDontDump);
    case MADV_MERGEABLE:
      return add_recent(range, kMapMergeable, 0);
    default:
      return add_recent(range, 0, kMapMergeable);
  }
}

}  // namespace

namespace recent {

constinit std::atomic<bool> kept{false};
constinit std::atomic<uint64_t> count{0};
constinit uint64_t first = 0;

const Use& at(uint64_t number) { return uses[number % kMostRecent]; }

}  // namespace recent

void begin_recent() {
  recent::first = recent::count.load(std::memory_order_relaxed);
  // relaxed: what a thread does that does not see this yet, it did before the flags are read, but for the
  // time of a store.
  recent::kept.store(true, std::memory_order_relaxed);
}

void note(Addr start, size_t length, int advice) {
  const AddrRange range = pages_of(start, length);
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
      return note_for_kernel(range, advice);
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
  // The kernel sets the others of these with it.
  constexpr uint32_t kOfDroppable = kMapDroppable | kMapWipeOnFork | kMapDontDump | kMapNoReserve;
  const bool droppable = (flags & MAP_TYPE) == MAP_DROPPABLE;
  const uint32_t set = ((flags & MAP_GROWSDOWN) != 0 ? kMapGrowsDown : 0u) |
                       ((flags & MAP_LOCKED) != 0 ? kMapLocked : 0u) |
                       ((flags & MAP_NORESERVE) != 0 ? kMapNoReserve : 0u) | (droppable ? kOfDroppable : 0u);
  add_recent(pages_of(start, length), set, kOfAdvice);
  if ((flags & (MAP_GROWSDOWN | MAP_LOCKED | MAP_HUGETLB)) != 0 || droppable) {
    ask_kernel.store(true, std::memory_order_relaxed);
  } else if ((flags & MAP_NORESERVE) != 0) {
    add({start, start + ((length + kPageSize - 1) & ~(kPageSize - 1))}, kMapNoReserve, 0);
  }
}

void note_unmapping(Addr start, size_t length) { add_recent(pages_of(start, length), 0, kOfAdvice); }

void note_seal() { ask_kernel.store(true, std::memory_order_relaxed); }

bool kernel_must_be_asked() { return ask_kernel.load(std::memory_order_relaxed); }

std::span<const Note> notes() {
  return {all, std::min(note_count.load(std::memory_order_relaxed), kMostNotes)};
}

}  // namespace ckpt::memory_advice
