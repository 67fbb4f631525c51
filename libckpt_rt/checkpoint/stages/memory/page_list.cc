#include "libckpt_rt/checkpoint/stages/memory/page_list.h"

#include "libckpt_rt/capture/advice/excluded_memory.h"
#include "libckpt_rt/capture/memory/heap_extents.h"
#include "libckpt_rt/checkpoint/account/progress.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> leave_out_excluded(ArenaVector<AddrRange>& runs, size_t first) {
  // Nearly always there is nothing excluded, and the runs stay as they are.
  for (size_t i = first; i < runs.size(); ++i) {
    AddrRange out = excluded_memory::next_excluded(runs[i]);
    if (out.empty()) continue;
    AddrRange rest{out.end, runs[i].end};
    runs[i].end = out.start;
    if (!rest.empty() && !runs.push_back(rest)) return no_memory("the list of pages");
    // Address order: the rest belongs right behind what it was cut from.
    for (size_t j = runs.size() - 1; !rest.empty() && j > i + 1; --j) std::swap(runs[j], runs[j - 1]);
  }
  return {};
}

void log_heap(const Settings& settings, int log, std::span<const AddrRange> free_heap) {
  if (heap_extents::preloaded()) {
    uint64_t bytes = 0;
    for (const AddrRange& r : free_heap) bytes += r.size();
    log_format(log, "heap: {} KiB of free pages are not saved", bytes >> 10);
    if (const uint64_t outside = heap_extents::bytes_outside(); outside != 0) {
      log_format(log,
                 "heap: {} KiB lie outside of its regions, being larger than one or for want of address "
                 "space (ulimit -v)",
                 outside >> 10);
    }
  } else if (settings.heap != Heap::kLibc) {
    log_line(
        log,
        "CKPT_HEAP=jemalloc, but the heap is libc's: put libckpt_heap.so into LD_PRELOAD, or use ckpt run");
  }
}

Result<void> list_pages(ProcessCapture& capture, uint64_t segment, Workspace& space, SegmentTable& table,
                        EagerCopies* eager) {
  // Runs of every mapping first: the table wants to know how many segments there will be.
  struct Part {
    const Mapping* mapping;
    size_t first, count;
  };
  ArenaVector<AddrRange> runs(space.arena());
  ArenaVector<Part> parts(space.arena());
  size_t segments = 0, bytes = 0;
  for (const Mapping& m : capture.map.mappings()) {
    if (m.handling == Handling::kSkip) continue;
    const size_t first = runs.size();
    CKPT_TRY(capture.pages.scan(m, runs));
    if (runs.size() == first) continue;
    CKPT_TRY(leave_out_excluded(runs, first));
    if (!heap_extents::leave_out(capture.free_heap.span(), runs, first))
      return no_memory("the list of pages");
    if (!parts.push_back({&m, first, runs.size() - first})) return no_memory("the list of pages");
    for (const AddrRange& r : runs.span().subspan(first)) {
      bytes += r.size();
      segments += SegmentTable::segments_of(r, segment);
    }
    if (eager != nullptr && m.handling == Handling::kEager) CKPT_TRY(eager->add(runs.span().subspan(first)));
  }
  checkpoint_progress::expect(bytes);
  if (!table.reserve(space.arena(), segment, segments, parts.size()))
    return no_memory("the table of segments");
  for (const Part& p : parts) {
    if (eager != nullptr && p.mapping->handling == Handling::kEager) continue;
    if (!table.add_region({p.mapping->range, (p.mapping->prot & PROT_READ) != 0}))
      return no_memory("the table of segments");
    for (size_t i = p.first; i < p.first + p.count; ++i) {
      if (!table.add_run(runs[i])) return no_memory("the table of segments");
    }
  }
  return {};
}

}  // namespace ckpt
