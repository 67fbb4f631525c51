#include "libckpt_rt/checkpoint/stages/memory/shared_of_job.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <bitset>

#include "job/session/session.h"
#include "libckpt_rt/capture/advice/excluded_memory.h"
#include "libckpt_rt/checkpoint/stages/workspace.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// What is reached by its mappings alone: of a file the image that has the descriptor has more.
bool is_of_subject(const Mapping& m) {
  return m.shared && (m.kind == MappingKind::kSharedAnonymous || m.kind == MappingKind::kSysV);
}

// Will the image have all of it, and can `ckpt back` put it back through this mapping? Of huge pages each
// process knows but those that it has used itself (mincore(2)).
bool can_save(const Mapping& m) {
  return m.handling != Handling::kSkip && (m.prot & PROT_READ) != 0 && (m.prot & PROT_WRITE) != 0 &&
         (m.map_flags & kMapHugeTlb) == 0 && m.page_size == kPageSize &&
         excluded_memory::next_excluded(m.range).empty();
}

bool has_all_of(const job::SharedSaver& saver, const Mapping& m) {
  return m.file_offset >= saver.offset && m.file_offset - saver.offset <= saver.length &&
         m.range.size() <= saver.length - (m.file_offset - saver.offset);
}

}  // namespace

Result<void> offer_shared_memory(std::span<const Mapping> map, bool protects, Arena& arena) {
  if (job::session() == nullptr) return {};
  ArenaVector<job::SharedOffer> offers(arena);
  for (const Mapping& m : map) {
    if (!is_of_subject(m)) continue;
    const bool saves = can_save(m);
    const bool is_protected = protects && m.of_job && m.handling == Handling::kTracked &&
                              excluded_memory::next_excluded(m.range).empty();
    if (!offers.push_back({m.device, m.inode, m.range.start.value, m.range.size(), m.file_offset, m.object,
                           is_protected, saves}))
      return no_memory("the list of shared memory");
  }
  job::session()->offers = offers.span();
  job::session()->can_share = protects;
  return {};
}

Result<void> leave_to_savers(std::span<Mapping> map) {
  if (job::session() == nullptr) return {};
  const std::span<const job::SharedSaver> savers = job::session()->savers;
  std::bitset<job::kMostSavers> saved;  // by this process
  for (Mapping& m : map) {
    if (!is_of_subject(m)) continue;
    const auto saver =
        std::lower_bound(savers.begin(), savers.end(), m.object,
                         [](const job::SharedSaver& s, uint64_t object) { return s.object < object; });
    if (saver == savers.end() || saver->object != m.object) continue;
    if (saver->pid == this_process.pid) {
      const auto index = static_cast<size_t>(saver - savers.begin());
      if (index < saved.size() && m.file_offset == saver->offset && m.range.size() >= saver->length &&
          can_save(m))
        saved.set(index);
    } else if (has_all_of(*saver, m)) {
      m.map_flags |= kMapElsewhere;
      // What the others protect this process protects as well, to keep for them what it is about to change.
      if (!m.of_job || m.handling != Handling::kTracked) m.handling = Handling::kSkip;
    }
  }
  for (size_t i = 0; i < savers.size(); ++i) {
    if (savers[i].pid != this_process.pid || (i < saved.size() && saved.test(i))) continue;
    job::session()->again = true;
    return make_error(ExitCode::kInternal, 0,
                      "shared memory that this process was to save has changed while the checkpoint began; "
                      "it is taken again");
  }
  return {};
}

}  // namespace ckpt
