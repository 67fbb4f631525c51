// Which pages an image has: not what the program excluded, nor what its heap knows to be free.
#include "libckpt_rt/capture/excluded_memory.h"
#include "libckpt_rt/capture/heap_extents.h"
#include "libckpt_rt/checkpoint/progress.h"
#include "libckpt_rt/checkpoint/run.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/log.h"

namespace ckpt {

Result<void> CheckpointRun::leave_out_excluded(ArenaVector<AddrRange>& runs, size_t first) {
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

Result<void> CheckpointRun::list_free_heap() {
  if (!heap_extents::collect_free(still_memory_, arena_, free_heap_))
    return no_memory("the list of free memory");
  return {};
}

void CheckpointRun::log_heap() {
  if (heap_extents::preloaded()) {
    uint64_t bytes = 0;
    for (const AddrRange& r : free_heap_) bytes += r.size();
    log_format(directory_.get(), "heap: {} KiB of free pages are not saved", bytes >> 10);
    if (const uint64_t outside = heap_extents::bytes_outside(); outside != 0) {
      log_format(directory_.get(),
                 "heap: {} KiB lie outside of its regions, being larger than one or for want of address "
                 "space (ulimit -v)",
                 outside >> 10);
    }
  } else if (library.settings.heap == Heap::kJemalloc) {
    log_line(
        directory_.get(),
        "CKPT_HEAP=jemalloc, but the heap is libc's: put libckpt_heap.so into LD_PRELOAD, or use ckpt run");
  }
}

Result<void> CheckpointRun::list_pages() {
  // Runs of every mapping first: the table wants to know how many segments there will be.
  struct Part {
    const Mapping* mapping;
    size_t first, count;
  };
  ArenaVector<AddrRange> runs(arena_);
  ArenaVector<Part> parts(arena_);
  const uint64_t segment = library.settings.segment_bytes;
  size_t segments = 0, bytes = 0;
  for (const Mapping& m : map_.mappings()) {
    if (m.handling == Handling::kSkip) continue;
    const size_t first = runs.size();
    CKPT_TRY(pages_.scan(m, runs));
    if (runs.size() == first) continue;
    CKPT_TRY(leave_out_excluded(runs, first));
    if (!heap_extents::leave_out(free_heap_.span(), runs, first)) return no_memory("the list of pages");
    if (!parts.push_back({&m, first, runs.size() - first})) return no_memory("the list of pages");
    for (const AddrRange& r : runs.span().subspan(first)) {
      bytes += r.size();
      segments += SegmentTable::segments_of(r, segment);
    }
    if (m.handling == Handling::kEager) CKPT_TRY(add_eager(runs.span().subspan(first)));
  }
  checkpoint_progress::expect(bytes);
  if (!table_.reserve(arena_, segment, segments, parts.size()) ||
      !queue_.reserve(arena_, static_cast<uint32_t>(pool_.buffers() + 1))) {
    return no_memory("the table of segments");
  }
  const bool eager_is_separate = mode_ != Mode::kSequential;
  for (const Part& p : parts) {
    if (eager_is_separate && p.mapping->handling == Handling::kEager) continue;
    if (!table_.add_region({p.mapping->range, (p.mapping->prot & PROT_READ) != 0}))
      return no_memory("the table of segments");
    for (size_t i = p.first; i < p.first + p.count; ++i) {
      if (!table_.add_run(runs[i])) return no_memory("the table of segments");
    }
  }
  return {};
}

}  // namespace ckpt
