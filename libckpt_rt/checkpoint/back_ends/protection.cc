// What ProtectingBackEnd does with protection: ahead of the stop, and in it.
#include "base/checks/named_points.h"
#include "libckpt_rt/capture/advice/excluded_memory.h"
#include "libckpt_rt/capture/memory/heap_extents.h"
#include "libckpt_rt/checkpoint/back_ends/protecting.h"
#include "libckpt_rt/checkpoint/stages/memory/page_list.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/threads/of_ours/urgency.h"
#include "libckpt_rt/interpose/memory/gate.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> ProtectingBackEnd::protect_ahead() {
  const ScopedUrgency many_would_go_before(many_threads_run());
  // The second round is for what was mapped during the first: it is as short as there is little.
  for (int round = 0; round < 2; ++round) {
    MemoryMap now(attempt_.space.arena());
    auto added = add_memory(round, now);
    if (!added.ok()) return added.error();
    if (!*added) return get_all_ready();
    if (round == 0) CKPT_TRY(check_table());
    ArenaVector<Addr> stacks(attempt_.space.arena());
    attempt_.capture.waiting.clear();
    if (!list_waiting(attempt_.space.arena(), stacks, attempt_.capture.waiting))
      return no_memory("the list of threads");
    if (round == 1) {
      CKPT_TRY(attempt_.eager.make_room(now, attempt_.capture.pages, stacks.size(), attempt_.space,
                                        attempt_.watch.spare));
      CKPT_TRY(get_all_ready());
    }
    if (round == 1) CKPT_TRY(offer_shared(now.mappings()));
    // The last thing: what is written from here on is protected in the stop.
    CKPT_TRY(arming_.run(now.mappings(), stacks.span()));
    if (round == 0) points::at("protect.passed");
  }
  return {};
}

Result<bool> ProtectingBackEnd::add_memory(int round, MemoryMap& now) {
  MappingsHeld held;
  if (!held.sure()) {
    CKPT_TRY(mappings_in_motion(round));
    log_line(attempt_.space.log(),
             "a call that changes mappings did not end: memory is protected in the stop, which lasts longer");
    return false;
  }
  const size_t about = attempt_.capture.map_before.mappings().size();
  now.expect(about);
  now.track_shared_of_job(tracks_shared());
  CKPT_TRY(now.read(attempt_.space.own()));
  CKPT_TRY(accept(now));
  now.copy_flags_from(attempt_.capture.map_before);
  now.copy_special_pages_eagerly();
  leave_out(now.mappings());
  if (round == 0) CKPT_TRY(renew_table(now.mappings()));
  arming_.add(now.mappings());
  // The gate does not hold a program that makes its system calls itself.
  MemoryMap again(attempt_.space.arena());
  again.expect(about);
  CKPT_TRY(again.read(attempt_.space.own()));
  arming_.make_changed_eager(now.mappings(), again.mappings());
  if (round == 0) points::at("protect.added");
  return true;
}

// From here on nobody writes to the program's memory without a fault, we ourselves not at all.
Result<void> ProtectingBackEnd::settle_protection() {
  ProcessCapture& capture = attempt_.capture;
  Arena& arena = attempt_.space.arena();
  if (!open_pages_.collect(stop_state.threads, capture.still_memory))
    return no_memory("the list of pages that are not protected");
  open_pages_.sort();
  if (!queue_.reserve(arena, static_cast<uint32_t>(pool_.buffers() + 1)))
    return no_memory("the queue of buffers");
  capture.map.copy_special_pages_eagerly();
  leave_out(capture.map.mappings());
  CKPT_TRY(agree_on_shared(capture.map.mappings()));
  ArenaVector<AddrRange> runs(arena);
  CKPT_TRY(capture.pages.scan_eager(capture.map.mappings(), runs));
  ArmedMemory::Serving serving(memory_);
  CKPT_TRY(arming_.settle(capture.map.mappings(), open_pages_.span(), runs));
  for (const Mapping& m : capture.map.mappings()) {
    if ((m.map_flags & kMapElsewhere) != 0) table_.clear_present(m.range);
  }
  CKPT_TRY(leave_out_excluded(runs, 0));
  if (!heap_extents::leave_out(capture.free_heap.span(), runs, 0)) return no_memory("the list of pages");
  // Free pages stay protected: a write to one makes its segment writable, as with any page that was not there
  // at the stop.
  for (const AddrRange& free : capture.free_heap) table_.clear_present(free);
  points::at("protect.settled");
  release_excluded();
  CKPT_TRY(release_open_pages(runs));
  CKPT_TRY(attempt_.eager.add(runs.span()));
  attempt_.clock.end(StopClock::kProtection);
  CKPT_TRY(attempt_.eager.copy(capture.map, capture.still_memory));
  serve_copier();
  attempt_.clock.end(StopClock::kCopies);
  return {};
}

void ProtectingBackEnd::release_excluded() {
  for (const Mapping& m : attempt_.capture.map.mappings()) {
    if (m.handling != Handling::kTracked) continue;
    for (AddrRange out, rest = m.range; !(out = excluded_memory::next_excluded(rest)).empty();
         rest.start = out.end) {
      arming_.release(out);
    }
  }
}

Result<void> ProtectingBackEnd::release_open_pages(ArenaVector<AddrRange>& runs) {
  for (Addr page : open_pages_.span()) {
    if (!table_.is_present(page)) {
      // A hole beside pages that are protected: the kernel must be able to write there all the same. So it is
      // with memory that another member saves.
      SegmentId id;
      const bool of_job = table_.find(page, &id) && table_.region(table_[id]).of_job;
      if (of_job) save_for_others(page);
      if (of_job || table_.has_pages_around(page)) arming_.release({page, page + kPageSize});
      continue;
    }
    if (!runs.push_back({page, page + kPageSize})) return no_memory("the list of pages");
    save_for_others(page);
    arming_.release({page, page + kPageSize});
  }
  return {};
}

}  // namespace ckpt
