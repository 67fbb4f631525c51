#include "libckpt_rt/memory_advice.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>

#include "base/sys.h"
#include "libckpt_rt/proc_text.h"
#include "libckpt_rt/task_list.h"

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08  // linux/mman.h of 6.11 and later
#endif

namespace ckpt::memory_advice {

namespace {

// Set means: flags that are not in this table may be there, and only the kernel knows them.
std::atomic<bool> ask_kernel{false};

// One use of a flag. Written once, in order; `set` and `cleared` are MappingFlags, and nonzero when it is complete.
struct Note {
  AddrRange range;
  uint32_t set, cleared;
  std::atomic<bool> complete;
};
constexpr uint32_t kMostNotes = 256;
Note notes[kMostNotes];
std::atomic<uint32_t> note_count{0};

void add(AddrRange range, uint32_t set, uint32_t cleared) {
  uint32_t n = note_count.load(std::memory_order_relaxed);
  // The same again, as allocators say it for each piece. Only the last that says something of this place counts.
  for (uint32_t i = n < kMostNotes ? n : kMostNotes; i-- > 0;) {
    const Note& old = notes[i];
    // acquire: its range is complete.
    if (!old.complete.load(std::memory_order_acquire) || !old.range.overlaps(range)) continue;
    if (old.set == set && old.cleared == cleared && old.range.start <= range.start && range.end <= old.range.end) return;
    break;
  }
  n = note_count.fetch_add(1, std::memory_order_relaxed);
  if (n >= kMostNotes) {
    note_count.store(kMostNotes, std::memory_order_relaxed);
    ask_kernel.store(true, std::memory_order_relaxed);
    return;
  }
  notes[n].range = range;
  notes[n].set = set;
  notes[n].cleared = cleared;
  // release: who sees it complete sees the rest.
  notes[n].complete.store(true, std::memory_order_release);
}

uint64_t number_after(std::string_view text, std::string_view key) {
  uint64_t value = 0;
  numbers(line_of(text, key), 10, &value, 1);
  return value;
}

// What the kernel counts for the whole process, without a look at each page.
bool has_special_memory() {
  char text[4096];
  long n = read_small_file("/proc/thread-self/status", text, sizeof(text));
  if (n <= 0) return true;
  const std::string_view status(text, static_cast<size_t>(n));
  if (number_after(status, "VmLck:") != 0 || number_after(status, "HugetlbPages:") != 0) return true;
  // Without KSM there is no such file.
  n = read_small_file("/proc/thread-self/ksm_stat", text, sizeof(text));
  if (n > 0 && number_after({text, static_cast<size_t>(n)}, "ksm_rmap_items ") != 0) return true;
  constexpr int kGetMemoryMerge = 68;  // PR_GET_MEMORY_MERGE of linux/prctl.h, Linux 6.4
  return sys::call(__NR_prctl, kGetMemoryMerge, 0L, 0L, 0L, 0L) == 1;
}

// Was the file behind a shared mapping that is not writable now open for writing? The link to it has its mode. 1, 0, or -errno.
long may_write(const Mapping& m) {
  char path[80];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/thread-self/map_files/{:x}-{:x}", m.range.start.value, m.range.end.value).out = '\0';
  struct stat link;
  const long r = sys::call(__NR_newfstatat, AT_FDCWD, path, &link, AT_SYMLINK_NOFOLLOW);
  return r != 0 ? r : (link.st_mode & S_IWUSR) != 0;
}

// False: not all can be known without the kernel.
bool find_by_notes(MemoryMap& map) {
  const uint32_t count = std::min(note_count.load(std::memory_order_relaxed), kMostNotes);
  for (Mapping& m : map.mappings()) {
    // All of a mapping has the same flags.
    for (uint32_t i = 0; i < count; ++i) {
      const Note& note = notes[i];
      if (!note.complete.load(std::memory_order_acquire) || !note.range.contains(m.range.start)) continue;
      m.map_flags = (m.map_flags & ~note.cleared) | note.set;
    }
    if (m.kind != MappingKind::kFileShared || (m.map_flags & kMapMayWrite) != 0) continue;
    const long writable = may_write(m);
    if (writable < 0) return false;
    if (writable == 1) m.map_flags |= kMapMayWrite;
  }
  return true;
}

}  // namespace

void note(Addr start, size_t length, int advice) {
  const AddrRange range{start.page_down(), Addr{start.value + length + kPageSize - 1}.page_down()};
  switch (advice) {
    case MADV_HUGEPAGE: return add(range, kMapHugePage, kMapNoHugePage);
    case MADV_NOHUGEPAGE: return add(range, kMapNoHugePage, kMapHugePage);
    case MADV_SEQUENTIAL: return add(range, kMapSequential, kMapRandom);
    case MADV_RANDOM: return add(range, kMapRandom, kMapSequential);
    case MADV_NORMAL: return add(range, 0, kMapRandom | kMapSequential);
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
    default: return;
  }
}

void note_mapping(Addr start, size_t length, int flags) {
  if ((flags & (MAP_GROWSDOWN | MAP_LOCKED | MAP_HUGETLB)) != 0 || (flags & MAP_TYPE) == MAP_DROPPABLE) {
    ask_kernel.store(true, std::memory_order_relaxed);
  } else if ((flags & MAP_NORESERVE) != 0) {
    add({start, start + ((length + kPageSize - 1) & ~(kPageSize - 1))}, kMapNoReserve, 0);
  }
}

Result<void> find_flags(MemoryMap& map, uint64_t resident) {
  if (resident <= kSmallBytes || ask_kernel.load(std::memory_order_relaxed) || has_special_memory()) return map.read_flags();
  if (find_by_notes(map)) return {};
  return map.read_flags();
}

}  // namespace ckpt::memory_advice
