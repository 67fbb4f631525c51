#include "libckpt_rt/guard/mprotect_memory.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/settings/settings.h"
#include "base/sys.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

const char* MprotectMemory::name() const { return fault_back_end_name(FaultBackEnd::kMprotect); }

Result<void> MprotectMemory::open_stopped(bool ahead, ThreadSlot* thread, Arena& arena) {
  parts_ = ArenaVector<Part>(arena);
  return GuardedMemory::open_stopped(ahead, thread, arena);
}

long MprotectMemory::add(AddrRange) { return -ENOTSUP; }

Result<bool> MprotectMemory::take(const Mapping& m) {
  // A stack that grows (MAP_GROWSDOWN) grows by what its lowest part is: no page of it would be writable, and
  // none is in the table of segments.
  if ((m.map_flags & kMapGrowsDown) != 0) return false;
  if (parts_.push_back({m.range, m.prot})) return true;
  return make_error(ExitCode::kInternal, ENOMEM,
                    "no address space left for the list of mappings; raise the limit (ulimit -v)");
}

bool MprotectMemory::has_room_for(size_t runs, size_t mappings) const {
  char text[32] = {};
  uint64_t most = 0;
  if (read_small_file("/proc/sys/vm/max_map_count", text, sizeof(text)) <= 0) return runs < 16384;
  for (const char* c = text; *c >= '0' && *c <= '9'; ++c) most = most * 10 + static_cast<uint64_t>(*c - '0');
  // Each piece that is given back may cut one in three.
  return mappings + 2 * runs < most / 2;
}

guard::Faults MprotectMemory::faults() const {
  constexpr int kAccessError = 2;  // SEGV_ACCERR
  return {SIGSEGV, kAccessError, -1, [] { return true; }};
}

// In one mapping.
long MprotectMemory::change(AddrRange range, bool writable) const {
  auto after = [](Addr a, const Part& p) { return a < p.range.start; };
  const Part* part = std::upper_bound(parts_.begin(), parts_.end(), range.start, after);
  if (part == parts_.begin() || !(--part)->range.contains(range.start)) return -ENOENT;
  if ((part->prot & PROT_WRITE) == 0) return 0;
  return sys::call(__NR_mprotect, range.start.value, range.size(),
                   writable ? part->prot : part->prot & ~uint32_t{PROT_WRITE});
}

}  // namespace ckpt
