#include "libckpt_rt/capture/advice/memory_advice.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "base/sys.h"
#include "libckpt_rt/capture/advice/advice_notes.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::memory_advice {

namespace {

uint64_t number_after(std::string_view text, std::string_view key) {
  uint64_t value = 0;
  numbers(line_of(text, key), 10, &value, 1);
  return value;
}

// What the kernel counts for the whole process, without a look at each page.
bool has_special_memory() {
  StatusField fields[] = {{"VmLck:"}, {"HugetlbPages:"}};
  if (!read_status("/proc/thread-self/status", fields) || fields[0].value != 0 || fields[1].value != 0)
    return true;
  // Without KSM there is no such file.
  char text[1024];
  const long n = read_small_file("/proc/thread-self/ksm_stat", text, sizeof(text));
  if (n > 0 && number_after({text, static_cast<size_t>(n)}, "ksm_rmap_items ") != 0) return true;
  constexpr int kGetMemoryMerge = 68;  // PR_GET_MEMORY_MERGE of linux/prctl.h, Linux 6.4
  return sys::call(__NR_prctl, kGetMemoryMerge, 0L, 0L, 0L, 0L) == 1;
}

// Was the file behind a shared mapping that is not writable now open for writing? The link to it has its
// mode. 1, 0, or -errno.
long may_write(const Mapping& m) {
  char path[80];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/map_files/{:x}-{:x}", m.range.start.value,
                    m.range.end.value)
       .out = '\0';
  struct stat link;
  const long r = sys::call(__NR_newfstatat, AT_FDCWD, path, &link, AT_SYMLINK_NOFOLLOW);
  return r != 0 ? r : (link.st_mode & S_IWUSR) != 0;
}

// False: not all can be known without the kernel.
bool find_by_notes(MemoryMap& map) {
  for (Mapping& m : map.mappings()) {
    // All of a mapping has the same flags.
    for (const Note& note : notes()) {
      // acquire: the rest of it.
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

Result<void> find_flags(MemoryMap& map, uint64_t resident) {
  if (resident <= kSmallBytes || kernel_must_be_asked() || has_special_memory()) return map.read_flags();
  if (find_by_notes(map)) return {};
  return map.read_flags();
}

void add_recent_flags(MemoryMap& map) {
  const std::span<Mapping> all = map.mappings();
  end_recent([&](AddrRange range, uint32_t set, uint32_t cleared) {
    // All of a mapping has the same flags: a part that was joined with its neighbour since has those of that
    // one.
    for (size_t i = mapping_at(all, range.start); i < all.size() && all[i].range.start < range.end; ++i) {
      Mapping& m = all[i];
      if (!range.contains(m.range.start)) continue;
      const uint32_t flags = (m.map_flags & ~cleared) | set;
      constexpr uint32_t kForChildren = kMapDontFork | kMapWipeOnFork;
      // Said ahead of the call, which may still be to come.
      if (((m.map_flags ^ flags) & kForChildren) != 0) m.unsure_for_children = true;
      m.map_flags = flags;
    }
  });
}

}  // namespace ckpt::memory_advice
